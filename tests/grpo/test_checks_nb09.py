"""Each check of notebook 09 says what is wrong with typical wrong answers, and passes the right one."""

import math

import pytest
import torch

from grpo.checks.nb09 import SEEDS_NEEDED, check_claim, check_interval, check_seeds
from grpo.intervals import mean_interval


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "Not done yet"),
        ("many", "no number of seeds"),
        (True, "no number of seeds"),
        (4, "Too few"),
        (34, "about 80%"),
        (11, "squared"),
        (86, "counted the variance of a run twice"),
        (60, "More than needed"),
    ],
)
def test_wrong_numbers_of_seeds(said, answer, words):
    printed = said(check_seeds, answer)
    assert words in printed
    assert not printed.startswith("Right")


@pytest.mark.parametrize("answer", [SEEDS_NEEDED, 43, 45.0])
def test_right_numbers_of_seeds(said, answer):
    assert said(check_seeds, answer).startswith("Right")


def test_the_number_of_seeds_is_where_the_power_passes_90_percent():
    """The interval of n pairs excludes 0, counted over 400,000 experiments; the counting error is 0.0005."""

    def power(n):
        generator = torch.Generator().manual_seed(n)
        draws = 0.02 + 0.04 * torch.randn(400_000, n, generator=generator, dtype=torch.float64)
        mean, half = mean_interval(draws.T)
        return (mean > half).double().mean().item()

    assert power(SEEDS_NEEDED - 2) < 0.9 < power(SEEDS_NEEDED + 1)
    assert 0.05 < power(4) < 0.15


@pytest.mark.parametrize(
    ("unpaired", "paired", "words"),
    [
        (None, "higher", "set my_unpaired"),
        ("no difference seen", None, "set my_paired"),
        ("better", "higher", "my_unpaired='better' is none of"),
        ("higher", "higher", "the interval contains 0"),
        ("lower", "higher", "the interval contains 0"),
        ("no difference seen", "lower", "positive for every seed"),
        ("no difference seen", "no difference seen", "Their own standard deviation"),
    ],
)
def test_wrong_verdicts(said, unpaired, paired, words):
    printed = said(lambda verdicts: check_claim(*verdicts), (unpaired, paired))
    assert words in printed
    assert not printed.startswith("Right")


def test_right_verdicts_and_their_numbers(said):
    printed = said(lambda verdicts: check_claim(*verdicts), ("no difference seen", "higher"))
    assert printed.startswith("Right")
    a = torch.tensor([0.731, 0.752, 0.718, 0.755], dtype=torch.float64)
    b = torch.tensor([0.744, 0.764, 0.733, 0.767], dtype=torch.float64)
    assert (b - a).mean().item() == pytest.approx(0.013)
    assert 2.447 * math.sqrt((a.var() + b.var()) / 4) == pytest.approx(0.029, abs=5e-4)
    assert 3.182 * (b - a).std().item() / 2 == pytest.approx(0.002, abs=5e-4)


def interval(factor, correction=1, root=True, whole=1.0):
    def function(values):
        table = torch.tensor(values, dtype=torch.float64)
        n = len(values)
        t = mean_interval(table)[1].item() * math.sqrt(n) / table.std().item() if factor == "t" else factor
        scale = {True: math.sqrt(n), False: 1.0, "n": n}[root]
        return table.mean().item(), whole * t * table.std(correction=correction).item() / scale

    return function


INTERVALS = {
    "nothing": (lambda v: None, "not done yet"),
    "stub": (interval(1.96, 0, False), "population's s, not the error of the mean"),
    "single runs": (interval(1.96, 1, False), "smaller, by sqrt(n)"),
    "no factor": (interval(1.0), "where is the factor"),
    "normal": (interval(1.96), "take Student's t"),
    "normal, population": (interval(1.96, 0), "divide by n - 1, and take Student's t"),
    "population": (interval("t", 0), "population's standard deviation"),
    "t of single runs": (interval("t", 1, False), "Student's t, but for single runs"),
    "whole width": (interval("t", whole=2.0), "give half of it"),
    "by n": (interval("t", 1, "n"), "falls with sqrt(n)"),
    "n degrees": (
        lambda v: (
            sum(v) / len(v),
            {2: 4.302653, 3: 3.182446, 4: 2.776445, 8: 2.306004}[len(v)] * torch.tensor(v).std() / len(v) ** 0.5,
        ),
        "n seeds leave n - 1",
    ),
    "other": (interval(5.0), "it should be"),
    "median": (lambda v: (sorted(v)[0], 0.1), "the mean is"),
    "one number": (lambda v: 0.5, "cannot be read"),
}


@pytest.mark.parametrize(("answer", "words"), INTERVALS.values(), ids=INTERVALS)
def test_wrong_intervals(said, answer, words):
    printed = said(check_interval, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_interval(said):
    assert said(check_interval, interval("t")).startswith("Right")
