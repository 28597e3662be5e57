"""The update: one tokenized batch with its advantages, one move of the parameters, in as many microbatches as memory wants.

Three things must not depend on how the batch is cut: the loss, the gradient, the metrics. So every microbatch adds its
share of the *batch's* loss (a row counts 1 / N under "sequence" wherever it lands), and metrics are weighted by tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo.advantages import check_choice
from grpo.log_probs import autocast, check_context, check_temperature, get_response_log_probs, response_ends
from grpo.losses import (
    IMPORTANCE_REWEIGHTING_METHODS,
    KL_ESTIMATORS,
    LOSS_NORMALIZATIONS,
    ClipRange,
    aggregate_loss_across_microbatch,
    check_normalization_constant,
    compute_kl,
    compute_policy_gradient_loss,
    masked_mean,
    split_cliprange,
)


@dataclass(frozen=True)
class UpdateSettings:
    """How a batch becomes one update. Raises ValueError at once for settings that cannot work."""

    gradient_accumulation_steps: int = 1
    """Number of microbatches; loss and gradient do not depend on it, memory does."""
    max_grad_norm: float | None = None
    """The gradient is scaled down to this norm; None reports the norm and clips nothing."""
    importance_reweighting_method: str = "none"
    """none, noclip, grpo, gspo or cispo (grpo.losses)."""
    cliprange: ClipRange | None = None
    """Clip range of the importance ratio, or (lower, upper)."""
    loss_normalization: str = "sequence"
    """sequence, constant or token (grpo.losses)."""
    normalization_constant: float | None = None
    """The divisor of "constant"."""
    kl_coef: float = 0.0
    """Weight of KL(policy || reference), per token, in the loss."""
    kl_estimator: str = "k3"
    """k1, k2 or k3; as a loss only k2 has the gradient of KL(policy || reference)."""
    temperature: float = 1.0
    """The sampling temperature: it divides the logits here too."""
    prune_zero_advantages: bool = True
    """Rows of advantage 0 have no policy gradient and skip the forward pass, unless there is a KL term."""
    autocast_dtype: torch.dtype | None = None
    """bfloat16 on a GPU, over float32 master weights; None computes in the parameters' own type."""

    def __post_init__(self) -> None:
        check_choice(
            "importance_reweighting_method",
            self.importance_reweighting_method,
            IMPORTANCE_REWEIGHTING_METHODS,
        )
        check_choice("loss_normalization", self.loss_normalization, LOSS_NORMALIZATIONS)
        check_choice("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        check_temperature(self.temperature)
        if self.importance_reweighting_method in {"grpo", "gspo", "cispo"}:
            split_cliprange(self.cliprange, self.importance_reweighting_method)
        if self.loss_normalization == "constant":
            check_normalization_constant(self.normalization_constant)
        steps = self.gradient_accumulation_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"gradient_accumulation_steps={steps!r} must be an integer of at least 1")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={self.max_grad_norm!r} must be above 0, or None to clip nothing")
        if not (math.isfinite(self.kl_coef) and self.kl_coef >= 0):
            raise ValueError(f"kl_coef={self.kl_coef!r} must be a finite number of at least 0")


def check_batch(
    model: nn.Module,
    batch: dict[str, Tensor],
    settings: UpdateSettings,
    old_log_probs: Tensor | None,
    ref_log_probs: Tensor | None,
    token_weights: Tensor | None = None,
) -> None:
    """Raise ValueError when a tokenized batch and its log-probs cannot be trained on under `settings`."""
    shape = batch["labels"].shape
    method, kl_coef = settings.importance_reweighting_method, settings.kl_coef
    needed_by = {
        "old_log_probs": (old_log_probs, f"importance_reweighting_method={method!r}" if method != "none" else ""),
        "ref_log_probs": (ref_log_probs, f"kl_coef={kl_coef}" if kl_coef != 0 else ""),
        "token_weights": (token_weights, ""),
    }
    for name, (value, reason) in needed_by.items():
        if value is None and reason:
            raise ValueError(f"{name}=None with {reason}; give log-probs of shape {tuple(shape)}")
        if value is not None and value.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}; expected {tuple(shape)}, the shape of the tokenized batch"
            )
    check_context(
        model,
        int(response_ends(batch["response_mask"]).max()),
        "the longest prompt with its response, less its last token,",
    )


def split_into_microbatches(advantages: Tensor, lengths: Tensor, steps: int, prune: bool) -> list[Tensor]:
    """Row indices of each microbatch, at most ceil(N / steps) rows each, the longest rows first.

    No microbatch mixes rows with and without an advantage; those without are left out when `prune` is set. Rows of like
    length go together since a microbatch is as wide as its longest, and first, since that one decides about memory.
    """
    size = math.ceil(len(advantages) / steps)
    by_length = torch.argsort(lengths.cpu(), descending=True, stable=True)
    has_advantage = (advantages.cpu() != 0)[by_length]
    kinds = [by_length[has_advantage]] + ([] if prune else [by_length[~has_advantage]])
    return [rows for kind in kinds if len(kind) for rows in kind.split(size)]


def _batch_share(per_token: Tensor, mask: Tensor, settings: UpdateSettings, rows: int, response_tokens: int) -> Tensor:
    """What a microbatch adds to the loss of a batch with that many rows and response tokens."""
    if settings.loss_normalization == "sequence":
        return aggregate_loss_across_microbatch(per_token, mask) * (len(mask) / rows)
    constant = settings.normalization_constant if settings.loss_normalization == "constant" else max(1, response_tokens)
    return aggregate_loss_across_microbatch(per_token, mask, "constant", constant)


