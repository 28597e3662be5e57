"""grpo-lab: a GRPO core that can be read in one sitting, and the language-model pipeline around it.

Read tokenization, log_probs, rewards, advantages, losses, update and train_step, in that order.

Names are imported from their modules on first use: the sorting half of the course needs the losses, not transformers.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "advantages": ("ESTIMATORS", "compute_group_normalized_rewards", "max_rewards"),
    "config": ("PRESETS", "TrainSettings", "preset"),
    "data": ("Problem", "fetch_gsm8k", "load_gsm8k", "load_jsonl"),
    "evaluation": ("evaluate", "summarize"),
    "grading": ("answers_equal", "parse_number", "question_only_reward_fn", "r1_zero_reward_fn"),
    "intervals": ("describe", "mean_interval", "wilson_interval"),
    "log_probs": ("get_response_log_probs", "log_probs_in_batches", "response_entropies"),
    "losses": ("aggregate_loss_across_microbatch", "compute_kl", "compute_policy_gradient_loss"),
    "models": ("load_model", "save_model"),
    "prompts": ("Prompt", "load_prompt", "prompt_names"),
    "rewards": ("compute_rollout_rewards", "pass_at_k"),
    "rollouts": (
        "Completion",
        "EngineError",
        "EngineOptions",
        "HFEngine",
        "RolloutEngine",
        "Sampling",
        "VLLMEngine",
        "VLLMServerEngine",
    ),
    "tokenization": ("tokenize_prompt_and_output",),
    "train_step": ("grpo_train_step",),
    "trainer": ("RunResult", "train"),
    "update": ("UpdateSettings", "policy_gradient_update"),
    "words": ("word_problems",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'grpo' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"grpo.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
