"""Memory that a model needs, in bytes, counted without its weights: the real code runs on tensors that hold no data.

torch's fake tensors have a shape and a type and no storage. A forward and backward pass over them allocates, in name,
what it would allocate in truth, temporaries of the backward formulas too, so that nothing here is a formula for one
architecture. On a CPU the peak agrees with the one that torch's profiler measures (tests/grpo/test_footprint.py); a GPU's
kernels may need a little more or less.
"""

from __future__ import annotations

import functools
import json
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from grpo.log_probs import autocast, get_response_log_probs
from grpo.models import resolve_model
from grpo.rollouts.base import Sampling
from grpo.rollouts.hf import sample_tokens

# What allenai/OLMo-2-0425-1B's config.json says, so that a plan needs no download.
OLMO2_1B = {
    "model_type": "olmo2",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 8192,
    "vocab_size": 100_352,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_theta": 500_000.0,
}


def model_shape(name: str) -> str:
    """The config of a model as JSON; of olmo2-1b without a download, of a hub id by fetching its config.json alone.

    Raises ValueError when there is none to be had, and what resolve_model raises.
    """
    source = resolve_model(name)
    if name == "olmo2-1b":
        return json.dumps(OLMO2_1B)
    try:
        return json.dumps(AutoConfig.from_pretrained(source).to_dict(), default=str)
    except Exception as error:  # a missing file, a foreign format, an unreachable hub
        reason = str(error).splitlines()[0]
        raise ValueError(f"model={name!r}: no config could be read from {source!r} ({reason})") from error


def _build(shape: str) -> Any:
    values = json.loads(shape)
    values.pop("dtype", None)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def matmul_parameters(model: Any) -> int:
    """Parameters that each token is multiplied with: all matrices, less an embedding table that is only looked up."""
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return matrices - (0 if table is head else table.numel())


@dataclass(frozen=True)
class ModelSize:
    """How large a model is, in parameters and tokens."""

    parameters: int
    """All of them; tied ones once."""
    in_products: int
    """Those of matmul_parameters."""
    largest: int
    """Those of the largest tensor."""
    vocabulary: int
    """Rows of the output head."""
    context: int
    """Longest sequence."""


@functools.lru_cache
def model_size(shape: str) -> ModelSize:
    """Count a model's parameters, on torch's meta device."""
    with torch.device("meta"):
        model = _build(shape)
    numbers = [p.numel() for p in model.parameters()]
    config = model.config
    return ModelSize(
        sum(numbers), matmul_parameters(model), max(numbers), config.vocab_size, config.max_position_embeddings
    )


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make while it is on: `now`, and the most at any time, `peak`."""

    def __init__(self, *known: Tensor | None) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._counted = {t.untyped_storage()._cdata for t in known if t is not None}

    def watch(self, tensor: Tensor) -> None:
        """Count a tensor, until it is freed; views and the `known` tensors add nothing."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._counted:
            return
        self._counted.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.watch(leaf)
        return result


def _known(model: nn.Module) -> list[Tensor | None]:
    return [*model.parameters(), *(p.grad for p in model.parameters()), *model.buffers()]


@functools.lru_cache
def microbatch_bytes(
    shape: str, rows: int, width: int, *, half: bool, gradients: bool, temperature: float = 1.0
) -> tuple[int, int]:
    """What a forward and backward pass allocates: (kept from forward to backward, the most at any time).

    rows x width tokens. half: bfloat16 by autocast over float32 weights. gradients: they are there already and are added
    to, so that they are not counted; without it they are made here.
    """
    with FakeTensorMode():
        model = _build(shape)
        if gradients:
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
        ids = torch.zeros(rows, width, dtype=torch.long)
        with LiveBytes(*_known(model), ids) as live:
            with autocast("cpu", torch.bfloat16 if half else None):
                scored = get_response_log_probs(model, ids, ids, True, temperature=temperature)
            kept = live.now
            scored["log_probs"].sum().backward()
        return kept, live.peak


@functools.lru_cache
def generation_bytes(shape: str, rows: int, prompts: int, prompt: int, new: int, *, half: bool) -> tuple[int, int]:
    """What the hf engine allocates for a batch: (its key-value cache at the end, the most at any time).

    rows responses of `new` tokens each, to `prompts` distinct prompts of `prompt` tokens.
    """
    with FakeTensorMode(), torch.no_grad():
        model = _build(shape)
        dtype = torch.bfloat16 if half else None
        with LiveBytes(*_known(model)) as prefill, autocast("cpu", dtype):
            ids = torch.zeros(prompts, prompt, dtype=torch.long)
            cache = model(ids, use_cache=True, logits_to_keep=1, past_key_values=DynamicCache()).past_key_values
            cache.batch_select_indices(torch.zeros(rows, dtype=torch.long))
        with autocast("cpu", dtype):  # of the last step, only the cache that it finds
            ids = torch.zeros(rows, max(1, prompt + new - 2), dtype=torch.long)
            cache = model(ids, use_cache=True, logits_to_keep=1, past_key_values=DynamicCache()).past_key_values
        with LiveBytes(*_known(model)) as last, autocast("cpu", dtype):
            for layer in cache.layers:
                last.watch(layer.keys)
                last.watch(layer.values)
            logits = model(ids[:, :1], use_cache=True, past_key_values=cache).logits[:, -1]
            sample_tokens(logits, Sampling(), torch.Generator())
        kept = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
        return kept, max(prefill.peak, last.peak)


def cache_bytes_per_token(shape: str, *, half: bool) -> int:
    """Bytes that one token of one row has in the key-value cache: 2 x layers x key-value heads x head size x bytes."""
    return generation_bytes(shape, 1, 1, 1, 9, half=half)[0] // 9


def is_local(name: str) -> bool:
    """Whether the model is a folder on this machine."""
    return name != "olmo2-1b" and Path(resolve_model(name)).is_dir()
