"""One group's rewards under every estimator: what the group lab computes, as a plain function."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.advantages import ESTIMATORS, compute_group_normalized_rewards

LARGEST_GROUP = 16
FORMULAS = {
    ("none", "none"): "r",
    ("mean", "std"): "(r - μ) / (s + ε)",
    ("mean", "none"): "r - μ",
    ("mean", "mean"): "(r - μ) / (μ + ε)",
    ("leave_one_out", "none"): "r - mean of the others",
}
"""Of each (baseline, advantage normalizer) in ESTIMATORS."""
SMALL_SPREAD = 0.1


@dataclass(frozen=True)
class GroupRow:
    """What the estimators of one formula make of a group; they may differ in how the loss is normalized."""

    names: tuple[str, ...]
    formula: str
    advantages: list[float] | None
    """None where the estimator refuses the group."""
    note: str
    """What is degenerate: why it refuses, why there is no signal, what it never does. Empty in the ordinary case."""


@dataclass(frozen=True)
class Group:
    """What `compute_group` returns."""

    rewards: list[float]
    mean: float
    std: float | None
    """Sample standard deviation; None for one reward."""
    rows: list[GroupRow]


def parse_rewards(text: str) -> list[float]:
    """Read numbers separated by spaces or commas. Raises ValueError, naming it, for what is no finite number."""
    rewards = []
    for word in re.split(r"[\s,;]+", text.strip(" \t\n,;[]()")):
        try:
            rewards.append(float(word))
        except ValueError:
            raise ValueError(
                f"rewards: {word!r} is no number; type numbers with spaces or commas between them"
            ) from None
        if not math.isfinite(rewards[-1]):
            raise ValueError(f"rewards: {word!r} is not finite; a reward must be a finite number")
    if len(rewards) > LARGEST_GROUP:
        raise ValueError(f"rewards: {len(rewards)} of them; the lab shows groups of up to {LARGEST_GROUP}")
    return rewards


def compute_group(rewards: Sequence[float]) -> Group:
    """Give one group to every estimator of `grpo.advantages.ESTIMATORS`, those of the same formula together.

    Raises ValueError for rewards that no estimator takes: none at all, or one that is not finite.
    """
    values = torch.tensor(list(rewards), dtype=torch.float64)
    if not len(values) or not values.isfinite().all():
        raise ValueError(f"rewards={list(rewards)} must be one or more finite numbers")
    rows = []
    for choice, formula in FORMULAS.items():
        baseline, normalizer = choice
        names = tuple(n for n, e in ESTIMATORS.items() if (e["baseline"], e["advantage_normalizer"]) == choice)
        try:
            advantages, _ = compute_group_normalized_rewards(
                values, len(values), baseline=baseline, advantage_normalizer=normalizer
            )
        except ValueError as error:
            rows.append(GroupRow(names, formula, None, f"refuses: {error}"))
            continue
        note = _note(values, advantages, baseline, normalizer)
        rows.append(GroupRow(names, formula, advantages.tolist(), note))
    std = values.std().item() if len(values) > 1 else None
    return Group(values.tolist(), values.mean().item(), std, rows)


def _note(rewards: torch.Tensor, advantages: torch.Tensor, baseline: str, normalizer: str) -> str:
    if (advantages == 0).all():
        return "no signal: all rewards are 0" if baseline == "none" else "no signal: all rewards are equal"
    if (advantages > 0).all():
        return "pushes every response up" if len(rewards) > 1 else "pushes it up"
    if (advantages < 0).all():
        return "pushes every response down" if len(rewards) > 1 else "pushes it down"
    if (advantages >= 0).all():
        return "pushes none down"
    if (advantages <= 0).all():
        return "pushes none up"
    spread = (rewards.max() - rewards.min()).item()
    if normalizer == "std" and spread < SMALL_SPREAD:
        return f"a spread of {spread:g} counts as much as one of 1"
    if normalizer == "mean" and rewards.mean() < SMALL_SPREAD:
        return f"divides by μ = {rewards.mean().item():.2g}"
    return ""
