from dataclasses import replace

import pytest
import torch

from toyrl import exact
from toyrl.epochs import compute_deltas, token_loss
from toyrl.estimators import estimator_moments, product_of_ratios, sample_gradients, true_logit_gradient
from toyrl.policy import Policy, init_policy, token_log_probs, token_logits
from toyrl.settings import Settings
from toyrl.sorting import DEFAULT_PROMPTS

ONE_PROMPT = Settings(prompts=DEFAULT_PROMPTS[:1])


def log_probs_of(seed, n=3, vocab=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, vocab, generator=generator, dtype=torch.float64).log_softmax(dim=-1)


def rewards_of(name="positions_right"):
    return exact.reward_table(name, DEFAULT_PROMPTS[:1], 5)[0]


def moments_by_every_group(log_probs, rewards, settings, old):
    """Enumerate all groups of all responses, and the gradient of each by autograd."""
    n, vocab = log_probs.shape
    responses = exact.all_responses(n, vocab)
    probability = exact.all_response_log_probs(old).exp()
    groups = torch.cartesian_prod(*[torch.arange(len(responses))] * settings.responses)
    weight = probability[groups].prod(dim=1)
    deltas = compute_deltas(rewards[groups], settings.delta)
    estimates = []
    for group, delta in zip(groups, deltas, strict=True):
        logits = log_probs.detach().clone().requires_grad_()
        picked = logits.log_softmax(dim=-1)[torch.arange(n), responses[group]]
        loss = token_loss(delta.unsqueeze(1), picked, old[torch.arange(n), responses[group]], settings)
        estimates.append(-torch.autograd.grad(loss.sum() / settings.responses, logits)[0].flatten())
    stacked = torch.stack(estimates)
    mean = weight @ stacked
    return mean.reshape(n, vocab), (stacked - mean).T @ (weight.unsqueeze(1) * (stacked - mean))


@pytest.mark.parametrize("loss", ["naive", "clipped", "gspo", "cispo", product_of_ratios])
@pytest.mark.parametrize("delta", ["centered", "normalized", "max"])
def test_moments_equal_enumeration_of_every_group(loss, delta):
    # Two positions, two symbols, three responses a group: 4^3 groups, visited one by one.
    log_probs, old = log_probs_of(0, 2, 2), log_probs_of(1, 2, 2)
    rewards = torch.tensor([0.0, 1.0, 1.0, 3.0], dtype=torch.float64)
    settings = Settings(loss=loss, delta=delta, responses=3)
    got = estimator_moments(log_probs, rewards, settings, old)
    mean, covariance = moments_by_every_group(log_probs, rewards, settings, old)
    torch.testing.assert_close(got.mean, mean)
    torch.testing.assert_close(got.covariance, covariance)
    assert got.variance == pytest.approx(covariance.trace().item())


@pytest.mark.parametrize(("delta", "factor"), [("rewards", 1), ("centered", 0.9), ("leave_one_out", 1)])
@pytest.mark.parametrize("reward", ["positions_right", "inclusion_and_order", "sorted_or_not"])
def test_on_policy_mean_is_the_true_gradient_times_its_factor(reward, delta, factor):
    log_probs, rewards = log_probs_of(0), rewards_of(reward)
    moments = estimator_moments(log_probs, rewards, replace(ONE_PROMPT, delta=delta, responses=10))
    torch.testing.assert_close(moments.mean, factor * true_logit_gradient(log_probs, rewards), atol=1e-12, rtol=1e-9)


def test_centering_cuts_the_variance():
    log_probs, rewards = log_probs_of(0), rewards_of("inclusion_and_order")
    plain = estimator_moments(log_probs, rewards, replace(ONE_PROMPT, delta="rewards"))
    centered = estimator_moments(log_probs, rewards, replace(ONE_PROMPT, delta="leave_one_out"))
    assert centered.variance < plain.variance / 3


def test_product_of_ratios_is_unbiased_on_stale_samples_and_the_naive_loss_is_not():
    log_probs, old, rewards = log_probs_of(0), log_probs_of(5), rewards_of()
    truth = true_logit_gradient(log_probs, rewards)
    raw = replace(ONE_PROMPT, delta="rewards")
    product = estimator_moments(log_probs, rewards, replace(raw, loss=product_of_ratios), old)
    naive = estimator_moments(log_probs, rewards, raw, old)
    torch.testing.assert_close(product.mean, truth)
    assert (naive.mean - truth).norm() > 0.3 * truth.norm()
    assert product.variance > 3 * naive.variance


@pytest.mark.parametrize("delta", ["centered", "normalized"])
def test_sampled_gradients_have_the_exact_mean_and_variance(delta):
    policy = init_policy([3], scale=0.5, dtype=torch.float64)
    settings = replace(ONE_PROMPT, delta=delta)
    log_probs = token_log_probs(policy, settings.prompts)[0, 0]
    moments = estimator_moments(log_probs, rewards_of(), settings)

    def logits(*parameters):
        return token_logits(Policy(*parameters), settings.prompts)[0, 0].flatten()

    blocks = torch.autograd.functional.jacobian(logits, tuple(policy.parameters()))
    jacobian = torch.cat([block.flatten(start_dim=1) for block in blocks], dim=1)
    samples = sample_gradients(policy, settings, repeats=4_000)
    variance = (jacobian.T @ moments.covariance @ jacobian).trace().item()
    error = (samples.mean(dim=0) - moments.mean.flatten() @ jacobian).norm().item()
    assert samples.shape == (4_000, 650)
    assert error < 3 * (variance / 4_000) ** 0.5
    assert samples.var(dim=0).sum().item() == pytest.approx(variance, rel=0.05)


def test_sampled_gradients_average_over_prompts_like_the_exact_gradient():
    policy = init_policy([3], scale=0.5, dtype=torch.float64)
    truth = exact.flatten(exact.policy_gradient(policy, DEFAULT_PROMPTS, "positions_right"))[0]
    samples = sample_gradients(policy, Settings(delta="leave_one_out"), repeats=4_000)
    assert (samples.mean(dim=0) - truth).norm() < 0.1 * truth.norm()


def test_refusals():
    with pytest.raises(ValueError, match="policy holds 2 models"):
        sample_gradients(init_policy([0, 1]), ONE_PROMPT, repeats=2)
    first_only = replace(ONE_PROMPT, delta=lambda rewards: rewards * torch.eye(10, dtype=rewards.dtype)[0])
    with pytest.raises(ValueError, match="gives equal rewards of one group different deltas"):
        estimator_moments(log_probs_of(0), rewards_of(), first_only)
