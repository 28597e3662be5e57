"""Checks of notebook 10: four logs to tell apart, a range for GSPO, an inner loop with a bug.

Each check takes the learner's answer and prints one message. It raises for no answer, however wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from grpo.checks.judge import WrongAnswer, as_tensor, call, judged, same

METHODS = ("on_policy", "noclip", "clip", "gspo")
"""The answers that `check_names` knows."""

FOUR_LOGS: dict[str, tuple[str, float, float, float, float]] = {
    "A": ("clip", 0.999, 0.0600, 0.039, 25.3),
    "B": ("on_policy", 1.0, 0.0, 0.0, 1.0),
    "C": ("gspo", 0.965, 0.0411, 0.573, 1.2),
    "D": ("noclip", 0.994, 0.1662, 0.0, 53.4),
}
"""Run: (method, mean ratio, KL to the old policy in nats a token, clip fraction, largest ratio); off_policy, seed 42."""


def four_logs() -> str:
    """FOUR_LOGS as a table, without the methods."""
    lines = ["run   mean ratio   KL to the old policy   clip fraction   largest ratio"]
    for run, (_, ratio, kl, fraction, largest) in FOUR_LOGS.items():
        lines.append(f"{run:5} {ratio:10.3f}   {kl:20.4f}   {fraction:13.3f}   {largest:13.1f}")
    return "\n".join(lines)


def check_names(my_names: Any) -> None:
    """Print whether a dict gives each of the FOUR_LOGS its method, and if not, what speaks against it."""
    print(_names(my_names))


def check_range(my_range: Callable[..., Any]) -> None:
    """Print whether a function of (log-ratios, mask, share) gives the smallest range that clips that share of sequences."""
    print(_range(my_range))


def check_inner_loop(my_inner_steps: Callable[..., Any]) -> None:
    """Print whether a loop takes its steps on the clipped loss, with ratios to the policy that sampled."""
    print(_inner_loop(my_inner_steps))


_WHY_NOT = {
    "on_policy": "On-policy, the policy that is trained is the one that sampled: its ratios are 1 and the KL is 0.",
    "noclip": "noclip removes no gradient: its clip fraction is 0, although its ratios are not 1.",
    "clip": "clip at 0.2 takes out single tokens, a small share of them.",
    "gspo": "GSPO at 3e-4 takes out whole responses, most of them here, with all of their tokens.",
}


def _names(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(FOUR_LOGS):
        return f"Give a dict with the keys {', '.join(FOUR_LOGS)}."
    if any(name is None or name is ... for name in answer.values()):
        return "Not done yet: give each run one of " + ", ".join(map(repr, METHODS)) + "."
    for run, name in answer.items():
        if name not in METHODS:
            return f"{run}: {name!r} is none of {', '.join(map(repr, METHODS))}."
    for run, name in answer.items():
        if name != FOUR_LOGS[run][0]:
            return f"{run} is not {name!r}. {_WHY_NOT[name]}"
    return "Right: ratios of 1 are on-policy; without them, no clipping is noclip, a few tokens clip, whole responses GSPO."


def smallest_range(distances: Tensor, share: float) -> float:
    """The smallest e such that at most that share of the distances is above it."""
    allowed = int(share * len(distances) + 1e-9)
    return torch.sort(distances, descending=True).values[allowed].item()


@judged
def _range(function: Callable[..., Any]) -> str:
    generator = torch.Generator().manual_seed(10)
    for rows, width, share in ((20, 6, 0.1), (7, 5, 0.0), (40, 8, 0.25)):
        log_ratios = 0.4 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
        lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
        mask = torch.arange(width) < lengths
        setting = f"{rows} rollouts, {width} columns, share={share}"
        found = call(function, log_ratios.clone(), mask.clone(), share, setting=setting)
        found = float(found)
        masked = log_ratios.masked_fill(~mask, 0.0)
        mean = masked.sum(1) / mask.sum(1)
        right = smallest_range((mean.exp() - 1).abs(), share)
        if abs(found - right) < 1e-6:
            continue
        sequence = (mean.exp() - 1).abs()
        outside = (sequence > found).double().mean().item()
        mistakes = {
            "that of single tokens, padding and all": (log_ratios.exp() - 1).abs().flatten(),
            "that of single tokens; GSPO looks at sequences": (log_ratios[mask].exp() - 1).abs(),
            "made with the mean over all columns: the padding is in it": (log_ratios.mean(1).exp() - 1).abs(),
            "made with the sum over all columns, divided by the length: the padding is in it": (
                (log_ratios.sum(1) / mask.sum(1)).exp() - 1
            ).abs(),
            "made with the padding counted in the length": (masked.mean(1).exp() - 1).abs(),
            "made with the mean of the ratios: GSPO takes the exponential of the mean log-ratio": (
                (log_ratios.exp() * mask).sum(1) / mask.sum(1) - 1
            ).abs(),
            "made with the product of the ratios: divide the sum of log-ratios by the length": (
                masked.sum(1).exp() - 1
            ).abs(),
            "the distance of the mean log-ratio from 0: take the ratio's, exp of it, from 1": mean.abs(),
        }
        for message, distances in mistakes.items():
            if abs(found - smallest_range(distances, share)) < 1e-6:
                raise WrongAnswer(f"With {setting}: your range is {message}.")
        if share and abs(found - smallest_range(sequence, 1 - share)) < 1e-6:
            raise WrongAnswer(f"With {setting}: your range leaves that share of the sequences inside, not outside.")
        raise WrongAnswer(
            f"With {setting}: outside 1 ± {found:.4f} are {outside:.0%} of the sequences; the smallest range with at most "
            f"{share:.0%} outside is {right:.4f}."
        )
    return "Right: one ratio a sequence, its response tokens alone, and no more than the share outside."


def inner_steps(
    logits: Tensor,
    actions: Tensor,
    advantages: Tensor,
    steps: int,
    learning_rate: float,
    cliprange: float,
    wrong: str = "",
) -> Tensor:
    """The exercise's loop done right, or with one of the mistakes that the check knows."""
    first = logits.log_softmax(0)[actions].detach()
    for _ in range(steps):
        logits = logits.detach().requires_grad_()
        log_probs = logits.log_softmax(0)[actions]
        old = log_probs.detach() if wrong == "anew" else first
        if wrong == "before":
            first = log_probs.detach()
        ratio = log_probs / old if wrong == "quotient" else (log_probs - old).exp()
        clipped = ratio.clamp(1 - cliprange, 1 + cliprange)
        terms = torch.minimum(advantages * ratio, advantages * clipped)
        if wrong == "clipped alone":
            terms = advantages * clipped
        if wrong == "no clip":
            terms = advantages * ratio
        sign = 1 if wrong == "sign" else -1
        (gradient,) = torch.autograd.grad(sign * terms.mean(), logits)
        logits = logits - learning_rate * gradient
    return logits.detach()


