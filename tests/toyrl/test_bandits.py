import math

import pytest
import torch

from toyrl import bandits


def test_two_states_of_the_lecture():
    states = bandits.TwoStates()
    assert states.standard_deviation(with_baseline=False) == pytest.approx(5.32, abs=0.005)
    assert states.standard_deviation(with_baseline=True) == pytest.approx(1.15, abs=0.005)
    assert states.deltas(with_baseline=True).tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("baseline", [0.0, 0.3, 1.0])
def test_closed_form_variance_equals_enumeration(p, baseline):
    probabilities, scores, rewards = bandits.bernoulli(p)
    mean, variance = bandits.moments(probabilities, scores, rewards - baseline)
    assert mean.item() == pytest.approx(p * (1 - p))
    assert bandits.bernoulli_variance(p, baseline).item() == pytest.approx(variance.item(), abs=1e-15)
    assert bandits.bernoulli_variance(p, baseline, samples=8).item() == pytest.approx(variance.item() / 8, abs=1e-15)


def test_variances_of_the_storyboard():
    p = torch.tensor([0.2, 0.6, 0.7, 0.9], dtype=torch.float64)
    plain, with_mean, best = (bandits.bernoulli_variance(p, b) for b in (0.0, p, 1 - p))
    torch.testing.assert_close(plain, p * (1 - p) ** 3)
    torch.testing.assert_close(with_mean, p * (1 - p) * (1 - 2 * p) ** 2)
    assert (with_mean > plain).tolist() == [False, False, True, True]  # the mean hurts above 2/3
    two_thirds = torch.tensor(2 / 3, dtype=torch.float64)
    equal = bandits.bernoulli_variance(two_thirds, two_thirds), bandits.bernoulli_variance(two_thirds)
    torch.testing.assert_close(*equal)
    assert best.abs().max().item() < 1e-30


def test_optimal_baseline_is_one_minus_p_and_beats_every_other():
    probabilities, scores, rewards = bandits.bernoulli(0.8)
    best = bandits.optimal_baseline(probabilities, scores, rewards).item()
    assert best == pytest.approx(0.2)
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(6, generator=generator, dtype=torch.float64).softmax(dim=0)
    scores = torch.eye(6, dtype=torch.float64) - probabilities  # of a softmax policy, one row an action
    rewards = torch.randn(6, generator=generator, dtype=torch.float64)
    best = bandits.optimal_baseline(probabilities, scores, rewards)

    def total_variance(baseline):
        return bandits.moments(probabilities, scores, rewards - baseline)[1].sum().item()

    assert total_variance(best) < min(total_variance(best + 0.01), total_variance(best - 0.01))


def test_constant_baseline_leaves_the_mean_alone_and_one_that_looks_at_the_action_does_not():
    probabilities, scores, rewards = bandits.bernoulli(0.3)
    plain, _ = bandits.moments(probabilities, scores, rewards)
    constant, _ = bandits.moments(probabilities, scores, rewards - 7.0)
    looking, _ = bandits.moments(probabilities, scores, rewards - 0.5 * rewards)
    assert constant.item() == pytest.approx(plain.item())
    assert looking.item() == pytest.approx(plain.item() / 2)


def test_simulation_agrees_with_the_closed_form():
    p, samples, baseline = 0.7, 5, 0.4
    estimates = bandits.bernoulli_estimates(p, samples, repeats=200_000, baseline=baseline)
    expected = bandits.bernoulli_variance(p, baseline, samples).item()
    assert estimates.mean().item() == pytest.approx(p * (1 - p), abs=5 * math.sqrt(expected / 200_000))
    assert estimates.var().item() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("group_size", [2, 4, 10])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_group_mean_shrinks_the_gradient_and_leave_one_out_does_not(p, group_size):
    gradient = p * (1 - p)
    for delta, factor in [("rewards", 1), ("centered", (group_size - 1) / group_size), ("leave_one_out", 1)]:
        assert bandits.group_moments(p, group_size, delta)[0] == pytest.approx(factor * gradient)


def test_group_moments_equal_enumeration_of_every_group():
    p, g = 0.3, 3
    groups = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * g)
    probability = (p**groups * (1 - p) ** (1 - groups)).prod(dim=1)
    deltas = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-6)
    estimates = (deltas * (groups - p)).mean(dim=1)
    mean = (probability * estimates).sum()
    variance = (probability * (estimates - mean) ** 2).sum()
    assert bandits.group_moments(p, g, "normalized") == pytest.approx((mean.item(), variance.item()))


def test_normalized_weight_tends_to_one_over_the_standard_deviation():
    p = 0.2
    weight = bandits.group_moments(p, 512, "normalized")[0] / (p * (1 - p))
    assert weight == pytest.approx(1 / math.sqrt(p * (1 - p)), rel=0.01)


def test_no_signal():
    p, g = 0.1, 8
    assert bandits.no_signal_probability(p, g, "rewards") == pytest.approx(0.9**8)
    assert bandits.no_signal_probability(p, g, "centered") == pytest.approx(0.9**8 + 0.1**8)


def test_refuses_what_is_no_probability():
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="must be between 0 and 1"):
            bandits.bernoulli(p)
    with pytest.raises(ValueError, match="group_size=0 must be at least 1"):
        bandits.group_moments(0.5, 0)
