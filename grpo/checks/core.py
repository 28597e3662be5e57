"""The core checks by the name of the function that they check, in the order in which one writes them."""

from __future__ import annotations

from grpo.checks.core_advantages import check_compute_group_normalized_rewards
from grpo.checks.core_grading import check_question_only_reward_fn, check_r1_zero_reward_fn
from grpo.checks.core_log_probs import check_get_response_log_probs
from grpo.checks.core_losses import check_aggregate_loss_across_microbatch, check_compute_kl
from grpo.checks.core_policy_loss import check_compute_policy_gradient_loss
from grpo.checks.core_step import check_grpo_train_step
from grpo.checks.core_text import check_compute_rollout_rewards, check_tokenize_prompt_and_output
from grpo.checks.judge import Check

CORE_CHECKS: dict[str, Check] = {
    "tokenize_prompt_and_output": check_tokenize_prompt_and_output,
    "get_response_log_probs": check_get_response_log_probs,
    "compute_rollout_rewards": check_compute_rollout_rewards,
    "compute_group_normalized_rewards": check_compute_group_normalized_rewards,
    "compute_policy_gradient_loss": check_compute_policy_gradient_loss,
    "aggregate_loss_across_microbatch": check_aggregate_loss_across_microbatch,
    "compute_kl": check_compute_kl,
    "r1_zero_reward_fn": check_r1_zero_reward_fn,
    "question_only_reward_fn": check_question_only_reward_fn,
    "grpo_train_step": check_grpo_train_step,
}
"""A check takes the learner's function and returns one message; "Right" is how it starts when all is right."""
