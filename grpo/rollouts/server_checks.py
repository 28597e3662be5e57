"""What a vLLM server must be like before its samples are trained on."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

from transformers import AutoConfig

from grpo.rollouts.base import EngineError
from grpo.rollouts.options import warn_of_version
from grpo.tokenization import encode

PROBE = f"{string.printable} What is 12 + 3? <think> </think> <answer> 15 </answer>"
SHAPE = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def check_server(request: Callable[..., Any], url: str, model: Any, tokenizer: Any) -> tuple[str, int]:
    """The name of the server's model, and its longest prompt + response in tokens.

    request: (path, body or None) -> the server's answer. Raises ValueError for a server that serves another model, or
    serves it in a way that does not fit training; EngineError when it does not answer.
    """
    try:
        served = request("/v1/models")["data"][0]
        name, root, context = served["id"], served.get("root") or served["id"], int(served["max_model_len"])
        warn_of_version(f"the vLLM at {url},", request("/version")["version"])
        tokens = request("/tokenize", {"model": name, "prompt": PROBE, "add_special_tokens": False})["tokens"]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise EngineError(f"does not answer like a vLLM server: {error!r}") from error
    ours = model.config._name_or_path or type(model).__name__
    other = f"engine_url={url!r} serves {root!r}, which is not the policy {ours!r}: "
    differ = _differing_shape(root, model)
    if differ:
        raise ValueError(f"{other}{differ}; start it with the policy's model")
    if tokens != encode([PROBE], tokenizer)[0]:
        raise ValueError(f"{other}its tokenizer makes other tokens of the same text; start it with the policy's model")
    try:
        config = request("/server_info?config_format=json")["vllm_config"]["model_config"]
    except (EngineError, TypeError, KeyError) as error:
        raise ValueError(
            f"engine_url={url!r} has no calls for weights and caches: start it with VLLM_SERVER_DEV_MODE=1 set ({error})"
        ) from error
    if config.get("logprobs_mode") != "processed_logprobs":
        raise ValueError(
            f"engine_url={url!r} gives {config.get('logprobs_mode')}, not those of the distribution that it samples from: "
            "start it with --logprobs-mode processed_logprobs"
        )
    return name, context


def _differing_shape(root: str, model: Any) -> str:
    """Sizes in which the server's model is another; "" where there are none, or its config cannot be had here."""
    try:
        theirs = AutoConfig.from_pretrained(root)
    except Exception:  # a folder of another machine, or a name without a network
        return ""
    pairs = ((name, getattr(theirs, name, None), getattr(model.config, name, None)) for name in SHAPE)
    return ", ".join(f"{name} {a} there, {b} here" for name, a, b in pairs if a != b)
