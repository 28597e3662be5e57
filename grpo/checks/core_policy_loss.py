"""Core check of the policy-gradient loss: five methods, each with its value and its gradient by formula.

As many rows as columns, so that an advantage spread along the wrong axis is a wrong number and no error. The ratios lie
far below, inside and far above the clip range, for advantages of both signs; so do the rows' geometric means, for GSPO.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo.checks.judge import WrongAnswer, as_tensor, call, expect, judged, same, value_and_metadata

Mistake = tuple[Tensor, str]

CLIP = 0.2
A = torch.tensor([[1.0], [-1.0], [0.5], [-2.0]], dtype=torch.float64)
RATIOS = torch.tensor(
    [[0.5, 0.9, 1.1, 1.9], [1.9, 0.7, 1.5, 1.4], [1.6, 1.4, 1.5, 0.3], [0.75, 0.7, 1.3, 1.9]], dtype=torch.float64
)
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
OLD = -(1.0 + 0.3 * torch.arange(4.0).double()[:, None] + 0.2 * torch.arange(4.0).double())
NEW = OLD + RATIOS.log()
LOW, HIGH = 1 - CLIP, 1 + CLIP


def sequence_ratios(ratios: Tensor = RATIOS, mask: Tensor = MASK) -> Tensor:
    """Return the geometric mean of each row's ratios over its response, spread over the row."""
    count = mask.sum(dim=1, keepdim=True)
    return torch.where(mask, ratios, 1.0).prod(dim=1, keepdim=True).pow(1 / count).expand_as(ratios)


