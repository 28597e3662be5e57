"""Checks of notebook 05: the clipped loss, a KL estimator with a sign error, inner steps for a budget.

Each check takes the learner's answer, prints one message and returns nothing. It raises for no answer, however wrong.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo.intervals import describe, mean_interval
from grpo.losses import compute_kl, compute_policy_gradient_loss
from toyrl.settings import Settings
from toyrl.training import train

EPSILON = 0.2
ROLLOUT_COST, UPDATE_COST, BUDGET = 10, 1, 600
"""Seconds for one epoch's rollouts, for one update, and in all, in `check_inner_steps`."""

BUDGET_SETTINGS = Settings(scale=0.2, loss="clipped")
BUDGET_SEEDS = 32
REFERENCE_STEPS = 16
"""The number of inner steps that `check_inner_steps` compares an answer with: the best of a sweep over powers of two."""
CLOSE_ENOUGH = 0.1
"""An answer passes when its mean expected reward (0 to 3) is at most this far below the reference's."""


def check_clipped_loss(my_loss: Callable[[Tensor, Tensor, Tensor, float], Any]) -> None:
    """Print whether a function computes -min(A w, A clip(w, 1 - e, 1 + e)) for every token, with the right gradient."""
    print(_judge(_clipped_loss, my_loss))


def check_k3(my_k3: Callable[[Tensor, Tensor], Any]) -> None:
    """Print whether a function computes k3 of KL(policy || reference) for every token, from samples of the policy."""
    print(_judge(_k3, my_k3))


def check_inner_steps(my_inner_steps: Any) -> None:
    """Print how much reward a number of inner steps buys for the budget, beside a number that is known to do well."""
    print(_inner_steps(my_inner_steps))


def epochs_for(inner_steps: int) -> int:
    """Return how many epochs the budget pays for, if each costs its rollouts and this many updates."""
    return BUDGET // (ROLLOUT_COST + inner_steps * UPDATE_COST)


def _judge(judge: Callable[[Any], str], answer: Any) -> str:
    """Return the judge's message; a fault in the learner's function becomes a message too."""
    if not callable(answer):
        return f"Give the check the function itself, without calling it; it got a {type(answer).__name__}."
    try:
        return judge(answer)
    except Exception as error:  # the learner's function may raise anything
        return f"Your function stopped with {type(error).__name__}: {error}"


def _cases() -> tuple[Tensor, Tensor, Tensor]:
    """Return advantages (4, 1), log-probs and old log-probs (4, 5): both signs, ratios far below, inside and far above."""
    ratios = torch.tensor([0.3, 0.7, 0.95, 1.1, 1.9], dtype=torch.float64)
    old = torch.tensor([-1.5, -0.9, -2.0, -1.2, -2.3], dtype=torch.float64).expand(4, 5).clone()
    advantages = torch.tensor([[1.0], [-1.0], [0.5], [-2.0]], dtype=torch.float64)
    return advantages, old + ratios.log(), old


def _value_and_gradient(loss: Callable[..., Any], epsilon: float = EPSILON) -> tuple[Any, Tensor | None]:
    """Call a loss on the cases; return its value, and the gradient of its sum, None where there is none."""
    advantages, log_probs, old = _cases()
    log_probs.requires_grad_()
    value = loss(advantages, log_probs, old, epsilon)
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value, None
    gradient = torch.autograd.grad(value.sum(), log_probs)[0]
    return value.detach(), gradient


