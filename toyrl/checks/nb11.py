"""Checks of notebook 11: the best k, what baselines do to the gradient, a baseline of one's own.

Each check takes the learner's answer and prints one message. It raises for no answer, however wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from grpo.checks.judge import WrongAnswer, as_tensor, call, judged
from toyrl.batches import gradient_moments

ALIKE = (0.3, 0.35, 0.4, 0.45)
"""Success rates of four prompts that resemble each other."""

UNLIKE = (0.05, 0.3, 0.7, 0.95)
"""Success rates of four that do not."""

KINDS = ("unbiased", "factor", "another direction")
"""The answers that `check_kinds` knows."""

BASELINES = {
    "mean of the group": "factor",
    "mean of the others": "unbiased",
    "0.5": "unbiased",
    "median": "another direction",
}
"""What `check_kinds` asks about, and what each does to the expected gradient."""


def check_k(my_k: Callable[..., Any]) -> None:
    """Print whether a function of success rates gives the k of the least squared error, E[p (1 - p)] / Var(p)."""
    print(_k(my_k))


def check_kinds(my_kinds: Any) -> None:
    """Print whether a dict says of each of BASELINES what it does to the expected gradient."""
    print(_kinds(my_kinds))


def check_baseline(my_baseline: Callable[..., Any]) -> None:
    """Print whether a callable is a baseline: shape, order, shift, bias; and its exact noise beside leave-one-out's."""
    print(_baseline(my_baseline))


@judged
def _k(function: Callable[..., Any]) -> str:
    for rates in ([0.2, 0.4, 0.6], [0.5, 0.7], [0.1, 0.15, 0.3, 0.9, 0.95]):
        found = float(call(function, list(rates), setting=f"the rates {rates}"))
        p = torch.tensor(rates, dtype=torch.float64)
        within, between = (p * (1 - p)).mean().item(), p.var(correction=0).item()
        right = within / between
        mistakes = {
            "upside down: much spread between prompts must give a small k": between / within,
            "E[p] (1 - E[p]) over the variance: the mean of p (1 - p), not p (1 - p) of the mean": (
                p.mean() * (1 - p.mean())
            ).item()
            / between,
            "with the standard deviation in place of the variance of the rates": within / between**0.5,
            "with the sample's variance: these are all the prompts there are, divide by their number": within
            / p.var().item(),
            "the variance within alone; how far the prompts lie apart counts too": within,
        }
        if abs(found - right) < 1e-6 * max(1, right):
            continue
        for message, wrong in mistakes.items():
            if abs(found - wrong) < 1e-6 * max(1, wrong):
                raise WrongAnswer(f"With the rates {rates}: your k is {message}.")
        raise WrongAnswer(f"With the rates {rates}: your k is {found:.4f}; it should be {right:.4f}.")
    return (
        "Right: the noise of one reward over the spread of the prompts; as many rewards' worth of trust in the others."
    )


_WHY = {
    "mean of the group": "the mean holds 1/G of the response's own reward, and takes that share of the gradient away, for "
    "every p alike: a factor (G - 1) / G.",
    "mean of the others": "it never sees the reward of its own response, so E[b grad log pi] = 0.",
    "0.5": "a constant sees no reward at all.",
    "median": "the median of a group changes with the response's own reward, more where p is near 1/2, so hard and easy "
    "prompts get other weights than the expected reward gives them.",
}


def _kinds(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(BASELINES):
        return f"Give a dict with the keys {', '.join(map(repr, BASELINES))}."
    for name, kind in answer.items():
        if kind is None or kind is ...:
            return f"Not done yet: say of {name!r} one of {', '.join(map(repr, KINDS))}."
        if kind not in KINDS:
            return f"{name!r}: {kind!r} is none of {', '.join(map(repr, KINDS))}."
    for name, kind in answer.items():
        if kind != BASELINES[name]:
            return f"{name!r} is not {kind!r}: {_WHY[name]}"
    return "Right: what counts is whether, and how, a baseline looks at the reward of its own response."


@judged
def _baseline(function: Callable[..., Any]) -> str:
    generator = torch.Generator().manual_seed(11)
    table = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    result = call(function, table.clone(), setting="rewards of shape (3, 4)")
    if isinstance(result, Tensor) and tuple(result.shape) == (3, 1):
        result = result.expand(3, 4)
    found = as_tensor(result, "the baseline", (3, 4), "One number a response, or (3, 1), one a group.")
    order = torch.tensor([2, 0, 3, 1])
    again = _numbers(function, table[:, order])
    if not torch.allclose(again, found[:, order]):
        raise WrongAnswer(
            "The order within a group matters to your baseline: permute the responses of a group, and each must keep "
            "its own value."
        )
    for name, rewards in {
        "all wrong": torch.zeros(3, 4),
        "all right": torch.ones(3, 4),
        "one group": table[:1],
    }.items():
        if not _numbers(function, rewards.double()).isfinite().all():
            raise WrongAnswer(f"With rewards that are {name} your baseline is not finite.")
    if not torch.allclose(_numbers(function, table + 10), found + 10, atol=1e-6):
        raise WrongAnswer(
            "Add 10 to every reward, and nothing should change: the baseline must rise by 10 with them. Yours does not, so "
            "advantages depend on where the rewards' zero is."
        )
    return _noise_message(function)


def _numbers(function: Callable[..., Any], table: Tensor) -> Tensor:
    return torch.as_tensor(call(function, table.clone()), dtype=torch.float64).expand(table.shape)


def _noise_message(function: Callable[..., Any]) -> str:
    """Bias, and noise beside leave-one-out's, on both kinds of prompts at groups of 4."""
    ratios = []
    for rates in (ALIKE, UNLIKE):
        weight, noise = gradient_moments(function, rates, 4)
        if not torch.allclose(weight, torch.ones_like(weight), atol=1e-6):
            shown = ", ".join(f"{w:.3f}" for w in weight.tolist())
            if (weight - weight.mean()).abs().max() < 1e-6:
                raise WrongAnswer(
                    f"Biased by a factor: the expected gradient is {weight[0]:.3f} of the right one for every prompt. Your "
                    "baseline holds a share of the response's own reward; leave it out. (A factor is harmless to Adam, and "
                    "it is not what you meant to change.)"
                )
            raise WrongAnswer(
                f"Biased: prompts of success rates {rates} get the weights {shown} in place of 1. Your baseline looks at "
                "the reward of its own response."
            )
        ratios.append((noise.sum() / gradient_moments("leave_one_out", rates, 4)[1].sum()).item())
    alike, unlike = ratios
    if min(ratios) >= 1 - 1e-6:
        raise WrongAnswer(
            f"Unbiased, but not less noisy: {alike:.2f} times leave-one-out's noise on prompts that are alike, "
            f"{unlike:.2f} times on prompts that are not. What else in the batch says something about a prompt's rate?"
        )
    return (
        f"Right: unbiased, and its noise is {alike:.2f} times leave-one-out's on prompts that are alike, {unlike:.2f} "
        "times on prompts that are not (exact, groups of 4). Now say where it should win, and test that."
    )
