"""Each check of notebook 08 says what is wrong with typical wrong answers, and passes the right one."""

import pytest
import torch

from toyrl.checks import nb08
from toyrl.checks.nb08 import check_disagreement, check_share, check_weight

WEIGHTS = {message: (weight, message) for message, weight in nb08._WEIGHTS.items()} | {
    "nothing": (lambda p: None, "not done yet"),
    "no function": (4.0, "the function itself"),
    "other": (lambda p: p, "it should be 11.111"),
    "text": (lambda p: "1/p", "cannot be read"),
}


@pytest.mark.parametrize(("answer", "words"), WEIGHTS.values(), ids=WEIGHTS)
def test_wrong_weights(said, answer, words):
    printed = said(check_weight, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_weight_is_that_of_large_groups(said):
    """Dividing by the group's variance, at 2,000 groups of 4,096, gives the weight within 2%."""
    assert said(check_weight, lambda p: 1 / (p - p**2)).startswith("Right")
    p, generator = 0.3, torch.Generator().manual_seed(0)
    rewards = (torch.rand(200, 4096, generator=generator, dtype=torch.float64) < p).double()
    advantages = (rewards - rewards.mean(1, keepdim=True)) / rewards.var(1, keepdim=True)
    assert ((advantages * (rewards - p)).mean() / (p * (1 - p))).item() == pytest.approx(1 / (p * (1 - p)), rel=0.02)


GROUPS = {
    "stub": (([1, 1, 0, 0], [10, 10, 10, 10], [True, False, True, False]), "All lengths are equal"),
    "too few": (([1, 0], [1, 2], [True, True]), "4 at least"),
    "unequal lists": (([1, 1, 0, 0], [10, 10, 10], [True] * 4), "lists of equal length"),
    "no reward": (([2, 1, 0, 0], [10, 10, 10, 10], [True] * 4), "Rewards are 0 or 1"),
    "no length": (([1, 1, 0, 0], [10, 0, 10, 10], [True] * 4), "1 at least"),
    "equal rewards": (([1, 1, 1, 1], [10, 5, 10, 10], [True] * 4), "every advantage is 0"),
    "nobody": (([1, 1, 0, 0], [10, 5, 10, 10], [False] * 4), "Nobody uses"),
    "other way round": (([0, 0, 1, 1], [100, 100, 4, 10], [True, True, True, False]), "the other way round"),
    "agree": (([1, 1, 0, 0], [100, 50, 4, 10], [True, True, False, False]), "Sequence should be negative"),
    "nothing": ((None, None, None), "cannot be read"),
}


@pytest.mark.parametrize(("answer", "words"), GROUPS.values(), ids=GROUPS)
def test_wrong_groups(said, answer, words):
    printed = said(lambda three: check_disagreement(*three), answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_group_by_hand(said):
    """Advantages 1/2, 1/2, -1/2: by sequence 1/200 + 1/200 - 1/8, by constant 1/2."""
    group = ([1, 1, 0, 0], [100, 100, 4, 10], [True, True, True, False])
    assert nb08.pushes(*group) == pytest.approx((1 / 200 + 1 / 200 - 1 / 8, 0.5))
    assert said(lambda three: check_disagreement(*three), group).startswith("Right")


SHARES = {message: (share, message) for message, share in nb08._SHARE_MISTAKES.items()} | {
    "nothing": (lambda loss, mask, c: None, "not done yet"),
    "double": (lambda loss, mask, c: 2 * (loss * mask).sum() / c, "add up to"),
    "text": (lambda loss, mask, c: "0", "add up to"),
}


@pytest.mark.parametrize(("answer", "words"), SHARES.values(), ids=SHARES)
def test_wrong_shares(said, answer, words):
    printed = said(check_share, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_share(said):
    assert said(check_share, lambda loss, mask, c: (loss * mask).sum() / c).startswith("Right")
