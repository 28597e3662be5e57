"""The engine's log-probs against the trainer's: how far the distribution that was sampled is from the one that is trained.

Two programs compute one model in different orders and precisions, so a rollout from an engine is a little off-policy at
the very weights that are trained. With d = log pi - log pi_engine of a sampled token, exp(d) is its importance weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def engine_log_probs(rows: Sequence[Sequence[float]], response_mask: Tensor) -> Tensor:
    """Log-probs that an engine returned with its samples, laid out like the (N, T) mask; 0 where masked.

    Raises ValueError, naming the row, where there are not as many as response tokens.
    """
    for i, (row, length) in enumerate(zip(rows, response_mask.sum(dim=1).tolist(), strict=True)):
        if len(row) != length:
            raise ValueError(f"rows[{i}] has {len(row)} log-probs; expected {length}, one a response token")
    result = torch.zeros(response_mask.shape)
    result[response_mask.bool()] = torch.tensor([value for row in rows for value in row])
    return result


def measure_mismatch(log_probs: Tensor, from_engine: Tensor, response_mask: Tensor) -> dict[str, float]:
    """Mean and maximum of |d| over response tokens, in nats, and the effective sample size as a share of the tokens.

    log_probs, from_engine: (N, T), of the trainer and of the engine at the same weights. With w = exp(d) the share is
    (sum w)^2 / (number x sum w^2): 1 where the two agree, k/n where k of n tokens carry all the weight (Kish 1965).
    NaN without a response token.
    """
    d = (log_probs.double() - from_engine.double())[response_mask.bool()]
    if not len(d):
        return dict.fromkeys(("engine_mismatch_mean", "engine_mismatch_max", "engine_effective_sample_size"), math.nan)
    w = (d - d.max()).exp()  # a common factor drops out of the share, and this one cannot overflow
    return {
        "engine_mismatch_mean": d.abs().mean().item(),
        "engine_mismatch_max": d.abs().max().item(),
        "engine_effective_sample_size": (w.sum() ** 2 / (len(w) * (w**2).sum())).item(),
    }


def truncated_importance_weights(log_probs: Tensor, from_engine: Tensor, response_mask: Tensor, cap: float) -> Tensor:
    """min(exp(d), cap) for each response token, 1 where masked: (N, T), a constant that multiplies the token's loss.

    Ionides 2008, "Truncated importance sampling". Raises ValueError unless cap is a finite number above 0.
    """
    if not (math.isfinite(cap) and cap > 0):
        raise ValueError(f"cap={cap!r} must be a finite number above 0")
    d = (log_probs.detach() - from_engine).masked_fill(~response_mask.bool(), 0.0)
    return d.clamp(max=math.log(cap)).exp().masked_fill(~response_mask.bool(), 1.0)
