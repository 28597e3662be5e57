"""Advantages: how much better a rollout did than the others that answered the same prompt.

Rewards come as one number a rollout, the rollouts of one prompt adjacent. Viewed as a table of (groups, group_size), every
estimator of this course is the same two moves along a row,

    A = (r - baseline) / normalizer,

with r the reward, mu and s the group's mean and sample standard deviation:

    name           baseline         normalizer   loss normalization   advantage
    reinforce      none             none         sequence             r
    grpo           mean             std          sequence             (r - mu) / (s + eps)
    grpo_constant  mean             std          constant             (r - mu) / (s + eps)
    dr_grpo        mean             none         constant             r - mu
    rft            none             none         constant             r
    maxrl          mean             mean         constant             (r - mu) / (mu + eps)
    rloo           leave_one_out    none         sequence             (r - mu) * G / (G - 1)

A callable in the place of either name gets the (groups, group_size) rewards: that is how one tries one's own estimator.
On the command line and in a sweep's file it is "FILE.py:FUNCTION" (grpo/own.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

RewardTransform = Callable[[Tensor], Tensor]

BASELINES = ("none", "mean", "leave_one_out")
ADVANTAGE_NORMALIZERS = ("none", "std", "mean")

# name -> the three settings that make it; GRPO: Shao et al. 2024, Dr. GRPO: Liu et al. 2025, RLOO: Ahmadian et al. 2024,
# MaxRL: Tajwar et al. 2026, REINFORCE: Williams 1992. RFT is rejection fine-tuning written as a policy gradient.
ESTIMATORS: dict[str, dict[str, str]] = {
    "reinforce": {"baseline": "none", "advantage_normalizer": "none", "loss_normalization": "sequence"},
    "grpo": {"baseline": "mean", "advantage_normalizer": "std", "loss_normalization": "sequence"},
    "grpo_constant": {"baseline": "mean", "advantage_normalizer": "std", "loss_normalization": "constant"},
    "dr_grpo": {"baseline": "mean", "advantage_normalizer": "none", "loss_normalization": "constant"},
    "rft": {"baseline": "none", "advantage_normalizer": "none", "loss_normalization": "constant"},
    "maxrl": {"baseline": "mean", "advantage_normalizer": "mean", "loss_normalization": "constant"},
    "rloo": {"baseline": "leave_one_out", "advantage_normalizer": "none", "loss_normalization": "sequence"},
}


def check_choice(argument: str, value: object, known: Sequence[str], callable_too: bool = False) -> None:
    """Raise a ValueError that names the argument, the value and the known ones, unless `value` is one of them."""
    if value in known or (callable_too and callable(value)):
        return
    extra = ", or a callable" if callable_too else ""
    raise ValueError(f"{argument}={value!r} is unknown; choose one of {', '.join(map(repr, known))}{extra}")


def check_whole_groups(argument: str, rollouts: int, group_size: int) -> None:
    """Raise ValueError unless `rollouts` is a positive multiple of group_size."""
    if rollouts < 1 or rollouts % group_size:
        raise ValueError(
            f"{argument} has {rollouts} rollouts, which is no positive multiple of group_size={group_size}; "
            "every prompt needs a whole group"
        )


def check_advantage_settings(
    group_size: int,
    baseline: str | RewardTransform,
    advantage_eps: float,
    advantage_normalizer: str | RewardTransform,
) -> None:
    """Raise ValueError for settings of an estimator that cannot work, whatever the rewards will be."""
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
        raise ValueError(f"group_size={group_size!r} must be an integer of at least 1")
    check_choice("baseline", baseline, BASELINES, callable_too=True)
    check_choice("advantage_normalizer", advantage_normalizer, ADVANTAGE_NORMALIZERS, callable_too=True)
    if not (math.isfinite(advantage_eps) and advantage_eps >= 0):
        raise ValueError(f"advantage_eps={advantage_eps!r} must be a finite number of at least 0")
    for argument, value, needs_two in (
        ("advantage_normalizer", advantage_normalizer, "std"),
        ("baseline", baseline, "leave_one_out"),
    ):
        if group_size == 1 and value == needs_two:
            raise ValueError(f"group_size=1 with {argument}={value!r}: one reward has no others; use group_size >= 2")


def to_groups(raw_rewards: Tensor | Sequence[float], group_size: int) -> Tensor:
    """View N rewards as a (N / group_size, group_size) table of floats, the rollouts of one prompt in a row.

    Raises ValueError when the rewards are not one number a rollout, not a multiple of group_size, empty, or not finite
    (the message names the rollout).
    """
    rewards = torch.as_tensor(raw_rewards)
    if rewards.dtype != torch.float64:  # half precision has no room for a mean of 1/3, nor for eps
        rewards = rewards.to(torch.float32)
    if rewards.ndim != 1:
        raise ValueError(f"raw_rewards has shape {tuple(rewards.shape)}; expected one number a rollout, shape (N,)")
    check_whole_groups("raw_rewards", len(rewards), group_size)
    bad = torch.nonzero(~torch.isfinite(rewards)).flatten().tolist()
    if bad:
        raise ValueError(
            f"raw_rewards[{bad[0]}]={rewards[bad[0]].item()} is not finite; a reward must be a finite number"
        )
    return rewards.view(-1, group_size)


def max_rewards(rewards: Tensor) -> Tensor:
    """The lecture's "maximum only", as a baseline: the reward itself off the group's maximum, 0 on it.

    rewards: (groups, group_size). Subtracted from them it leaves r where r is the group's maximum (ties included), else 0.
    """
    return torch.where(rewards == rewards.amax(dim=1, keepdim=True), torch.zeros_like(rewards), rewards)


def _call(argument: str, function: RewardTransform, rewards: Tensor) -> Tensor:
    """Call a user's baseline or normalizer, and check that its result fits the table of rewards."""
    groups, group_size = rewards.shape
    returned = function(rewards.clone())
    try:
        result = torch.as_tensor(returned, dtype=rewards.dtype, device=rewards.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the {argument} callable returned {returned!r} for rewards of shape {(groups, group_size)}; "
            f"expected a tensor of shape {(groups, 1)} or {(groups, group_size)}"
        ) from error
    if tuple(result.shape) not in {(), (1, 1), (groups, 1), (groups, group_size)}:
        raise ValueError(
            f"the {argument} callable returned shape {tuple(result.shape)} for rewards of shape {(groups, group_size)}; "
            f"expected {(groups, 1)} (use keepdim=True) or {(groups, group_size)}"
        )
    if not torch.isfinite(result).all():
        raise ValueError(f"the {argument} callable returned a value that is not finite; expected finite numbers")
    if argument == "advantage_normalizer" and (result == 0).any():
        raise ValueError("the advantage_normalizer callable returned 0; it is the divisor as it stands, so add an eps")
    return result


