"""Losses: per-token policy gradients, KL estimators, and how a batch of tokens becomes one number.

With A the advantage, pi the policy, pi_old the policy that sampled, w = pi / pi_old = exp(log pi - log pi_old) the
importance ratio and e the clip range, the loss of a response token is

    none    -A log pi                               REINFORCE; right when pi_old = pi
    noclip  -A w                                    importance sampling, token by token
    grpo    -min(A w, A clip(w, 1-e, 1+e))          PPO's pessimistic clip (Schulman et al. 2017), GRPO (Shao et al. 2024)
    gspo    the same with s for w,                  one ratio a sequence (Zheng et al. 2025):
            s = exp(mean over the response of (log pi - log pi_old))
    cispo   -A stopgrad(min(w, 1+e)) log pi         caps the weight and keeps every token's gradient (MiniMax 2025)

None of these is a measure of progress: expect a loss near 0, of either sign. Log the reward.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grpo.advantages import check_choice

IMPORTANCE_REWEIGHTING_METHODS = ("none", "noclip", "grpo", "gspo", "cispo")
LOSS_NORMALIZATIONS = ("sequence", "constant", "token")
KL_ESTIMATORS = ("k1", "k2", "k3")

ClipRange = float | tuple[float, float]
_LARGEST_LOG_RATIO = 80.0


def split_cliprange(cliprange: ClipRange | None, method: str = "grpo") -> tuple[float, float]:
    """(lower, upper) of a clip range: one number for both sides, or a pair (clip-higher: Yu et al. 2025, DAPO).

    Sides above 1 are allowed: cispo's cap may be 5, and a lower side of 1 or more clips nothing, since no ratio is below 0.
    Raises ValueError when it is missing, negative or not finite.
    """
    if cliprange is None:
        raise ValueError(
            f"cliprange=None with importance_reweighting_method={method!r}; give a number, or (lower, upper)"
        )
    pair = cliprange if isinstance(cliprange, (tuple, list)) else (cliprange, cliprange)
    if len(pair) != 2 or not all(math.isfinite(side) and side >= 0 for side in pair):
        raise ValueError(
            f"cliprange={cliprange!r} must be a finite number of at least 0, or a pair (lower, upper) of them"
        )
    return float(pair[0]), float(pair[1])


def masked_mean(values: Tensor, mask: Tensor) -> float:
    """Mean of `values` over the True positions of `mask`, a float; NaN when there is none."""
    mask = mask.bool()
    return values[mask].mean().item() if mask.any() else math.nan


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision as float32: the difference of two log-probs has few digits left, and exp shows it."""
    return values if values.dtype == torch.float64 else values.float()


def _check_like(argument: str, value: Tensor, shape: torch.Size) -> None:
    if value.shape != shape:
        raise ValueError(
            f"{argument} has shape {tuple(value.shape)}; expected {tuple(shape)}, the shape of the log-probs"
        )


def _check_loss_arguments(
    advantages: Tensor,
    policy_log_probs: Tensor,
    method: str,
    old_log_probs: Tensor | None,
    mask: Tensor | None,
) -> Tensor:
    """Check shapes and choices; return the advantages as a (N, 1) column."""
    check_choice("importance_reweighting_method", method, IMPORTANCE_REWEIGHTING_METHODS)
    if policy_log_probs.ndim != 2:
        raise ValueError(f"policy_log_probs has shape {tuple(policy_log_probs.shape)}; expected (N, T)")
    rows = len(policy_log_probs)
    if tuple(advantages.shape) not in {(rows,), (rows, 1)}:
        raise ValueError(
            f"raw_rewards_or_advantages has shape {tuple(advantages.shape)}; expected ({rows},) or ({rows}, 1), "
            "one number a row of policy_log_probs"
        )
    if old_log_probs is None and method != "none":
        raise ValueError(
            f"old_log_probs=None with importance_reweighting_method={method!r}; "
            "give the log-probs under the policy that sampled, shape (N, T)"
        )
    if old_log_probs is not None:
        _check_like("old_log_probs", old_log_probs, policy_log_probs.shape)
    if mask is not None:
        _check_like("response_mask", mask, policy_log_probs.shape)
    return advantages.reshape(rows, 1)