def _right_loss(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    return compute_policy_gradient_loss(advantages, log_probs, "grpo", old, epsilon)[0]


def _clipped_only(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    return -advantages * (log_probs - old).exp().clamp(1 - epsilon, 1 + epsilon)


def _no_clip(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    return -advantages * (log_probs - old).exp()


def _maximum(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    ratio = (log_probs - old).exp()
    return -torch.maximum(advantages * ratio, advantages * ratio.clamp(1 - epsilon, 1 + epsilon))


def _no_log(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    ratio = log_probs - old
    return -torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - epsilon, 1 + epsilon))


def _quotient(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    ratio = log_probs / old
    return -torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - epsilon, 1 + epsilon))


def _upside_down(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    ratio = (old - log_probs).exp()
    return -torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - epsilon, 1 + epsilon))


def _negated(advantages: Tensor, log_probs: Tensor, old: Tensor, epsilon: float) -> Tensor:
    return -_right_loss(advantages, log_probs, old, epsilon)


_CLIP_MISTAKES: tuple[tuple[Callable[..., Tensor], str], ...] = (
    (_negated, "The sign is turned round: this is the objective, to be raised. A loss is to be lowered: put a minus."),
    (
        _no_clip,
        "Nothing is clipped: this is -A w. Compare A w with A clip(w, 1 - epsilon, 1 + epsilon), token by token.",
    ),
    (
        _clipped_only,
        "You always take the clipped term. Then a token with A < 0 whose ratio has risen to 1.9 has gradient 0, though the "
        "policy moved the wrong way and should come back. Take the smaller of A w and A clip(w).",
    ),
    (
        _maximum,
        "You keep the better of the two terms (for the objective, the maximum; for the loss, the minimum). Clipping is "
        "pessimistic: the objective is the minimum of A w and A clip(w), and the loss is minus that.",
    ),
    (_quotient, "Your ratio is log pi / log pi_old. The ratio of the probabilities is exp(log pi - log pi_old)."),
    (_no_log, "Your ratio is log pi - log pi_old: that is the logarithm of the ratio. Take its exp."),
    (_upside_down, "Your ratio is pi_old / pi, upside down. It is exp(log pi - log pi_old)."),
)


def _clipped_loss(my_loss: Callable[..., Any]) -> str:
    value, gradient = _value_and_gradient(my_loss)
    if value is None or value is ...:
        return "Not done yet: the function returns nothing. Return the loss of every token, shaped like log_probs."
    if not isinstance(value, Tensor):
        return f"Return a tensor, one loss a token; it got a {type(value).__name__}."
    right, right_gradient = _value_and_gradient(_right_loss)
    assert right_gradient is not None
    if value.shape != right.shape:
        return (
            f"For log_probs of shape {tuple(right.shape)} your loss has shape {tuple(value.shape)}. Return one loss a "
            "token, without a mean or a sum: averaging comes later."
        )
    if gradient is None:
        if torch.allclose(value.detach(), right):
            return (
                "The values are right, but no gradient reaches log_probs: do not detach the ratio, do not use no_grad."
            )
        return "No gradient reaches log_probs: compute the ratio from log_probs with torch, without detach or no_grad."
    for mistake, message in _CLIP_MISTAKES:
        wrong, _ = _value_and_gradient(mistake)
        if torch.allclose(value, wrong):
            return message
    if not torch.allclose(value, right):
        return _first_difference(value, right)
    if not torch.allclose(gradient, right_gradient):
        return "The values are right, but the gradient is not: the ratio must keep its gradient, and nothing else may."
    other, _ = _value_and_gradient(my_loss, 0.05)
    if not torch.allclose(other, _value_and_gradient(_right_loss, 0.05)[0]):
        return "With epsilon = 0.2 it is right, with 0.05 it is not: use the argument epsilon, not a fixed number."
    return "Right: your loss and its gradient agree with grpo's, for good and bad tokens, inside and outside the range."


def _first_difference(value: Tensor, right: Tensor) -> str:
    advantages, log_probs, old = _cases()
    row, column = (~torch.isclose(value, right)).nonzero()[0].tolist()
    ratio = (log_probs - old).exp()[row, column].item()
    return (
        f"For advantage {advantages[row].item():g} and ratio {ratio:.2f}, epsilon = {EPSILON}, your loss is "
        f"{value[row, column].item():.3f}; it should be {right[row, column].item():.3f}."
    )


def _two_policies() -> tuple[Tensor, Tensor]:
    """Return the log-probs of two distributions over four tokens, as columns (4, 1): a row is one sampled token."""
    policy = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.3, 0.2, 0.3], dtype=torch.float64)
    return policy.log().unsqueeze(1), reference.log().unsqueeze(1)