_LOOP_MISTAKES = {
    "anew": "the old log-probs are taken anew in each step, so the ratio is always 1 and nothing is ever clipped. They are "
    "those of the policy that sampled: take them once, before the loop.",
    "before": "the old log-probs are those of the step before. The samples come from the policy before the loop.",
    "quotient": "the ratio is the exponential of a difference of log-probs, not their quotient (notebook 05).",
    "clipped alone": "the loss takes the clipped term always; it is the minimum of the two.",
    "no clip": "nothing is clipped now: the loss is the minimum of A w and A clip(w, 1 - e, 1 + e).",
    "sign": "the steps go the wrong way: the loss is minus the mean, and the logits go down its gradient.",
}


@judged
def _inner_loop(function: Callable[..., Any]) -> str:
    logits = torch.tensor([0.3, -0.2, 0.1, -0.6, 0.0], dtype=torch.float64)
    actions = torch.tensor([0, 1, 1, 2, 3, 4, 0, 2])
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -1.5, 1.0, -1.5], dtype=torch.float64)
    for steps, rate, cliprange in ((1, 0.5, 0.2), (12, 0.6, 0.2), (25, 0.4, 0.1)):
        setting = f"{steps} steps, learning rate {rate}, range {cliprange}"
        given = logits.clone()
        result = call(function, given, actions.clone(), advantages.clone(), steps, rate, cliprange, setting=setting)
        found = as_tensor(result, "the result", (5,), "Return the logits after the last step.")
        if same(found, inner_steps(logits, actions, advantages, steps, rate, cliprange)):
            continue
        if same(found, logits):
            raise WrongAnswer(f"With {setting}: the logits did not move. Does a gradient flow through the ratio?")
        for wrong, message in _LOOP_MISTAKES.items():
            if same(found, inner_steps(logits, actions, advantages, steps, rate, cliprange, wrong)):
                raise WrongAnswer(f"With {setting}: {message}")
        right = inner_steps(logits, actions, advantages, steps, rate, cliprange)
        raise WrongAnswer(
            f"With {setting}: the first logit ends at {found[0]:.4f}; it should end at {right[0]:.4f}. One step alone is "
            f"{'right' if steps > 1 else 'wrong already'}."
        )
    return (
        "Right: the ratio is to the policy that sampled, it leaves 1 after the first step, and clipping has work to do."
    )
