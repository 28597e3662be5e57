"""Checks of notebook 09: seeds for a claim, a claim to judge, an interval.

Each check takes the learner's answer and prints one message. It raises for no answer, however wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from grpo.checks.judge import WrongAnswer, call, judged
from grpo.intervals import mean_interval

VERDICTS = ("higher", "lower", "no difference seen")
"""The answers that `check_claim` knows."""

SEEDS_NEEDED = 44
"""Pairs for a power of 90% at a difference of half a standard deviation, by the noncentral t distribution."""


def check_seeds(my_seeds: Any) -> None:
    """Print whether a number of seeds finds a difference of 0.02 at a pair's sd of 0.04 with a chance of 90%."""
    print(_seeds(my_seeds))


def check_claim(my_unpaired: Any, my_paired: Any) -> None:
    """Print whether two verdicts, of the unpaired and the paired comparison, are those of the intervals."""
    print(_claim(my_unpaired, my_paired))


def check_interval(my_interval: Callable[..., Any]) -> None:
    """Print whether a function of a list gives the mean and half width of Student's 95% interval."""
    print(_interval(my_interval))


def _seeds(answer: Any) -> str:
    if answer is None or answer is ...:
        return "Not done yet: set my_seeds to a number."
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        return f"my_seeds={answer!r} is no number of seeds."
    if abs(answer - SEEDS_NEEDED) <= 2:
        return (
            f"Right: {SEEDS_NEEDED} pairs, for a difference of half a standard deviation. With four seeds the chance is "
            "about one in ten."
        )
    if 31 <= answer <= 36:
        return "That gives a chance of about 80%; 90% was asked for."
    if 9 <= answer <= 13:
        return "The difference enters squared: (sd / difference)^2 is 4, not 2."
    if 80 <= answer <= 92:
        return "You counted the variance of a run twice: 0.04 is already that of the difference of a pair."
    if answer < SEEDS_NEEDED:
        return f"Too few: {answer:g} pairs find it less than 90% of the time. Try power(n, 0.02, 0.04) for growing n."
    return f"More than needed: fewer than {answer:g} pairs find it 90% of the time. Which is the smallest n?"


def _claim(unpaired: Any, paired: Any) -> str:
    for name, verdict in (("my_unpaired", unpaired), ("my_paired", paired)):
        if verdict is None or verdict is ...:
            return f"Not done yet: set {name} to one of {', '.join(map(repr, VERDICTS))}."
        if verdict not in VERDICTS:
            return f"{name}={verdict!r} is none of {', '.join(map(repr, VERDICTS))}."
    if unpaired != "no difference seen":
        return (
            "Unpaired: the means differ by 0.013, and the half width is 2.447 sqrt((s_a^2 + s_b^2) / 4) = 0.029: the "
            "interval contains 0."
        )
    if paired == "lower":
        return "Paired: B minus A is positive for every seed."
    if paired == "no difference seen":
        return (
            "Paired: the four differences are 0.013, 0.012, 0.015, 0.012. Their own standard deviation is what counts."
        )
    return (
        "Right: 0.013 ± 0.029 unpaired, 0.013 ± 0.002 paired. The same numbers, and what they show depends on whether "
        "the seeds are pairs. They must be pairs by design, not by luck of the order."
    )


@judged
def _interval(function: Callable[..., Any]) -> str:
    for values in (
        [0.71, 0.75, 0.68],
        [0.2, 0.4, 0.9, 0.7],
        [0.5, 0.52, 0.44, 0.61, 0.6, 0.57, 0.49, 0.51],
        [0.3, 0.5],
    ):
        n = len(values)
        setting = f"the {n} values {values}"
        result = call(function, list(values), setting=setting)
        mean, half = (float(part) for part in result)
        table = torch.tensor(values, dtype=torch.float64)
        right = mean_interval(table)[1].item()
        if abs(mean - table.mean().item()) > 1e-5:
            raise WrongAnswer(f"With {setting}: the mean is {table.mean().item():.4f}, not {mean:.4f}.")
        if abs(half - right) < 1e-5:
            continue
        s, t = table.std().item(), right * math.sqrt(n) / table.std().item()
        population = table.std(correction=0).item()
        mistakes = {
            "the spread of single runs, with the population's s, not the error of the mean": 1.96 * population,
            "the spread of single runs: the mean's error is smaller, by sqrt(n)": 1.96 * s,
            "the standard error alone: where is the factor?": s / math.sqrt(n),
            "1.96 standard errors: with so few seeds take Student's t": 1.96 * s / math.sqrt(n),
            "1.96 standard errors with the population's s: divide by n - 1, and take Student's t": 1.96
            * population
            / math.sqrt(n),
            "made with the population's standard deviation: divide by n - 1": t * population / math.sqrt(n),
            "Student's t, but for single runs: divide by sqrt(n)": t * s,
            "the whole width; give half of it": 2 * right,
            "divided by n: the mean's error falls with sqrt(n)": t * s / n,
            "made with t of n degrees of freedom, or another t: n seeds leave n - 1": _half(table, n),
        }
        for message, wrong in mistakes.items():
            if abs(half - wrong) < 1e-5:
                raise WrongAnswer(f"With {setting}: your half width is {message}.")
        raise WrongAnswer(f"With {setting}: your half width is {half:.4f}; it should be {right:.4f}.")
    return "Right: an interval that holds the true mean in 95 of 100 experiments, for two seeds as for eight."


_T_OF_N = {2: 4.302653, 3: 3.182446, 4: 2.776445, 8: 2.306004}


def _half(values: torch.Tensor, degrees: int) -> float:
    """The half width that one gets with t of that many degrees of freedom."""
    return _T_OF_N[degrees] * values.std().item() / math.sqrt(len(values))
