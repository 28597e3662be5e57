"""Each check of notebook 11 says what is wrong with typical wrong answers, and passes right ones."""

from pathlib import Path

import pytest
import torch

from grpo.own import load_own
from toyrl.batches import gradient_moments
from toyrl.checks.nb11 import ALIKE, BASELINES, KINDS, UNLIKE, check_baseline, check_k, check_kinds

shrunk = load_own("baseline", f"{Path(__file__).resolve().parents[2]}/data/experiments/own.py:shrunk")


def rest_of_batch(rewards):
    """The mean of all other responses of the batch, of whatever prompt."""
    others = rewards.numel() - 1
    return (rewards.sum() - rewards) / max(others, 1) if others else rewards


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
