"""Log-probs: what the policy thinks of tokens that were sampled, and how undecided it was.

A response's log-prob is the sum of its tokens' log pi(y_t | x, y_<t). Rollouts are sampled from logits / temperature, so
the log-probs that the gradient needs are those of the same distribution: pass the sampling temperature here too.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def check_context(model: nn.Module, length: int, what: str) -> None:
    """Raise ValueError when `length` tokens (described by `what`) do not fit the model's context."""
    config = getattr(model, "config", None)
    context = getattr(config, "max_position_embeddings", None)
    if context is not None and length > context:
        raise ValueError(f"{what} is {length} tokens long; the model's context holds {context}")


def check_temperature(temperature: float) -> None:
    """Raise ValueError unless `temperature` is a finite number above 0."""
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature={temperature!r} must be a finite number above 0: it divides the logits")


def autocast(device_type: str, dtype: torch.dtype | None) -> Any:
    """Autocast context for `dtype`, or one that does nothing for None (float32 master weights stay as they are)."""
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)


def get_response_log_probs(
    model: nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    return_token_entropy: bool = False,
    *,
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """Log-prob of each label given the ids before it, and, on request, the entropy of each next-token distribution.

    model: a causal language model; model(input_ids).logits is (N, T, vocabulary). Rows are right-padded, so that no
        attention mask is needed: a causal model never looks at what follows.
    input_ids, labels: (N, T). temperature divides the logits.

    Returns log_probs (N, T), in nats, and token_entropy (N, T), in nats, which carries no gradient. Both are computed in
    float32 at least: float64 logits stay float64. Masking is the caller's.

    Raises ValueError when the shapes differ, T exceeds the model's context, or the temperature is not above 0.
    """
    if input_ids.shape != labels.shape or input_ids.ndim != 2:
        raise ValueError(
            f"input_ids has shape {tuple(input_ids.shape)}, labels {tuple(labels.shape)}; expected (N, T) twice"
        )
    check_context(model, input_ids.shape[1], "input_ids")
    check_temperature(temperature)
    logits = model(input_ids).logits
    if logits.dtype != torch.float64:
        logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    log_normalizer = logits.logsumexp(dim=-1)
    result = {"log_probs": logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - log_normalizer}
    if return_token_entropy:
        with torch.no_grad():
            # Row by row: a second (N, T, vocabulary) tensor would be the largest thing in memory.
            result["token_entropy"] = torch.stack([_entropy(row) for row in logits])
    return result


def _entropy(logits: Tensor) -> Tensor:
    """Entropy -sum p log p over the last axis, in nats; -inf logits count as the 0 that p log p tends to."""
    log_p = logits.log_softmax(dim=-1)
    p = log_p.exp()
    return -(p * log_p.masked_fill(p == 0, 0.0)).sum(dim=-1)


def response_ends(response_mask: Tensor) -> Tensor:
    """For each row of a (N, T) mask, the number of columns up to its last response token; 0 for a row without any."""
    positions = torch.arange(1, response_mask.shape[1] + 1, device=response_mask.device)
    return (response_mask * positions).amax(dim=1)


@torch.no_grad()
def log_probs_in_batches(
    model: nn.Module,
    batch: dict[str, Tensor],
    rows_at_once: int,
    *,
    temperature: float = 1.0,
    autocast_dtype: torch.dtype | None = None,
) -> Tensor:
    """Log-probs (N, T) of a tokenized batch without gradients, `rows_at_once` rows at a time; 0 where masked.

    This is how old and reference log-probs are made: by the trainer's own model, at the weights that sampled.
    """
    device = next(model.parameters()).device
    result = torch.zeros(batch["labels"].shape, dtype=torch.float32, device=device)
    for rows in torch.arange(len(result)).split(rows_at_once):
        mask = batch["response_mask"][rows].bool()
        width = max(1, int(response_ends(mask).max()))
        ids, labels = (batch[name][rows, :width].to(device) for name in ("input_ids", "labels"))
        with autocast(device.type, autocast_dtype):
            log_probs = get_response_log_probs(model, ids, labels, temperature=temperature)["log_probs"]
        result = result.to(log_probs.dtype)
        result[rows.to(device), :width] = log_probs.masked_fill(~mask[:, :width].to(device), 0.0)
    return result


@torch.no_grad()
def response_entropies(
    model: nn.Module,
    batch: dict[str, Tensor],
    *,
    temperature: float = 1.0,
    autocast_dtype: torch.dtype | None = None,
) -> list[list[float]]:
    """For each row of a tokenized batch, the entropy in nats of what each of its response tokens was sampled from."""
    device = next(model.parameters()).device
    result = []
    # One row at a time: this is for the few rows that a person reads, and logits are large.
    for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["response_mask"].bool(), strict=True):
        width = max(1, int(response_ends(mask[None]).max()))
        ids, labels = ids[None, :width].to(device), labels[None, :width].to(device)
        with autocast(device.type, autocast_dtype):
            scored = get_response_log_probs(model, ids, labels, True, temperature=temperature)
        result.append(scored["token_entropy"][0].cpu()[mask[:width]].tolist())
    return result
