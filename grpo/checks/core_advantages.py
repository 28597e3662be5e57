"""Core check of advantages: rewards of three groups of four, and what every setting makes of them, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo.checks.judge import Mistakes, WrongAnswer, as_tensor, call, expect, judged, value_and_metadata

REWARDS = torch.tensor([[1, 0, 0, 3], [4, 8, 0, 0], [6, 0, 4, 2]], dtype=torch.float64)
DEVIATIONS = torch.tensor([[0, -1, -1, 2], [1, 5, -3, -3], [3, -3, 1, -1]], dtype=torch.float64)
MEANS = torch.tensor([[1], [3], [3]], dtype=torch.float64)
VARIANCES = torch.tensor([[6 / 3], [44 / 3], [20 / 3]], dtype=torch.float64)
"""Sample variances: the squared deviations summed, over G - 1 = 3."""
EPS = 0.5
"""Far from 0, so that its place shows."""


@judged
def check_compute_group_normalized_rewards(function: Callable[..., Any]) -> str:
    """Every named baseline and normalizer, callables, equal rewards, a group of one."""
    _check(function, "mean", "std", DEVIATIONS / (VARIANCES.sqrt() + EPS), _std_mistakes())
    from_std = (DEVIATIONS / (VARIANCES.sqrt() + EPS), "still (r - mu) / (s + eps): the settings are not used.")
    centered = (DEVIATIONS, "this is r - mu: ")
    raw = (REWARDS, "this is r: ")
    _check(function, "mean", "none", DEVIATIONS, [from_std, (raw[0], raw[1] + "subtract the group's mean.")])
    _check(function, "none", "none", REWARDS, [from_std, (centered[0], centered[1] + "without a baseline it is r.")])
    _check(
        function,
        "mean",
        "mean",
        DEVIATIONS / (MEANS + EPS),
        [
            from_std,
            (DEVIATIONS / MEANS, "eps is missing: it is (r - mu) / (mu + eps)."),
            (REWARDS / (MEANS + EPS), "r / mu: subtract the mean first, (r - mu) / (mu + eps)."),
            (DEVIATIONS / (REWARDS.mean() + EPS), "you divide by the mean over the batch; take the group's."),
        ],
    )
    _check(
        function,
        "leave_one_out",
        "none",
        DEVIATIONS * 4 / 3,
        [
            from_std,
            (
                centered[0],
                centered[1] + "leave the reward itself out of its baseline, which gives (r - mu) G / (G - 1).",
            ),
            (REWARDS - (4 * MEANS - REWARDS) / 4, "the others' sum is divided by G; there are G - 1 others."),
            (REWARDS - 4 * MEANS / 3, "the sum still holds the reward itself: take it out, then divide by G - 1."),
            (DEVIATIONS * 3 / 4, "the factor is upside down: G / (G - 1)."),
        ],
    )
    _check(
        function,
        lambda r: r.amax(dim=1, keepdim=True),
        lambda r: 2 * torch.ones_like(r),
        (REWARDS - torch.tensor([[3.0], [8.0], [6.0]])) / 2,
        [
            from_std,
            ((REWARDS - 8) / 2, "a callable gets the (groups, group_size) table; yours got the rewards of the batch."),
            (
                (REWARDS - torch.tensor([[3.0], [8.0], [6.0]])) / 2.5,
                "a callable's divisor is taken as it is, without eps.",
            ),
        ],
    )
    _check_corners(function)
    return "Right: every baseline and normalizer, within each group, with eps beside the standard deviation."


def _check(function: Callable[..., Any], baseline: Any, normalizer: Any, right: Tensor, mistakes: Mistakes) -> None:
    named = [name if isinstance(name, str) else "a callable" for name in (baseline, normalizer)]
    setting = "baseline={!r}, advantage_normalizer={!r}".format(*named)
    given = REWARDS.reshape(-1).clone()
    result = call(function, given, 4, baseline, EPS, normalizer, setting=setting)
    advantages = value_and_metadata(result, "advantages")
    found = as_tensor(advantages, "advantages", (12,), "One number a rollout, in the order of the rewards: flatten it.")
    expect(
        found, right.reshape(-1), [(wrong.reshape(-1), message) for wrong, message in mistakes], "advantages", setting
    )
    if not given.equal(REWARDS.reshape(-1)):
        raise WrongAnswer("The rewards that you were given have changed: do not compute in place (-=, /=).")


def _std_mistakes() -> Mistakes:
    s, population = VARIANCES.sqrt(), (VARIANCES * 3 / 4).sqrt()
    overall, overall_mean = REWARDS.std(), REWARDS.mean()
    columns = REWARDS.reshape(4, 3)
    by_column = ((columns - columns.mean(dim=0)) / (columns.std(dim=0) + EPS)).reshape(3, 4)
    return [
        (
            DEVIATIONS / (overall + EPS),
            "std over the batch instead of the group: the mean is the group's, the standard deviation that of all rewards. "
            "Take both along dim=1.",
        ),
        ((REWARDS - overall_mean) / (overall + EPS), "mean and std over the batch instead of the group: use dim=1."),
        ((REWARDS - overall_mean) / (s + EPS), "mean over the batch instead of the group: use dim=1 there too."),
        (
            DEVIATIONS / (population + EPS),
            "population std, which divides by G: take the sample's, by G - 1 (correction=1).",
        ),
        (DEVIATIONS / (VARIANCES + EPS).sqrt(), "eps is inside the root: sqrt(variance + eps). It is std + eps."),
        (DEVIATIONS / (VARIANCES * 3 / 4 + EPS).sqrt(), "eps is inside the root, and the variance divides by G."),
        (DEVIATIONS / s + EPS, "eps is outside the fraction: parentheses, (r - mu) / (s + eps)."),
        (DEVIATIONS / s, "eps is missing: divide by s + eps."),
        (DEVIATIONS / s.clamp(min=EPS), "eps is used as a smallest std; it is added to it."),
        (DEVIATIONS / (VARIANCES + EPS), "this divides by the variance: the standard deviation is its root."),
        (DEVIATIONS, "this is r - mu, not divided by s + eps."),
        (REWARDS / (s + EPS), "this is r / (s + eps): subtract the group's mean."),
        (-DEVIATIONS / (s + EPS), "wrong sign: a reward above the mean must get a positive advantage, r - mu."),
        (by_column, "you group rollouts 0, 3, 6, 9: rollouts of one prompt are adjacent. View as (-1, group_size)."),
    ]


def _check_corners(function: Callable[..., Any]) -> None:
    setting = "eight rewards of 0.1"
    equal = value_and_metadata(call(function, torch.full((8,), 0.1), 8, setting=setting), "advantages")
    found = as_tensor(equal, "advantages", (8,))
    if not (found.abs() < 1e-6).all():  # also for NaN
        raise WrongAnswer(
            f"Almost. {setting[0].upper()}{setting[1:]} get advantages of {found[0]:.3g}; equal rewards must get 0. The "
            "mean of eight 0.1 is not 0.1 in floating point, and rounding error over eps is no advantage: give groups "
            "whose rewards are all equal a 0."
        )
    alternative = value_and_metadata(call(function, torch.tensor([1.0, 0.0, 0.0, 0.0]), 4), "advantages")
    expect(
        as_tensor(alternative, "advantages", (4,)),
        torch.tensor([1.5, -0.5, -0.5, -0.5], dtype=torch.float64),
        [],
        "advantages",
        "the defaults and rewards 1, 0, 0, 0",
    )
    try:
        single = function(torch.tensor([1.0, 0.0]), 1)
    except Exception:  # to refuse is right
        return
    if isinstance(single, tuple) and not as_tensor(single[0], "advantages", (2,)).isfinite().all():
        raise WrongAnswer("With group_size=1 you return NaN: one reward has no sample std. Raise a ValueError.")