def clipped(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return -min(A w, A clip(w)) and minus its slope in log w: -A w, or 0 where the clipping decides."""
    stopped = ((A > 0) & (w > HIGH)) | ((A < 0) & (w < LOW))
    return -torch.minimum(A * w, A * w.clamp(LOW, HIGH)), torch.where(stopped, 0.0, -A * w)


@judged
def check_compute_policy_gradient_loss(function: Callable[..., Any]) -> str:
    """none, noclip, grpo, gspo and cispo; what the gradient must not reach."""
    w = RATIOS
    _check(function, "none", -A * NEW, (-A).expand_as(NEW), _none_mistakes())
    _check(
        function, "noclip", -A * w, -A * w, [(-A * NEW, "the ratio is not used: this is -A log pi."), *_ratio_slips()]
    )
    value, gradient = clipped(w)
    _check(function, "grpo", value, gradient, _clip_mistakes())
    value, gradient = clipped(sequence_ratios())
    _check(function, "gspo", value, gradient, _gspo_mistakes())
    capped = w.clamp(max=HIGH)
    _check(function, "cispo", -A * capped * NEW, -A * capped, _cispo_mistakes())
    _check_corners(function)
    return "Right: none, noclip, grpo, gspo and cispo, with their gradients, on both sides of the clip range."


def _check(function: Callable[..., Any], method: str, right: Tensor, gradient: Tensor, mistakes: list[Mistake]) -> None:
    """Compare values and gradients at response tokens; elsewhere the loss is masked out later."""
    setting = f"importance_reweighting_method={method!r}"
    log_probs, old, advantages = NEW.clone().requires_grad_(), OLD.clone().requires_grad_(), A.clone().requires_grad_()
    result = call(function, advantages, log_probs, method, old, CLIP, MASK.clone(), setting=setting)
    loss = value_and_metadata(result, "per_token_loss")
    hint = "One loss a token, no mean and no sum: aggregation comes later."
    if isinstance(loss, Tensor) and loss.ndim == 3:
        hint = "The advantages came as (N, 1) and got one dimension more: reshape(-1, 1) takes (N,) and (N, 1)."
    found = as_tensor(loss, f"With {setting}: the loss", (4, 4), hint)
    everywhere = [(wrong[MASK], message) for wrong, message in mistakes]
    expect(found[MASK], right[MASK], everywhere, "the loss of response token ", setting)
    if not loss.requires_grad:
        raise WrongAnswer(f"With {setting}: the values are right, but no gradient reaches policy_log_probs.")
    to_new, to_old, to_advantages = torch.autograd.grad(
        loss[MASK].sum(), (log_probs, old, advantages), allow_unused=True
    )
    _check_slopes(method, setting, to_new, gradient)
    if to_old is not None and (to_old != 0).any():
        raise WrongAnswer(f"With {setting}: a gradient flows into old_log_probs, which are fixed. Detach them.")
    if to_advantages is not None:
        raise WrongAnswer(
            f"With {setting}: advantage not detached: a gradient flows into it. It is a constant; detach it."
        )
    flat = value_and_metadata(
        call(function, A.reshape(-1), NEW.clone(), method, OLD, CLIP, MASK, setting=setting), "loss"
    )
    along_columns = "the advantages, (N,), are spread along columns: each belongs to a row. Reshape them to (N, 1)."
    other = as_tensor(flat, f"With {setting} and advantages (N,): the loss", (4, 4))
    if not same(other[MASK], right[MASK]):
        raise WrongAnswer(f"With {setting} and N advantages: {along_columns}")
    if method in {"grpo", "gspo", "cispo"}:
        wide = value_and_metadata(call(function, A, NEW.clone(), method, OLD, 9.0, MASK, setting=setting), "loss")
        if same(as_tensor(wide, "the loss", (4, 4))[MASK], right[MASK]):
            raise WrongAnswer(f"With {setting}: cliprange is not used; you clip at 0.2 whatever it is.")


def _check_slopes(method: str, setting: str, found: Tensor | None, right: Tensor) -> None:
    if found is None:
        raise WrongAnswer(f"With {setting}: the values are right, but no gradient reaches policy_log_probs.")
    mistakes = []
    if method == "cispo":
        capped = RATIOS.clamp(max=HIGH)
        through = -A * torch.where(RATIOS < HIGH, capped * (1 + NEW), capped)
        mistakes = [(through[MASK], "the weight is not detached: a gradient flows through min(w, 1 + e) too.")]
    what = "the values are right, the gradient of response token "
    expect(found[MASK], right[MASK], mistakes, what, setting)


def _none_mistakes() -> list[Mistake]:
    return [
        (A * NEW, "wrong sign of the loss: the optimizer goes downhill, so it is *minus* A log pi."),
        (-A * NEW.exp(), "this is -A pi: take the log-prob as it is given, without exp."),
        (-A.T * NEW, "the advantages are spread along columns: each belongs to a row. Reshape them to (N, 1)."),
        (-A * RATIOS, "this is -A w: with 'none' old_log_probs are ignored."),
        (-NEW.expand_as(A * NEW), "the advantage is not used: this is -log pi."),
        (-A * NEW / MASK.sum(dim=1, keepdim=True), "you divide by the length already: aggregation does that."),
        (-A * NEW / 4, "you divide by the number of rows or columns already: aggregation does that."),
        (-(A - A.mean()) * NEW, "the advantages are centred again: take them as they are."),
        (-(A - A.mean()) / A.std() * NEW, "the advantages are normalized again: take them as they are."),
    ]


def _ratio_slips(build: Callable[[Tensor], Tensor] = lambda w: -A * w) -> list[Mistake]:
    w = RATIOS
    return [
        (-build(w), "wrong sign of the loss: the optimizer goes downhill, so it has a *minus* in front."),
        (build(1 / w), "the ratio is the other way round: pi / pi_old = exp(log pi - log pi_old)."),
        (build(NEW / OLD), "your ratio is a quotient of log-probs: it is exp(log pi - log pi_old)."),
        (build(NEW - OLD), "exp is missing: log pi - log pi_old is the logarithm of the ratio."),
        (build(NEW.exp()), "this takes pi for the ratio: divide by pi_old, exp(log pi - log pi_old)."),
        (build(w) * NEW, "the ratio and log pi both multiply A: the ratio takes the place of log pi."),
    ]


def _clip_mistakes() -> list[Mistake]:
    w = RATIOS
    inside = w.clamp(LOW, HIGH)
    return [
        (-A * w, "nothing is clipped: take the smaller of A w and A clip(w, 1 - e, 1 + e)."),
        (
            -A * inside,
            "the clipped term is taken always. A token with A < 0 and ratio 1.9 moved the wrong way, and would have no "
            "gradient to come back: take the smaller of A w and A clip(w).",
        ),
        (
            -torch.maximum(A * w, A * inside),
            "clipped on the wrong side: this keeps the larger of A w and A clip(w). The loss is minus the *smaller*.",
        ),
        (
            -A * torch.minimum(w, inside),
            "clip of the wrong side for negative advantages: min(w, clip(w)) is taken before multiplying by A. Take the "
            "minimum of the two products.",
        ),
        (-torch.minimum(A * w, A * w.clamp(max=HIGH)), "the lower side 1 - e is missing: it counts where A < 0."),
        (-torch.minimum(A * w, A * w.clamp(min=LOW)), "the upper side 1 + e is missing: it counts where A > 0."),
        (-torch.minimum(A * w, A * w.clamp(-CLIP, CLIP)), "you clip to [-e, e]: the range is [1 - e, 1 + e]."),
        (-torch.minimum(A * w, (A * w).clamp(LOW, HIGH)), "you clip A w: clip the ratio, then multiply by A."),
        *_ratio_slips(lambda ratio: clipped(ratio)[0]),
    ]


def _gspo_mistakes() -> list[Mistake]:
    w, everywhere = RATIOS, torch.ones_like(MASK)
    arithmetic = ((w * MASK).sum(dim=1, keepdim=True) / MASK.sum(dim=1, keepdim=True)).expand_as(w)
    product = torch.where(MASK, w, 1.0).prod(dim=1, keepdim=True).expand_as(w)
    too_long = product.pow(1 / 4)
    s = sequence_ratios()
    return [
        (clipped(w)[0], "ratio per token instead of per sequence: GSPO has one for a row, exp of the mean log-ratio."),
        (clipped(arithmetic)[0], "arithmetic mean of the ratios: it is the geometric one, exp(mean of log-ratios)."),
        (
            clipped(product)[0],
            "product of the ratios: divide the sum of log-ratios by the response's length before exp.",
        ),
        (clipped(sequence_ratios(w, everywhere))[0], "masked positions are in the mean: use response_mask."),
        (clipped(too_long)[0], "the sum is divided by T: divide by the number of response tokens in the row."),
        (-A * s, "nothing is clipped: s takes the place of w in -min(A w, A clip(w, 1 - e, 1 + e))."),
        (-A * s.clamp(LOW, HIGH), "the clipped term is taken always: take the smaller of A s and A clip(s)."),
        (clipped(1 / s)[0], "the ratio is the other way round: exp of the mean of log pi - log pi_old."),
        (-clipped(s)[0], "wrong sign of the loss."),
        (-torch.maximum(A * s, A * s.clamp(LOW, HIGH)), "clipped on the wrong side: the smaller of A s and A clip(s)."),
        (
            clipped(s)[0] / MASK.sum(dim=1, keepdim=True),
            "every position has the row's loss: do not divide by the length.",
        ),
    ]


def _cispo_mistakes() -> list[Mistake]:
    w = RATIOS
    capped = w.clamp(max=HIGH)
    return [
        (-A * capped, "log pi is missing: the capped ratio is a *weight* on -A log pi."),
        (-A * w * NEW, "the weight is not capped: min(w, 1 + e)."),
        (-A * w.clamp(LOW, HIGH) * NEW, "there is no lower side in CISPO: only min(w, 1 + e)."),
        (-A * w.clamp(max=CLIP) * NEW, "the cap is 1 + e, not e."),
        (clipped(w)[0] * NEW, "this is the pessimistic minimum: CISPO caps the weight, whatever the sign of A."),
        (clipped(w)[0], "this is the loss of 'grpo'."),
        (A * capped * NEW, "wrong sign of the loss: -A min(w, 1 + e) log pi."),
        (
            -A * (1 / w).clamp(max=HIGH) * NEW,
            "the ratio is the other way round: pi / pi_old = exp(log pi - log pi_old).",
        ),
        (-A * NEW, "the weight is missing: this is 'none'."),
    ]


def _check_corners(function: Callable[..., Any]) -> None:
    call(function, A.reshape(-1), NEW.clone(), setting="no method, old_log_probs or cliprange given")
    for method in ("noclip", "grpo", "gspo", "cispo"):
        log_probs = NEW.float().requires_grad_()
        old = OLD.float().masked_fill(~MASK, -200.0)
        setting = f"{method!r} and old log-probs of -200 where masked"
        result = call(function, A.float(), log_probs, method, old, CLIP, MASK.clone(), setting=setting)
        loss = value_and_metadata(result, "loss")[MASK]
        gradient = torch.autograd.grad(loss.sum(), log_probs)[0]
        if not (loss.isfinite().all() and gradient.isfinite().all()):
            raise WrongAnswer(
                f"With {setting} the gradient is NaN: exp(200) overflows, and 0 * inf is NaN. Put 0 in both log-probs "
                "where response_mask is False, before exp."
            )