def compute_group_normalized_rewards(
    raw_rewards: Tensor | Sequence[float],
    group_size: int,
    baseline: str | RewardTransform = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: str | RewardTransform = "std",
) -> tuple[Tensor, dict[str, float]]:
    """Turn raw rewards into advantages within each group: (r - baseline) / normalizer.

    raw_rewards: (N,), N = prompts x group_size, rollouts of one prompt adjacent.
    baseline: "none" (0), "mean" (mu), "leave_one_out" (the mean of the *other* rewards) or a callable whose result is
        subtracted. advantage_normalizer: "none" (1), "std" (s + eps, s the sample standard deviation), "mean" (mu + eps,
        MaxRL) or a callable whose result is the divisor as it stands. Callables get the (groups, group_size) rewards.

    Returns the advantages, (N,), and metadata: reward_mean, reward_std, reward_min, reward_max over all rollouts, and
    zero_spread, the share of groups whose rewards are all equal. Such a group gets exactly 0 from "mean" and
    "leave_one_out": it says nothing about which rollout was better.

    >>> compute_group_normalized_rewards([1.0, 0.0, 0.0, 0.0], group_size=4, advantage_eps=0.0)[0].tolist()
    [1.5, -0.5, -0.5, -0.5]

    Raises ValueError for rewards that make no whole groups, unknown names, a group of one where "std" or
    "leave_one_out" needs two, and negative rewards under "mean", whose weights 1/mu are defined for rewards >= 0 only.
    """
    check_advantage_settings(group_size, baseline, advantage_eps, advantage_normalizer)
    rewards = to_groups(raw_rewards, group_size)
    if advantage_normalizer == "mean" and (rewards < 0).any():
        raise ValueError(
            f"raw_rewards holds {rewards.min().item()}; advantage_normalizer='mean' (MaxRL) needs rewards >= 0"
        )

    # Eight times 0.1 does not average to 0.1 in floating point, and the difference divided by eps is no advantage:
    # equal rewards take their own value as the mean, and no spread, by definition.
    first = rewards[:, :1]
    equal = (rewards == first).all(dim=1, keepdim=True)
    mean = torch.where(equal, first, rewards.mean(dim=1, keepdim=True))

    if callable(baseline):
        centered = rewards - _call("baseline", baseline, rewards)
    elif baseline == "none":
        centered = rewards
    elif baseline == "mean":
        centered = rewards - mean
    else:
        centered = (rewards - mean) * (group_size / (group_size - 1))

    if callable(advantage_normalizer):
        advantages = centered / _call("advantage_normalizer", advantage_normalizer, rewards)
    elif advantage_normalizer == "none":
        advantages = centered.clone()
    elif advantage_normalizer == "std":
        std = torch.where(equal, torch.zeros_like(mean), rewards.std(dim=1, keepdim=True))
        advantages = _divide(centered, std + advantage_eps)
    else:
        advantages = _divide(centered, mean + advantage_eps)

    metadata = {
        "reward_mean": rewards.mean().item(),
        "reward_std": rewards.std().item() if rewards.numel() > 1 else 0.0,
        "reward_min": rewards.min().item(),
        "reward_max": rewards.max().item(),
        "zero_spread": equal.to(torch.float32).mean().item(),
    }
    return advantages.reshape(-1), metadata


def _divide(centered: Tensor, divisor: Tensor) -> Tensor:
    """centered / divisor, where 0 / 0 (a group without spread, eps = 0) is the 0 that it is for every eps > 0."""
    return torch.where(centered == 0, torch.zeros_like(centered), centered / divisor)
