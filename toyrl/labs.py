"""What the course's sliders compute, as plain functions: a widget shows the result, a notebook's assert checks it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.losses import IMPORTANCE_REWEIGHTING_METHODS, ClipRange, compute_policy_gradient_loss
from toyrl import bandits
from toyrl.epochs import compute_deltas, token_loss
from toyrl.settings import Delta, Settings, TokenLoss
from toyrl.sorting import Reward, get_reward


def baseline_lab(p: float, baseline: float, samples: int = 10, repeats: int = 2_000, seed: int = 0) -> dict[str, float]:
    """Return what a constant baseline does to the Bernoulli policy's gradient estimate, in closed form and simulated.

    Keys: gradient (p (1 - p)), variance, variance_without, variance_mean (b = p), best_baseline (1 - p), simulated_mean,
    simulated_variance (over `repeats` estimates of `samples` draws).
    """
    estimates = bandits.bernoulli_estimates(p, samples, repeats, baseline, seed)
    return {
        "gradient": p * (1 - p),
        "variance": bandits.bernoulli_variance(p, baseline, samples).item(),
        "variance_without": bandits.bernoulli_variance(p, 0.0, samples).item(),
        "variance_mean": bandits.bernoulli_variance(p, p, samples).item(),
        "best_baseline": 1 - p,
        "simulated_mean": estimates.mean().item(),
        "simulated_variance": estimates.var().item(),
    }


def reward_lab(
    prompt: list[int], responses: list[list[int]], reward: str | Reward, delta: str | tuple | Delta
) -> list[dict[str, object]]:
    """Return one row a response of one group: response, reward, delta, and whether it is pushed up, down or not at all."""
    rewards = get_reward(reward)(torch.tensor(prompt), torch.tensor(responses))
    deltas = compute_deltas(rewards.double(), delta)
    push = {-1.0: "down", 0.0: "none", 1.0: "up"}
    return [
        {"response": response, "reward": r, "delta": d, "push": push[sign]}
        for response, r, d, sign in zip(
            responses, rewards.tolist(), deltas.tolist(), deltas.sign().tolist(), strict=True
        )
    ]


def ratio_lab(
    advantage: float,
    loss: str | TokenLoss = "clipped",
    cliprange: ClipRange = 0.2,
    old_log_prob: float = -1.0,
    points: int = 201,
) -> dict[str, Tensor]:
    """Return a one-token loss and its gradient as the current log-prob moves around the old one.

    Keys, each (points,): log_prob, ratio (e^-1 to e), loss, gradient (of the loss with respect to the log-prob). Where
    clipping removes the token, the gradient is 0. Raises ValueError for an old log-prob that is not below 0.
    """
    if not old_log_prob < 0:
        raise ValueError(f"old_log_prob={old_log_prob} must be below 0")
    log_ratio = torch.linspace(-1, 1, points, dtype=torch.float64)
    old = torch.full((points, 1), old_log_prob, dtype=torch.float64)
    log_probs = (old + log_ratio.unsqueeze(1)).requires_grad_()
    deltas = torch.full((points, 1), advantage, dtype=torch.float64)
    values = token_loss(deltas, log_probs, old, Settings(loss=loss, cliprange=cliprange))
    (gradient,) = torch.autograd.grad(values.sum(), log_probs)
    return {
        "log_prob": log_probs.detach()[:, 0],
        "ratio": log_ratio.exp(),
        "loss": values.detach()[:, 0],
        "gradient": gradient[:, 0],
    }


@dataclass
class Baselines:
    """What `compute_baselines` returns."""

    p: float
    baseline: float
    samples: int
    numbers: dict[str, float]
    """Of `baseline_lab`."""
    estimates: Tensor
    """(repeats,): the simulated estimates of the gradient, each the mean over the samples."""
    states: bandits.TwoStates
    """The two-state example with the baselines that were chosen."""


def compute_baselines(
    p: float,
    baseline: float,
    samples: int = 10,
    baseline_a: float = 10.0,
    baseline_b: float = 1.0,
    repeats: int = 2_000,
) -> Baselines:
    """Put the Bernoulli policy and the two-state example under chosen baselines. Raises ValueError for p outside 0 to 1."""
    return Baselines(
        p,
        baseline,
        samples,
        baseline_lab(p, baseline, samples, repeats),
        bandits.bernoulli_estimates(p, samples, repeats, baseline),
        bandits.TwoStates(baselines=(baseline_a, baseline_b)),
    )


TOKENS: tuple[tuple[str, float, float], ...] = (
    ("3", 0.5, 1.0),
    ("+", 0.9, -0.5),
    ("12", 0.3, -1.5),
    ("=", 0.8, 0.5),
    ("15", 0.1, 1.5),
    ("</think>", 0.6, -1.0),
    ("<answer>", 0.95, 0.0),
    ("15 ", 0.2, 0.0),
)
"""A response: each token, its probability when it was sampled, and which way it goes where tokens differ (sum 0)."""


@dataclass
class Drift:
    """What `compute_drift` returns. Tensors are (tokens,)."""

    advantage: float
    cliprange: tuple[float, float]
    ratio: Tensor
    """Probability now over probability when sampled."""
    sequence_ratio: float
    """The geometric mean of the ratios, which GSPO uses."""
    weights: dict[str, Tensor]
    """By method: what multiplies grad log pi of each token; positive pushes the token up, 0 leaves it alone."""
    masked: dict[str, Tensor]
    """By method: whether clipping has removed the token's gradient."""


def compute_drift(
    advantage: float, drift: float = 0.0, spread: float = 0.0, lower: float = 0.2, upper: float = 0.2
) -> Drift:
    """Move the policy after it sampled TOKENS; say what each method makes of the tokens' weights.

    A token's logit, log p/(1 - p), moves by drift + spread x its direction. lower, upper: the clip range. The weights are
    autograd's, of the core's losses, summed over the tokens. Raises ValueError for numbers that are not finite, and for a
    range that the core refuses.
    """
    for name, value in (("advantage", advantage), ("drift", drift), ("spread", spread)):
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} must be a finite number")
    old = torch.tensor([[probability for _, probability, _ in TOKENS]], dtype=torch.float64)
    directions = torch.tensor([[direction for _, _, direction in TOKENS]], dtype=torch.float64)
    now = (old.logit() + drift + spread * directions).sigmoid()
    weights, masked = {}, {}
    for method in IMPORTANCE_REWEIGHTING_METHODS:
        log_probs = now.log().requires_grad_()
        deltas = torch.tensor([advantage], dtype=torch.float64)
        loss, _ = compute_policy_gradient_loss(deltas, log_probs, method, old.log(), (lower, upper))
        (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
        weights[method] = 0.0 - gradient[0]  # not minus, which makes -0.0 of 0
        masked[method] = (gradient[0] == 0) & (advantage != 0)
    ratio = (now / old)[0]
    return Drift(advantage, (lower, upper), ratio, ratio.log().mean().exp().item(), weights, masked)