def compute_policy_gradient_loss(
    raw_rewards_or_advantages: Tensor,
    policy_log_probs: Tensor,
    importance_reweighting_method: str = "none",
    old_log_probs: Tensor | None = None,
    cliprange: ClipRange | None = None,
    response_mask: Tensor | None = None,
    return_metadata: bool = True,
) -> tuple[Tensor, dict[str, float]]:
    """Per-token policy-gradient loss, (N, T), by one of the methods of this module's table.

    raw_rewards_or_advantages: (N,) or (N, 1), one number a row, taken as a constant.
    policy_log_probs, old_log_probs: (N, T) in nats; no gradient flows into the old ones.
    cliprange: e, or (lower, upper) for clip(w, 1 - lower, 1 + upper); cispo uses the upper side only.
    response_mask: (N, T) bool; None means that every position is a response token. Masked positions never reach the
        gradient, whatever they hold (-200, inf, nan): their log-probs are set to 0 before any exp.

    metadata, over response tokens: clip_fraction (share whose gradient the clipping removes), ratio_mean, ratio_max,
    approx_kl (to the old policy, k3 on its samples: mean of w - 1 - log w); for cispo also capped_fraction (share whose
    weight is capped, which removes no gradient). Without old_log_probs the ratio is 1 by definition.
    return_metadata=False: an empty dict in its place, which on small tensors is most of the time.

    Raises ValueError for an unknown method, missing old_log_probs or cliprange, and shapes that do not fit.
    """
    method = importance_reweighting_method
    advantages = torch.as_tensor(raw_rewards_or_advantages).detach()
    advantages = _check_loss_arguments(advantages, policy_log_probs, method, old_log_probs, response_mask)
    mask = None if response_mask is None else response_mask.bool()
    lower, upper = split_cliprange(cliprange, method) if method in {"grpo", "gspo", "cispo"} else (0.0, 0.0)

    log_probs = _mask_out(at_least_float32(policy_log_probs), mask)
    if method == "none" and not return_metadata:
        return -advantages * log_probs, {}
    old = log_probs.detach() if old_log_probs is None else _mask_out(at_least_float32(old_log_probs.detach()), mask)
    log_ratio = log_weight = log_probs - old
    if method == "gspo":
        tokens = log_ratio.shape[1] if mask is None else mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_weight = (log_ratio.sum(dim=1, keepdim=True) / tokens).expand_as(log_ratio)
    # exp overflows at 88 in float32, and 0 x inf is nan: bounded where the gradient is 0 anyway, by clipping or advantage.
    harmless = advantages == 0 if method == "noclip" else advantages >= 0
    ratio = torch.where(harmless, log_weight.clamp(max=_LARGEST_LOG_RATIO), log_weight).exp()

    clipped = torch.zeros_like(ratio, dtype=torch.bool)
    if method == "none":
        loss = -advantages * log_probs
    elif method == "noclip":
        loss = -advantages * ratio
    elif method == "cispo":
        loss = -advantages * ratio.detach().clamp(max=1 + upper) * log_probs
    else:
        loss = -torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - lower, 1 + upper))
        clipped = ((advantages > 0) & (ratio > 1 + upper)) | ((advantages < 0) & (ratio < 1 - lower))

    if not return_metadata:
        return loss, {}
    with torch.no_grad():
        mask = torch.ones_like(clipped) if mask is None else mask
        metadata = {
            "clip_fraction": masked_mean(clipped.to(ratio.dtype), mask),
            "ratio_mean": masked_mean(ratio, mask),
            "ratio_max": ratio[mask].max().item() if mask.any() else math.nan,
            "approx_kl": masked_mean(log_ratio.exp() - 1 - log_ratio, mask),
        }
        if method == "cispo":
            metadata["capped_fraction"] = masked_mean((ratio > 1 + upper).to(ratio.dtype), mask)
    return loss, metadata


def _mask_out(log_probs: Tensor, mask: Tensor | None) -> Tensor:
    """Put 0 where masked: a log-prob of -200, inf or nan there must reach neither exp nor the gradient."""
    return log_probs if mask is None else log_probs.masked_fill(~mask, 0.0)


def aggregate_loss_across_microbatch(
    per_token_policy_gradient_loss: Tensor,
    mask: Tensor,
    loss_normalization: str = "sequence",
    normalization_constant: float | None = None,
) -> Tensor:
    """One number from a (N, T) loss and the mask of its response tokens (bool, (N, T)).

    "sequence": mean over a row's response tokens, then over all rows (a row without any counts as 0).
    "constant": masked sum / normalization_constant.
    "token": masked sum / number of response tokens.

    >>> loss, mask = torch.tensor([[1.0, 9, 9], [2.0, 2, 2]]), torch.tensor([[1, 0, 0], [1, 1, 1]])
    >>> [aggregate_loss_across_microbatch(loss, mask, how).item() for how in ("sequence", "token")]
    [1.5, 1.75]

    Raises ValueError for an unknown normalization, a missing or non-positive constant, and shapes that differ.
    """
    check_choice("loss_normalization", loss_normalization, LOSS_NORMALIZATIONS)
    _check_like("mask", mask, per_token_policy_gradient_loss.shape)
    mask = mask.bool()
    masked = at_least_float32(per_token_policy_gradient_loss).masked_fill(~mask, 0.0)
    if loss_normalization == "sequence":
        return (masked.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()
    if loss_normalization == "token":
        return masked.sum() / mask.sum().clamp(min=1)
    return masked.sum() / check_normalization_constant(normalization_constant)


def check_normalization_constant(constant: float | None) -> float:
    """Return the constant of loss_normalization "constant"; ValueError unless it is a finite number above 0."""
    if constant is None or not (math.isfinite(constant) and constant > 0):
        raise ValueError(
            f"normalization_constant={constant!r} with loss_normalization='constant'; give a number above 0, "
            "for example rollouts in the batch x longest response in tokens"
        )
    return float(constant)


def compute_kl(log_probs: Tensor, ref_log_probs: Tensor, estimator: str = "k3", mask: Tensor | None = None) -> Tensor:
    """Per-token estimate of KL(pi || ref) from samples of pi, (N, T), 0 where masked (Schulman 2020).

    With d = log ref - log pi: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d. As values k1 and k3 are unbiased, k2 is not.
    As losses (differentiated through log pi, the samples fixed) it is the other way round: k1's expected gradient is 0,
    k2's is that of KL(pi || ref), k3's that of KL(ref || pi).

    Raises ValueError for an unknown estimator or shapes that differ.
    """
    check_choice("estimator", estimator, KL_ESTIMATORS)
    _check_like("ref_log_probs", ref_log_probs, log_probs.shape)
    log_probs, ref_log_probs = at_least_float32(log_probs), at_least_float32(ref_log_probs)
    if mask is not None:
        _check_like("mask", mask, log_probs.shape)
        log_probs = log_probs.masked_fill(~mask.bool(), 0.0)
        ref_log_probs = ref_log_probs.masked_fill(~mask.bool(), 0.0)
    d = ref_log_probs.detach() - log_probs
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d.square() / 2
    return d.exp() - 1 - d