def _k3(my_k3: Callable[[Tensor, Tensor], Any]) -> str:
    log_probs, ref = _two_policies()
    value = my_k3(log_probs, ref)
    if value is None or value is ...:
        return "Not done yet: the function returns nothing. Return k3 of every token, shaped like log_probs."
    if not isinstance(value, Tensor):
        return f"Return a tensor, one value a token; it got a {type(value).__name__}."
    if value.shape != log_probs.shape:
        return (
            f"For log_probs of shape {tuple(log_probs.shape)} your result has shape {tuple(value.shape)}. "
            "Return one value a token, without a mean or a sum."
        )
    right, weights = compute_kl(log_probs, ref, "k3"), log_probs.exp()
    d = ref - log_probs
    mean, exact = (weights * value).sum().item(), (weights * -d).sum().item()
    mistakes: tuple[tuple[Tensor, str], ...] = (
        (
            (-d).exp() - 1 + d,
            f"Not done yet: it is never negative, and 0 where the policies agree, so it looks like a KL; but its mean over "
            f"samples of the policy is {mean:.2f}, and KL(policy || reference) is {exact:.2f}. Which way round is d?",
        ),
        (
            d.exp() - 1 + d,
            f"Its mean is {mean:.2f}, not {exact:.2f}, and it can be negative: after exp(d) - 1, d is *subtracted*.",
        ),
        ((-d).exp() - 1 - d, "exp has -d in it and the last term d: the same d = log ref - log pi must stand in both."),
        (-right, "This is minus k3: a divergence is never negative."),
        (-d, "This is k1 = -d: the right mean, but negative for some tokens. k3 adds exp(d) - 1 to it."),
        (d.square() / 2, "This is k2 = d^2 / 2: its mean is not the KL. k3 is exp(d) - 1 - d."),
        (d.exp() - d, "The 1 is missing: where the policies agree (d = 0) the estimate must be 0."),
    )
    for wrong, message in mistakes:
        if torch.allclose(value, wrong):
            return message
    if not torch.allclose(value, right):
        return f"Its mean over samples of the policy is {mean:.3f}; KL(policy || reference) is {exact:.3f}."
    return (
        f"Right: its mean over samples of the policy is {mean:.3f}, the exact KL(policy || reference), and no value is "
        "negative."
    )


def _inner_steps(answer: Any) -> str:
    if answer is None or answer is ...:
        return "Not done yet: set my_inner_steps to a whole number."
    if isinstance(answer, bool) or not isinstance(answer, int) or answer < 1:
        return f"my_inner_steps = {answer!r}: give a whole number of at least 1."
    epochs = epochs_for(answer)
    if epochs < 1:
        return f"{answer} updates an epoch cost more than the budget of {BUDGET} s: you never finish an epoch."
    mine = _final_rewards(answer)
    gap, half = mean_interval(_final_rewards(REFERENCE_STEPS) - mine)
    bought = f"{epochs} epochs with {answer} inner steps ({epochs * answer} updates)"
    result = f"mean expected reward {describe(mine)} of 3 over {BUDGET_SEEDS} seeds"
    if gap <= CLOSE_ENOUGH:
        if answer == REFERENCE_STEPS:
            return f"Right: {bought} give a {result}, the most in a sweep over powers of two."
        return f"Right: {bought} give a {result}; {REFERENCE_STEPS} inner steps give {gap:+.2f} ± {half:.2f} beside it."
    share = epochs * ROLLOUT_COST / BUDGET
    if answer < REFERENCE_STEPS:
        why = (
            f"{share:.0%} of the budget goes into rollouts, each used for too few updates. Use each sample more often."
        )
    else:
        why = (
            f"it pays for {epochs} epochs only, and the samples are stale long before you drop them. Sample more often."
        )
    return f"Not yet: {bought} give a {result}, {gap:.2f} ± {half:.2f} behind {REFERENCE_STEPS} inner steps: {why}"


def _final_rewards(inner_steps: int) -> Tensor:
    settings = replace(BUDGET_SETTINGS, inner_steps=inner_steps, epochs=epochs_for(inner_steps))
    return train(settings, seeds=BUDGET_SEEDS).final("expected_reward").double()
