"""Bandits: problems small enough that every expectation is a formula or a short sum.

A policy over k actions with rewards r_a and scores s_a = grad log pi(a) is all there is. An estimate of the gradient from
one action with baseline b is (r_a - b) s_a. For the Bernoulli policy p = sigmoid(theta), reward 1 for action 1 and 0 for
action 0, the scores are 1 - p and -p, and the gradient of the expected reward is p (1 - p).
"""

from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from toyrl.epochs import compute_deltas
from toyrl.settings import Delta


@dataclass(frozen=True)
class TwoStates:
    """The lecture's example of a large variance between states: two states, two actions each."""

    rewards: tuple[tuple[float, float], tuple[float, float]] = ((11.0, 9.0), (0.0, 2.0))
    """rewards[state][action]."""
    baselines: tuple[float, float] = (10.0, 1.0)
    """The mean reward of each state."""

    def deltas(self, with_baseline: bool) -> Tensor:
        """Return the four rewards, minus their state's baseline if asked for, (4,)."""
        rewards = torch.tensor(self.rewards, dtype=torch.float64)
        return (rewards - torch.tensor(self.baselines).unsqueeze(1) if with_baseline else rewards).flatten()

    def standard_deviation(self, with_baseline: bool) -> float:
        """Return the sample standard deviation of the four deltas: 5.32 without baselines, 1.15 with them."""
        return self.deltas(with_baseline).std().item()


def moments(probabilities: Tensor, scores: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of the one-sample estimate delta_a s_a, by enumerating the actions.

    probabilities, deltas: (k,). scores: (k,) or (k, parameters). The results have the shape of one score.
    """
    shape = (-1,) + (1,) * (scores.ndim - 1)
    weight, estimates = probabilities.reshape(shape), deltas.reshape(shape) * scores
    mean = (weight * estimates).sum(dim=0)
    return mean, (weight * (estimates - mean) ** 2).sum(dim=0)


def optimal_baseline(probabilities: Tensor, scores: Tensor, rewards: Tensor) -> Tensor:
    """Return b* = E[s^2 r] / E[s^2], the constant baseline of least variance (Greensmith et al. 2004).

    probabilities, rewards: (k,). scores: (k,), or (k, parameters), where s^2 is the squared norm. Returns a number.
    """
    squared = scores.reshape(len(scores), -1).square().sum(dim=1)
    return (probabilities * squared * rewards).sum() / (probabilities * squared).sum()


def bernoulli(p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (probabilities, scores, rewards) of the Bernoulli policy, actions 0 and 1, each (2,) in float64."""
    _check_probability(p)
    probabilities = torch.tensor([1 - p, p], dtype=torch.float64)
    scores = torch.tensor([-p, 1 - p], dtype=torch.float64)
    return probabilities, scores, torch.tensor([0.0, 1.0], dtype=torch.float64)


def bernoulli_variance(p: Tensor | float, baseline: Tensor | float = 0.0, samples: int = 1) -> Tensor:
    """Return the variance of the mean of `samples` estimates with a constant baseline, in closed form.

    It is p (1 - p) (1 - p - b)^2 / samples. Without baseline: p (1 - p)^3. With the mean, b = p: p (1 - p) (1 - 2p)^2,
    which is *larger* than without for p > 2/3. With the optimal b* = 1 - p: 0. p and baseline broadcast.
    """
    p, baseline = torch.as_tensor(p, dtype=torch.float64), torch.as_tensor(baseline, dtype=torch.float64)
    return p * (1 - p) * (1 - p - baseline) ** 2 / samples


def bernoulli_estimates(p: float, samples: int, repeats: int, baseline: float = 0.0, seed: int = 0) -> Tensor:
    """Simulate: return `repeats` estimates of the gradient, each the mean over `samples` draws, (repeats,)."""
    _check_probability(p)
    generator = torch.Generator().manual_seed(seed)
    actions = (torch.rand(repeats, samples, generator=generator, dtype=torch.float64) < p).double()
    return ((actions - baseline) * (actions - p)).mean(dim=1)  # the score of action a is a - p, its reward a


def group_moments(p: float, group_size: int, delta: str | tuple | Delta = "centered") -> tuple[float, float]:
    """Return the exact mean and variance of one group's estimate, for any delta, by summing over the number of successes.

    Divided by p (1 - p), the mean is the weight the delta puts on a prompt of success rate p: 1 for "rewards" and
    "leave_one_out", (g - 1)/g for "centered"; as g grows, 1/sqrt(p (1 - p)) for "normalized".
    """
    probability, rewards = _groups(p, group_size)
    deltas = compute_deltas(rewards, delta)
    estimates = (deltas * (rewards - p)).mean(dim=1)
    mean = probability @ estimates
    return mean.item(), (probability @ (estimates - mean) ** 2).item()


def no_signal_probability(p: float, group_size: int, delta: str | tuple | Delta = "centered") -> float:
    """Return the probability that a group's deltas are all 0: (1-p)^g for "rewards"; (1-p)^g + p^g once centered."""
    probability, rewards = _groups(p, group_size)
    silent = (compute_deltas(rewards, delta) == 0).all(dim=1)
    return probability[silent].sum().item()


def _groups(p: float, group_size: int) -> tuple[Tensor, Tensor]:
    """Return every group by its number of successes: probabilities (g + 1,), rewards (g + 1, g), successes first."""
    _check_probability(p)
    if group_size < 1:
        raise ValueError(f"group_size={group_size} must be at least 1")
    successes = torch.arange(group_size + 1, dtype=torch.float64)
    ways = torch.tensor([comb(group_size, k) for k in range(group_size + 1)], dtype=torch.float64)
    probability = ways * p**successes * (1 - p) ** (group_size - successes)
    rewards = (torch.arange(group_size) < successes.unsqueeze(1)).double()
    return probability, rewards


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"p={p} must be between 0 and 1")
