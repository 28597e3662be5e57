"""One step of GRPO: rollouts in, parameters moved once, loss and metrics out.

`grpo_train_step` is the whole of it for one batch: tokenize, grade, turn rewards into advantages, and hand over to
`grpo.update`, which does the forward and backward passes. The trainer, which can use a batch of rollouts for several
updates, grades it once and calls the update itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grpo.advantages import (
    RewardTransform,
    check_advantage_settings,
    check_whole_groups,
    compute_group_normalized_rewards,
)
from grpo.losses import ClipRange
from grpo.rewards import RewardFn, compute_rollout_rewards, pass_at_k
from grpo.tokenization import check_same_length, tokenize_prompt_and_output
from grpo.update import UpdateSettings, check_batch, policy_gradient_update


def summarize_rollouts(
    reward_metadata: dict[str, Any],
    advantage_metadata: dict[str, float],
    response_mask: Tensor,
    group_size: int,
) -> dict[str, float]:
    """Metrics of a batch of rollouts that no update changes: rewards, pass@k, groups without signal, lengths in tokens."""
    lengths = response_mask.sum(dim=1).to(torch.float32)
    correct = (reward_metadata["answer_rewards"] == 1).view(-1, group_size)
    summary = {name: reward_metadata[name] for name in ("reward", "format_reward", "answer_reward")}
    summary |= {f"pass@{k}": pass_at_k(correct, k) for k in range(1, group_size + 1)}
    summary["zero_spread"] = advantage_metadata["zero_spread"]
    summary["response_length_mean"] = lengths.mean().item()
    summary["response_length_max"] = lengths.max().item()
    return summary


def grpo_train_step(
    model: nn.Module,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    gradient_accumulation_steps: int,
    max_grad_norm: float | None,
    reward_fn: RewardFn,
    repeated_prompts: Sequence[str],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    baseline: str | RewardTransform = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: str | RewardTransform = "std",
    importance_reweighting_method: str = "none",
    old_log_probs: Tensor | None = None,
    cliprange: ClipRange | None = None,
    loss_normalization: str = "sequence",
    normalization_constant: float | None = None,
    *,
    response_token_ids: Sequence[Sequence[int]] | None = None,
    ref_log_probs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: str = "k3",
    temperature: float = 1.0,
    prune_zero_advantages: bool = True,
    autocast_dtype: torch.dtype | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Grade N rollouts, compute their advantages and move the parameters once: one step of GRPO or of a relative.

    repeated_prompts, rollout_responses, repeated_ground_truths: N strings each, N = prompts x group_size, the rollouts of
        one prompt adjacent. response_token_ids: the sampled ids, used in place of re-tokenized responses.
    baseline, advantage_eps, advantage_normalizer: see grpo.advantages. old_log_probs, ref_log_probs: (N, T), T the padded
        length of this batch less one. Everything else: see UpdateSettings.

    Returns the loss of the batch, as if in one microbatch, and metadata: what policy_gradient_update and
    summarize_rollouts report. Every param.grad is None afterwards.

    Raises ValueError before anything is graded or computed when arguments do not fit each other, and what
    compute_rollout_rewards raises for a faulty reward_fn.
    """
    settings = UpdateSettings(
        gradient_accumulation_steps=gradient_accumulation_steps,
        max_grad_norm=max_grad_norm,
        importance_reweighting_method=importance_reweighting_method,
        cliprange=cliprange,
        loss_normalization=loss_normalization,
        normalization_constant=normalization_constant,
        kl_coef=kl_coef,
        kl_estimator=kl_estimator,
        temperature=temperature,
        prune_zero_advantages=prune_zero_advantages,
        autocast_dtype=autocast_dtype,
    )
    check_advantage_settings(group_size, baseline, advantage_eps, advantage_normalizer)
    lists: dict[str, Sequence[Any]] = {
        "repeated_prompts": repeated_prompts,
        "rollout_responses": rollout_responses,
        "repeated_ground_truths": repeated_ground_truths,
    }
    lists |= {"response_token_ids": response_token_ids} if response_token_ids is not None else {}
    check_same_length(lists)
    check_whole_groups("rollout_responses", len(rollout_responses), group_size)
    batch = tokenize_prompt_and_output(
        repeated_prompts, rollout_responses, tokenizer, output_token_ids=response_token_ids
    )
    check_batch(model, batch, settings, old_log_probs, ref_log_probs)

    raw_rewards, reward_metadata = compute_rollout_rewards(reward_fn, rollout_responses, repeated_ground_truths)
    advantages, advantage_metadata = compute_group_normalized_rewards(
        raw_rewards, group_size, baseline, advantage_eps, advantage_normalizer
    )
    loss, metadata = policy_gradient_update(model, optimizer, batch, advantages, settings, old_log_probs, ref_log_probs)
    metadata |= summarize_rollouts(reward_metadata, advantage_metadata, batch["response_mask"], group_size)
    return loss, metadata
