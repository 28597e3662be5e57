"""What the course's sliders compute, as plain functions: a widget shows the result, a notebook's assert checks it."""

import torch
from torch import Tensor

from grpo.losses import ClipRange
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
