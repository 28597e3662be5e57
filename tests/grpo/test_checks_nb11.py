"""Moments of a baseline against hand and simulation; each check says what is wrong with typical wrong answers."""

from pathlib import Path

import pytest
import torch

from grpo.checks.nb11 import ALIKE, BASELINES, KINDS, UNLIKE, check_baseline, check_k, check_kinds, gradient_moments
from grpo.own import load_own

shrunk = load_own("baseline", f"{Path(__file__).resolve().parents[2]}/data/experiments/own.py:shrunk")


def rest_of_batch(rewards):
    """The mean of all other responses of the batch, of whatever prompt."""
    others = rewards.numel() - 1
    return (rewards.sum() - rewards) / max(others, 1) if others else rewards


@pytest.mark.parametrize("group_size", [2, 3])
def test_weights_are_those_that_are_known(group_size):
    """Leave-one-out and shrunk 1, the group mean (G - 1)/G, a constant 1, whatever the rates."""
    rates = (0.2, 0.6, 0.9)
    for baseline, expected in (
        ("leave_one_out", 1.0),
        (shrunk, 1.0),
        (rest_of_batch, 1.0),
        ("mean", (group_size - 1) / group_size),
        ("none", 1.0),
        (lambda r: torch.full_like(r, 0.5), 1.0),
    ):
        weight, _ = gradient_moments(baseline, rates, group_size)
        assert weight.tolist() == pytest.approx([expected] * 3, rel=1e-12)


def test_noise_by_hand():
    """One prompt, one response of 20 tokens, p = 1/4, no baseline: E|g|^2 = p (1 - 1/20), less |grad p|^2."""
    weight, noise = gradient_moments("none", (0.25,), 1)
    assert weight.item() == pytest.approx(1)
    assert noise.item() == pytest.approx(0.25 * 0.95 - 0.25 * 0.75 / 20, rel=1e-12)


def test_noise_against_simulation():
    """100,000 batches of two prompts of 20 tokens, 4 and 12 of them right, groups of 3, the shrunken baseline."""
    generator = torch.Generator().manual_seed(0)
    batches, group_size, right = 100_000, 3, torch.tensor([4, 12])
    tokens = torch.randint(20, (batches, 2, group_size), generator=generator)
    rewards = (tokens < right[None, :, None]).double()
    advantages = torch.stack([r - shrunk(r) for r in rewards])
    scores = torch.nn.functional.one_hot(tokens, 20).double() - 1 / 20
    estimates = (advantages[..., None] * scores).mean(dim=2)
    _, noise = gradient_moments(shrunk, (0.2, 0.6), group_size)
    assert estimates.var(dim=0).sum(-1).tolist() == pytest.approx(noise.tolist(), rel=0.02)


def test_the_shrunken_baseline_wins_where_prompts_are_alike_and_loses_where_not():
    def ratio(rates, group_size):
        ours, theirs = (gradient_moments(b, rates, group_size)[1].sum() for b in (shrunk, "leave_one_out"))
        return (ours / theirs).item()

    assert ratio(ALIKE, 2) < 0.75
    assert ratio(ALIKE, 4) < 1 < ratio((0.02, 0.02, 0.98, 0.98), 4)


def k_of(within, between):
    def function(rates):
        p = torch.tensor(rates, dtype=torch.float64)
        return (within(p) / between(p)).item()

    return function


def mean_within(p):
    return (p * (1 - p)).mean()


def variance(p):
    return p.var(correction=0)


KS = {
    "nothing": (lambda rates: None, "not done yet"),
    "upside down": (k_of(variance, mean_within), "upside down"),
    "of the mean": (k_of(lambda p: p.mean() * (1 - p.mean()), variance), "not p (1 - p) of the mean"),
    "sd": (k_of(mean_within, lambda p: variance(p).sqrt()), "standard deviation in place"),
    "sample": (k_of(mean_within, lambda p: p.var()), "all the prompts there are"),
    "within": (k_of(mean_within, lambda p: torch.tensor(1.0)), "how far the prompts lie apart"),
    "four": (lambda rates: 4.0, "it should be"),
}


@pytest.mark.parametrize(("answer", "words"), KS.values(), ids=KS)
def test_wrong_k(said, answer, words):
    printed = said(check_k, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_k(said):
    assert said(check_k, k_of(mean_within, variance)).startswith("Right")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "Give a dict with the keys"),
        (dict.fromkeys(BASELINES), "Not done yet"),
        (BASELINES | {"0.5": "biased"}, "none of"),
        (BASELINES | {"mean of the group": "unbiased"}, "(G - 1) / G"),
        (BASELINES | {"0.5": "another direction"}, "no reward at all"),
        (BASELINES | {"median": "factor"}, "near 1/2"),
        (BASELINES | {"mean of the others": "factor"}, "never sees"),
    ],
)
def test_wrong_kinds(said, answer, words):
    printed = said(check_kinds, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_kinds_are_what_the_moments_say(said):
    assert said(check_kinds, dict(BASELINES)).startswith("Right")
    callables = {
        "mean of the group": "mean",
        "mean of the others": "leave_one_out",
        "0.5": lambda r: torch.full_like(r, 0.5),
        "median": lambda r: r.median(dim=1, keepdim=True).values,
    }
    for name, baseline in callables.items():
        weight, _ = gradient_moments(baseline, (0.2, 0.5, 0.9), 4)
        same = (weight - weight[0]).abs().max() < 1e-9
        kind = KINDS[0] if same and abs(weight[0] - 1) < 1e-9 else KINDS[1] if same else KINDS[2]
        assert kind == BASELINES[name]


WRONG_BASELINES = {
    "nothing": (lambda r: None, "not done yet"),
    "stub": (lambda r: r.mean(dim=1, keepdim=True), "Biased by a factor: the expected gradient is 0.750"),
    "flat": (lambda r: r.mean(dim=1), "has shape (3,)"),
    "first": (lambda r: r[:, :1].expand(r.shape).flip(1) * torch.arange(r.shape[1]), "order within a group"),
    "constant": (lambda r: torch.full_like(r, 0.5), "must rise by 10"),
    "zero over zero": (
        lambda r: r.mean(1, keepdim=True) * r.std(1, keepdim=True) / r.std(1, keepdim=True),
        "not finite",
    ),
    "max": (lambda r: r.amax(dim=1, keepdim=True), "Biased: prompts of success rates"),
    "leave one out": (lambda r: (r.sum(1, keepdim=True) - r) / (r.shape[1] - 1), "not less noisy"),
    "text": (lambda r: "mean", "is a str"),
}


@pytest.mark.parametrize(("answer", "words"), WRONG_BASELINES.values(), ids=WRONG_BASELINES)
def test_wrong_baselines(said, answer, words):
    printed = said(check_baseline, answer)
    assert words in printed
    assert not printed.startswith("Right")


@pytest.mark.parametrize("answer", [shrunk, rest_of_batch])
def test_right_baselines(said, answer):
    assert said(check_baseline, answer).startswith("Right: unbiased")
    assert len(UNLIKE) == len(ALIKE)
