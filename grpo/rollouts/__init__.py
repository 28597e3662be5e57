"""Rollout engines behind one protocol (base.py): hf.py samples with transformers, vllm_local.py with vLLM."""

from typing import Any, Literal

import torch

from grpo.rollouts.base import Completion, RolloutEngine, Sampling
from grpo.rollouts.hf import HFEngine
from grpo.rollouts.vllm_local import EngineError, VLLMEngine, check_vllm

__all__ = [
    "Completion",
    "EngineError",
    "HFEngine",
    "RolloutEngine",
    "Sampling",
    "VLLMEngine",
    "check_vllm",
    "open_engine",
]


def open_engine(
    name: str,
    model: Any,
    tokenizer: Any,
    *,
    max_batch_tokens: int = 65_536,
    autocast_dtype: torch.dtype | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
) -> HFEngine | VLLMEngine:
    """The engine of that name ("hf" or "vllm") over a policy.

    max_batch_tokens and autocast_dtype are hf's; dtype is that of vllm's copy of the policy. Raises as the engines do.
    """
    if name == "vllm":
        return VLLMEngine(model, tokenizer, dtype=dtype)
    return HFEngine(model, tokenizer, max_batch_tokens=max_batch_tokens, autocast_dtype=autocast_dtype)
