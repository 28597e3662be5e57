"""Core checks of aggregation and KL: small tables with their values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo.checks.judge import WrongAnswer, as_tensor, call, expect, judged

LOSS = torch.tensor([[7, 11, 13, 17], [3, 2, 4, 19], [-4, 2, 23, 29]], dtype=torch.float64)
MASK = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
"""Rows of 1, 3 and 2 response tokens, with means 7, 3 and -1, and sums 7, 9 and -2."""


@judged
def check_aggregate_loss_across_microbatch(function: Callable[..., Any]) -> str:
    """Sequence, token and constant normalization, an empty row, inf where masked, the gradient."""
    masked = LOSS * MASK
    everywhere, inverted = LOSS.mean(), LOSS * ~MASK
    by_column = (masked.sum(dim=0) / MASK.sum(dim=0).clamp(min=1)).mean()
    columns_seen = (masked.sum(dim=0)[:3] / MASK.sum(dim=0)[:3]).mean()
    sequence: list[tuple[float | Tensor, str]] = [
        (14 / 6, "mean over all tokens instead of per sequence: average each row first, then the rows."),
        (14 / 12, "padding is counted: the masked sum is divided by all positions. Divide a row by its mask's sum."),
        (everywhere, "the mask is not used: prompt and padding are averaged in."),
        (LOSS.sum(), "the mask is not used, and nothing is averaged."),
        (14 / 3, "rows are summed, not averaged: divide each by its number of response tokens."),
        (9.0, "the rows' means are added up: average them, or the loss grows with the batch."),
        (14.0, "this is the sum over response tokens; average over a row's tokens, then over rows."),
        ((inverted.sum(dim=1) / (~MASK).sum(dim=1)).mean(), "the mask is the wrong way round."),
        (by_column, "you average over rows at each position; average over a row's positions (dim=1)."),
        (columns_seen, "you average over rows at each position; average over a row's positions (dim=1)."),
        (-3.0, "wrong sign: the per-token loss has its minus already."),
    ]
    _check(function, {}, 3.0, sequence, "the default, loss_normalization='sequence'")
    still = (3.0, "you still average each row: the setting is not used.")
    token = [
        still,
        (14 / 12, "padding is counted: divide by the number of response tokens."),
        (14.0, "divide the sum."),
    ]
    constant = [
        still,
        (14 / 20 / 3, "you also divide by the number of rows: the constant is the only divisor."),
        (14 / 6 / 20, "you also divide by the number of response tokens: the constant is the only divisor."),
        (LOSS.sum() / 20, "the mask is not used."),
        (everywhere / 20, "the mask is not used, and you average: it is the masked sum over the constant."),
        (14.0, "the constant is not used: divide by it."),
        (14.0 * 20, "divide by the constant, not multiply."),
        (3 / 20, "you average rows, then divide: it is the masked *sum* over the constant."),
    ]
    settings = {"loss_normalization": "constant", "normalization_constant": 20}
    _check(function, settings, 0.7, constant, "loss_normalization='constant', normalization_constant=20")
    _check(function, {"loss_normalization": "token"}, 14 / 6, token, "loss_normalization='token'")
    _check_corners(function)
    return "Right: each normalization, padding left out, rows without a response at 0, and the right gradient."


def _check(
    function: Callable[..., Any],
    settings: dict[str, Any],
    right: float,
    mistakes: list[Any],
    setting: str,
) -> None:
    result = call(function, LOSS.clone(), MASK.clone(), **settings, setting=setting)
    found = as_tensor(result, "the loss", (), "One number, of the whole batch.")
    as_tensors = [(torch.as_tensor(wrong, dtype=torch.float64), message) for wrong, message in mistakes]
    expect(found, torch.tensor(right, dtype=torch.float64), as_tensors, "the loss", setting)


def _check_corners(function: Callable[..., Any]) -> None:
    mask = MASK.clone()
    mask[0] = False
    found = as_tensor(call(function, LOSS.clone(), mask, setting="a row without response tokens"), "the loss", ())
    mistakes = [
        (
            torch.tensor(torch.nan).double(),
            "0 / 0 is NaN, and takes the batch with it. Count the row as 0: clamp(min=1).",
        ),
        (
            torch.tensor(1.0).double(),
            "the row is left out of the mean: then the loss depends on the microbatch it is in.",
        ),
    ]
    expect(found, torch.tensor(2 / 3).double(), mistakes, "the loss", "a row without response tokens")
    loss = LOSS.masked_fill(~MASK, torch.inf).requires_grad_()
    result = call(function, loss, MASK.clone(), setting="inf where masked")
    if not as_tensor(result, "the loss", ()).isfinite():
        raise WrongAnswer(
            "Where the mask is False the loss may be inf or NaN, and yours then is: 0 * inf is NaN. Use "
            "masked_fill(~mask, 0) in the place of a product."
        )
    if not result.requires_grad:
        raise WrongAnswer(
            "No gradient passes: return a tensor of torch operations, without .item(), detach or no_grad."
        )
    gradient = torch.autograd.grad(result, loss)[0]
    right = MASK.double() / MASK.sum(dim=1, keepdim=True) / 3
    expect(gradient, right, [], "the gradient of the loss")


LOG_PROBS = torch.tensor([[0.5, 0.3, 0.15], [0.05, 0.6, 0.2]], dtype=torch.float64).log()
REF_LOG_PROBS = torch.tensor([[0.2, 0.3, 0.45], [0.3, 0.1, 0.5]], dtype=torch.float64).log()


@judged
def check_compute_kl(function: Callable[..., Any]) -> str:
    """k1, k2 and k3 of KL(pi || ref), their gradients, and the mask."""
    d = REF_LOG_PROBS - LOG_PROBS
    q = d.exp()
    k3 = q - 1 - d
    _kl(
        function,
        {},
        k3,
        1 - q,
        [((1 / q - 1 + d), "k3 sign swapped: d = log ref - log pi, not the other way."), *_k3(d)],
    )
    _kl(
        function,
        {"estimator": "k1"},
        -d,
        torch.ones_like(d),
        [(d, "sign swapped: k1 = log pi - log ref."), (k3, "this is k3: the setting is not used."), _negative(-d)],
    )
    _kl(
        function,
        {"estimator": "k2"},
        d.square() / 2,
        -d,
        [
            (d.square(), "the half is missing: k2 = d^2 / 2."),
            (k3, "this is k3: the setting is not used."),
            ((q - 1).square() / 2, "k2 is d^2 / 2 with d the log-ratio, not the ratio less 1."),
            (d / 2, "the square is missing: k2 = d^2 / 2."),
            _negative(d.square() / 2),
        ],
    )
    mask = torch.tensor([[True, True, False], [False, True, True]])
    log_probs = LOG_PROBS.float().masked_fill(~mask, -0.5).requires_grad_()
    ref = REF_LOG_PROBS.float().masked_fill(~mask, 200.0)
    result = call(function, log_probs, ref, mask=mask, setting="a mask")
    found = as_tensor(result, "the KL", (2, 3), "One value a token, 0 where masked.")
    if not found.isfinite().all():
        raise WrongAnswer(
            "Masked positions may hold anything, and yours are then inf or NaN: mask before exp, not after."
        )
    expect(found, k3 * mask, [], "the KL", "a mask (0 where it is False)")
    gradient = torch.autograd.grad(result.sum(), log_probs)[0]
    if not gradient.isfinite().all():
        raise WrongAnswer(
            "With a mask the gradient is NaN where masked: exp overflows there. Mask before exp, not after."
        )
    return "Right: k1, k2 and k3 with their gradients, 0 where masked."


def _negative(right: Tensor) -> tuple[Tensor, str]:
    return -right, "wrong sign: this is minus the estimator."


def _k3(d: Tensor) -> list[tuple[Tensor, str]]:
    q = d.exp()
    return [
        (q - 1 + d, "k3 sign swapped in the last term: exp(d) - 1 *minus* d. Yours can be negative."),
        (1 / q - 1 - d, "exp has -d in it and the last term d: the same d = log ref - log pi stands in both."),
        (q - d, "the 1 is missing: where the policies agree the estimate must be 0."),
        (-d, "this is k1; the default is k3 = exp(d) - 1 - d."),
        (d.square() / 2, "this is k2; the default is k3 = exp(d) - 1 - d."),
        (REF_LOG_PROBS / LOG_PROBS - 1 - d, "your ratio is a quotient of log-probs; it is exp(log ref - log pi)."),
        (LOG_PROBS.exp() * -d, "the samples come from pi already: do not weight by pi again."),
        _negative(q - 1 - d),
    ]


def _kl(
    function: Callable[..., Any],
    settings: dict[str, str],
    right: Tensor,
    right_gradient: Tensor,
    mistakes: list[tuple[Tensor, str]],
) -> None:
    setting = f"estimator={settings['estimator']!r}" if settings else "the default, estimator='k3'"
    log_probs, ref = LOG_PROBS.clone().requires_grad_(), REF_LOG_PROBS.clone().requires_grad_()
    result = call(function, log_probs, ref, **settings, setting=setting)
    found = as_tensor(result, f"With {setting}: the KL", (2, 3), "One value a token: no mean, no sum.")
    expect(found, right, mistakes, "the KL", setting)
    if not result.requires_grad:
        raise WrongAnswer(f"With {setting}: the values are right, but no gradient reaches log_probs.")
    gradient, to_ref = torch.autograd.grad(result.sum(), (log_probs, ref), allow_unused=True)
    if gradient is None:
        raise WrongAnswer(f"With {setting}: the values are right, but no gradient reaches log_probs.")
    expect(gradient, right_gradient, [], "the values are right, the gradient", setting)
    if to_ref is not None and (to_ref != 0).any():
        raise WrongAnswer(f"With {setting}: a gradient flows into the reference, which is fixed. Detach ref_log_probs.")
