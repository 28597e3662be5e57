"""Rewards: rollouts and right answers go in, one number a rollout comes out.

A reward function takes (response, ground_truth) and returns a dict with "reward" (what is paid), "format_reward" and
"answer_reward" (what is only logged). Anything else it returns is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo.tokenization import check_same_length

RewardFn = Callable[[str, str], Mapping[str, float]]

_LARGEST_REWARD = torch.finfo(torch.float32).max
REWARD_KEYS = ("reward", "format_reward", "answer_reward")


def _grade_one(reward_fn: RewardFn, index: int, response: str, ground_truth: str) -> list[float]:
    """The three rewards of one rollout; every fault of the reward function names the rollout."""
    where = f"reward_fn on rollout_responses[{index}] (ground truth {ground_truth!r})"
    try:
        rewards = reward_fn(response, ground_truth)
    except Exception as error:
        raise RuntimeError(f"{where} raised {type(error).__name__}: {error}") from error
    missing = [key for key in REWARD_KEYS if not isinstance(rewards, Mapping) or key not in rewards]
    if missing:
        raise ValueError(
            f"{where} returned {rewards!r}, which lacks {missing}; expected a dict with {list(REWARD_KEYS)}"
        )
    values = []
    for key in REWARD_KEYS:
        try:
            value = float(rewards[key])
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{where} returned {key}={rewards[key]!r}; expected a number") from error
        except OverflowError:
            value = math.inf
        if not abs(value) <= _LARGEST_REWARD:
            raise ValueError(f"{where} returned {key}={value}; expected a finite number (float32 holds the rewards)")
        values.append(value)
    return values


def compute_rollout_rewards(
    reward_fn: RewardFn, rollout_responses: Sequence[str], repeated_ground_truths: Sequence[str]
) -> tuple[Tensor, dict[str, Any]]:
    """Grade every rollout.

    rollout_responses, repeated_ground_truths: N strings each, the ground truth repeated for each rollout of its prompt.

    Returns raw_rewards (N,), float32, and metadata: the means reward, format_reward and answer_reward, and under
    "format_rewards" and "answer_rewards" the (N,) tensors behind the last two.

    Raises ValueError for lists of different lengths or none at all, and for a result that lacks a key or holds something
    that is no finite number; RuntimeError when reward_fn itself raises. Each names the rollout.
    """
    check_same_length({"rollout_responses": rollout_responses, "repeated_ground_truths": repeated_ground_truths})
    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    table = torch.tensor([_grade_one(reward_fn, i, response, truth) for i, (response, truth) in enumerate(pairs)])
    raw_rewards, format_rewards, answer_rewards = table.unbind(dim=1)
    metadata: dict[str, Any] = {key: table[:, i].mean().item() for i, key in enumerate(REWARD_KEYS)}
    metadata |= {"format_rewards": format_rewards, "answer_rewards": answer_rewards}
    return raw_rewards, metadata


def pass_at_k(correct: Tensor, k: int) -> float:
    """Probability that at least one of k samples is right, unbiased from n >= k samples a prompt (Chen et al. 2021).

    correct: (prompts, n), bool. With c right ones of n: 1 - C(n - c, k) / C(n, k), averaged over prompts.
    Raises ValueError unless 1 <= k <= n.

    >>> pass_at_k(torch.tensor([[True, False, False, False]]), k=2)
    0.5
    """
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"k={k} must be from 1 to {n}, the number of samples a prompt")
    counts = correct.sum(dim=1).tolist()
    return sum(1 - math.comb(n - c, k) / math.comb(n, k) for c in counts) / len(counts)