def _backward(
    model: nn.Module,
    batch: dict[str, Tensor],
    advantages: Tensor,
    settings: UpdateSettings,
    rows: int,
    response_tokens: int,
) -> tuple[Tensor, dict[str, float]]:
    """Forward and backward of one microbatch: its share of the loss, and the loss's metadata with entropy and KL."""
    mask = batch["response_mask"]
    with autocast(mask.device.type, settings.autocast_dtype):
        scored = get_response_log_probs(
            model, batch["input_ids"], batch["labels"], True, temperature=settings.temperature
        )
    per_token, metadata = compute_policy_gradient_loss(
        advantages,
        scored["log_probs"],
        settings.importance_reweighting_method,
        batch.get("old_log_probs"),
        settings.cliprange,
        mask,
    )
    if "token_weights" in batch:
        per_token = per_token * batch["token_weights"]
    if settings.kl_coef != 0:
        kl = compute_kl(scored["log_probs"], batch["ref_log_probs"], settings.kl_estimator, mask)
        per_token = per_token + settings.kl_coef * kl
        metadata["kl_to_reference"] = masked_mean(kl.detach(), mask)
    loss = _batch_share(per_token, mask, settings, rows, response_tokens)
    loss.backward()
    metadata["token_entropy"] = masked_mean(scored["token_entropy"], mask)
    return loss.detach(), metadata


def _step_or_skip(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, max_grad_norm: float | None
) -> tuple[float, bool]:
    """Clip and step, unless loss or gradient is not finite; returns the norm before clipping, and whether it skipped."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:  # every row was pruned: the gradient is 0, and Adam still moves on its momentum
            p.grad = torch.zeros_like(p)
    limit = math.inf if max_grad_norm is None else max_grad_norm
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    skipped = not (torch.isfinite(loss) and torch.isfinite(norm))
    if not skipped:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return norm.item(), skipped


def policy_gradient_update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Tensor],
    advantages: Tensor,
    settings: UpdateSettings,
    old_log_probs: Tensor | None = None,
    ref_log_probs: Tensor | None = None,
    token_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Move the parameters once along the policy gradient of a tokenized batch.

    batch: input_ids, labels, response_mask, each (N, T). advantages: (N,). old_log_probs, ref_log_probs: (N, T), nats.
    token_weights: (N, T), constants that multiply each token's policy-gradient loss (grpo.mismatch).

    Returns the loss of the whole batch (a scalar without gradient) and metadata. token_entropy (nats), ratio_mean,
    ratio_max, clip_fraction, approx_kl and, with a KL term, kl_to_reference are over the response tokens of rows with an
    advantage, NaN when there is none. A loss or gradient that is not finite leaves parameters and optimizer as they were,
    and metadata["skipped"] is 1. Every param.grad is None afterwards.

    Raises ValueError for shapes that do not fit, log-probs that are missing, and rows longer than the model's context.
    """
    check_batch(model, batch, settings, old_log_probs, ref_log_probs, token_weights)
    rows = len(batch["labels"])
    if advantages.shape != (rows,):
        raise ValueError(f"advantages has shape {tuple(advantages.shape)}; expected ({rows},), one a row of the batch")
    device = next(model.parameters()).device
    columns = dict(batch)
    columns |= {} if old_log_probs is None else {"old_log_probs": old_log_probs}
    columns |= {} if ref_log_probs is None else {"ref_log_probs": ref_log_probs}
    columns |= {} if token_weights is None else {"token_weights": token_weights}
    lengths = response_ends(batch["response_mask"]).cpu()
    response_tokens = int(batch["response_mask"].sum())
    prune = settings.prune_zero_advantages and settings.kl_coef == 0
    microbatches = split_into_microbatches(advantages, lengths, settings.gradient_accumulation_steps, prune)

    model.zero_grad(set_to_none=True)
    loss = torch.zeros((), device=device)
    sums: dict[str, float] = defaultdict(float)
    ratio_max, tokens = -math.inf, 0
    for chosen in microbatches:
        width = max(1, int(lengths[chosen].max()))
        part = {name: value[chosen.to(value.device), :width].to(device) for name, value in columns.items()}
        weights = advantages[chosen.to(advantages.device)].to(device)
        part_loss, metadata = _backward(model, part, weights, settings, rows, response_tokens)
        loss = loss + part_loss
        part_tokens = int(part["response_mask"].sum())
        if weights[0] != 0 and part_tokens:
            tokens += part_tokens
            ratio_max = max(ratio_max, metadata.pop("ratio_max"))
            for name, value in metadata.items():
                sums[name] += value * part_tokens

    grad_norm, skipped = _step_or_skip(model, optimizer, loss, settings.max_grad_norm)
    names = ["clip_fraction", "ratio_mean", "approx_kl", "token_entropy"]
    names += ["capped_fraction"] if settings.importance_reweighting_method == "cispo" else []
    names += ["kl_to_reference"] if settings.kl_coef != 0 else []
    summary = {name: sums[name] / tokens if tokens else math.nan for name in names}
    summary |= {"ratio_max": ratio_max if tokens else math.nan, "loss": loss.item(), "grad_norm": grad_norm}
    summary["skipped"] = float(skipped)
    summary["rows_pruned"] = float(rows - sum(map(len, microbatches)))
    summary["tokens_processed"] = float(sum(int(lengths[chosen].sum()) for chosen in microbatches))
    return loss, summary
