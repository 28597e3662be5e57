"""Weights and noise of an estimator on a batch: by hand, from the known formulas, and by simulation."""

from pathlib import Path

import pytest
import torch

from grpo.own import load_own
from toyrl.batches import gradient_moments
from toyrl.checks.nb11 import ALIKE

shrunk = load_own("baseline", f"{Path(__file__).resolve().parents[2]}/data/experiments/own.py:shrunk")


def rest_of_batch(rewards):
    """The mean of all other responses of the batch, of whatever prompt."""
    return (rewards.sum() - rewards) / (rewards.numel() - 1)


@pytest.mark.parametrize("group_size", [2, 3])
def test_weights_are_those_that_are_known(group_size):
    """Leave-one-out and shrunk 1, the group mean (G - 1)/G, a constant 1, whatever the rates."""
    rates = (0.2, 0.6, 0.9)
    for baseline, expected in (
        ("leave_one_out", 1.0),
        (shrunk, 1.0),
        (rest_of_batch, 1.0),
        ("mean", (group_size - 1) / group_size),
        ("none", 1.0),
        (lambda r: torch.full_like(r, 0.5), 1.0),
    ):
        weight, _ = gradient_moments(baseline, rates, group_size)
        assert weight.tolist() == pytest.approx([expected] * 3, rel=1e-12)


def test_noise_by_hand():
    """One prompt, one response of 20 tokens, p = 1/4, no baseline: E|g|^2 = p (1 - 1/20), less |grad p|^2."""
    weight, noise = gradient_moments("none", (0.25,), 1)
    assert weight.item() == pytest.approx(1)
    assert noise.item() == pytest.approx(0.25 * 0.95 - 0.25 * 0.75 / 20, rel=1e-12)


def test_noise_against_simulation():
    """100,000 batches of two prompts of 20 tokens, 4 and 12 of them right, groups of 3, the shrunken baseline."""
    generator = torch.Generator().manual_seed(0)
    batches, group_size, right = 100_000, 3, torch.tensor([4, 12])
    tokens = torch.randint(20, (batches, 2, group_size), generator=generator)
    rewards = (tokens < right[None, :, None]).double()
    advantages = torch.stack([r - shrunk(r) for r in rewards])
    scores = torch.nn.functional.one_hot(tokens, 20).double() - 1 / 20
    estimates = (advantages[..., None] * scores).mean(dim=2)
    _, noise = gradient_moments(shrunk, (0.2, 0.6), group_size)
    assert estimates.var(dim=0).sum(-1).tolist() == pytest.approx(noise.tolist(), rel=0.02)


def test_the_shrunken_baseline_wins_where_prompts_are_alike_and_loses_where_not():
    def ratio(rates, group_size):
        ours, theirs = (gradient_moments(b, rates, group_size)[1].sum() for b in (shrunk, "leave_one_out"))
        return (ours / theirs).item()

    assert ratio(ALIKE, 2) < 0.75
    assert ratio(ALIKE, 4) < 1 < ratio((0.02, 0.02, 0.98, 0.98), 4)


def test_weights_of_grpo_and_maxrl_at_two_responses_by_hand():
    """G = 2: only one right of two has a signal, with chance 2 p (1 - p); s = sqrt(1/2) and mu = 1/2 there.

    GRPO: A = 1/2 / sqrt(1/2) for the right one, minus that for the other: the mean of A times grad log p, in units of
    grad p, is A / 2 (1/p + 1/(1 - p)) = A / (2 p (1 - p)), so the weight is A = sqrt(1/2). MaxRL: A = 1.
    """
    rates = (0.1, 0.5, 0.7)
    grpo = [gradient_moments("mean", (p,), 2, "std")[0].item() for p in rates]
    assert grpo == pytest.approx([0.5**0.5] * 3, rel=1e-5)
    maxrl = [gradient_moments("mean", (p,), 2, "mean")[0].item() for p in rates]
    assert maxrl == pytest.approx([1.0] * 3, rel=1e-5)


@pytest.mark.parametrize("p", [0.2, 0.7])
def test_weight_of_maxrl_at_any_group_size(p):
    """sum over k of P(k) (G - k)/(G (1 - p)) over k > 0, since every right one gets (1 - mu)/mu and every wrong one -1:
    the mean of A times its sign is k/G (G - k)/k / p + (G - k)/G / (1 - p) = (G - k)/(G p (1 - p)) there."""
    for g in (3, 5):
        total = sum(
            torch.distributions.Binomial(g, torch.tensor(p, dtype=torch.float64)).log_prob(torch.tensor(float(k))).exp()
            * (g - k)
            / (g * p * (1 - p))
            for k in range(1, g + 1)
        )
        assert gradient_moments("mean", (p,), g, "mean")[0].item() == pytest.approx(float(total), rel=1e-4)
