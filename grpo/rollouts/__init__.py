"""Rollout engines behind one protocol (base.py): hf.py samples with transformers, vllm_local.py with vLLM in a process of
its own, vllm_server.py with a vLLM server."""

from typing import Any

import torch

from grpo.rollouts.base import Completion, EngineError, RolloutEngine, Sampling
from grpo.rollouts.hf import HFEngine
from grpo.rollouts.options import EngineOptions, check_engine, check_vllm
from grpo.rollouts.vllm_common import DType
from grpo.rollouts.vllm_local import VLLMEngine
from grpo.rollouts.vllm_server import VLLMServerEngine

__all__ = [
    "Completion",
    "EngineError",
    "EngineOptions",
    "HFEngine",
    "RolloutEngine",
    "Sampling",
    "VLLMEngine",
    "VLLMServerEngine",
    "check_engine",
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
    dtype: DType = "auto",
    options: EngineOptions | None = None,
) -> HFEngine | VLLMEngine | VLLMServerEngine:
    """The engine of that name ("hf", "vllm" or "vllm-server") over a policy.

    max_batch_tokens and autocast_dtype are hf's; options, and dtype of their copy of the policy, are the others'. Raises as
    the engines do.
    """
    if name == "vllm":
        return VLLMEngine(model, tokenizer, dtype=dtype, options=options)
    if name == "vllm-server":
        return VLLMServerEngine(model, tokenizer, dtype=dtype, options=options)
    return HFEngine(model, tokenizer, max_batch_tokens=max_batch_tokens, autocast_dtype=autocast_dtype)
