import math

import pytest
import torch

from grpo.losses import compute_kl
from toyrl import exact, sorting
from toyrl.policy import Policy, init_policy, token_log_probs
from toyrl.sorting import DEFAULT_PROMPTS, REWARDS


def random_log_probs(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).log_softmax(dim=-1)


def test_all_responses_are_125_in_order():
    responses = exact.all_responses(3, 5)
    assert responses.shape == (125, 3)
    assert responses[0].tolist() == [0, 0, 0]
    assert responses[1].tolist() == [0, 0, 1]
    assert responses[-1].tolist() == [4, 4, 4]
    assert exact.all_responses(1, 4).tolist() == [[0], [1], [2], [3]]
    with pytest.raises(ValueError, match="has 10000000 responses"):
        exact.all_responses(7, 10)


def test_sparse_reward_pays_one_response_in_125():
    table = exact.reward_table("sorted_or_not", DEFAULT_PROMPTS, 5)
    assert table.shape == (3, 125)
    assert table.sum(dim=1).tolist() == [1, 1, 1]
    distribution = exact.reward_distribution("sorted_or_not", DEFAULT_PROMPTS[0], 5)
    assert distribution == pytest.approx({0.0: 124 / 125, 1.0: 1 / 125})


def test_positions_right_under_the_uniform_policy_is_binomial():
    distribution = exact.reward_distribution("positions_right", DEFAULT_PROMPTS[0], 5)
    binomial = {float(k): math.comb(3, k) * 0.2**k * 0.8 ** (3 - k) for k in range(4)}
    assert distribution == pytest.approx(binomial)


def test_all_response_probabilities_are_products_and_sum_to_one():
    log_probs = random_log_probs(2, 3, 3, 5)
    probs = exact.all_response_log_probs(log_probs).exp()
    assert probs.shape == (2, 3, 125)
    torch.testing.assert_close(probs.sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))
    a, b, c = 4, 0, 2
    index = a * 25 + b * 5 + c
    expected = (log_probs[1, 2, 0, a] + log_probs[1, 2, 1, b] + log_probs[1, 2, 2, c]).exp()
    torch.testing.assert_close(probs[1, 2, index], expected)


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("prompts", [DEFAULT_PROMPTS, torch.tensor([[2, 2, 1], [0, 0, 0], [4, 1, 4]])])
def test_factorised_expectations_equal_the_enumerated_ones(name, prompts):
    logits = random_log_probs(2, 3, 3, 5).requires_grad_()
    log_probs = logits.log_softmax(dim=-1)
    fast = exact.expected_reward(log_probs, prompts, name)
    slow = exact.expected_reward(log_probs, prompts, REWARDS[name])
    torch.testing.assert_close(fast, slow)
    (fast_gradient,) = torch.autograd.grad(fast.sum(), logits, retain_graph=True)
    (slow_gradient,) = torch.autograd.grad(slow.sum(), logits)
    torch.testing.assert_close(fast_gradient, slow_gradient)


def test_factorised_expectations_work_at_six_positions_and_ten_symbols():
    # Certain of the sorted response, each reward is at its maximum: 1, n, 2n - 1.
    prompts = torch.tensor([[5, 3, 9, 0, 7, 1]])
    target = torch.nn.functional.one_hot(prompts.sort().values, 10).double()
    log_probs = (target * 800 - 400).reshape(1, 1, 6, 10).log_softmax(dim=-1)
    got = {name: exact.expected_reward(log_probs, prompts, name).item() for name in REWARDS}
    assert got == pytest.approx({"sorted_or_not": 1, "positions_right": 6, "inclusion_and_order": 11})
    assert exact.sorted_probability(log_probs, prompts).item() == pytest.approx(1)


def test_process_reward_has_the_expectation_of_its_sum():
    log_probs = random_log_probs(1, 3, 3, 5)
    process = exact.expected_reward(log_probs, DEFAULT_PROMPTS, sorting.positions_right_process)
    torch.testing.assert_close(process, exact.expected_reward(log_probs, DEFAULT_PROMPTS, "positions_right"))


def test_policy_gradient_equals_finite_differences():
    policy = init_policy([1, 2], dtype=torch.float64)
    gradient = exact.policy_gradient(policy, DEFAULT_PROMPTS, "inclusion_and_order")

    def value(embedding):
        moved = Policy(embedding, policy.encode, policy.decode)
        return exact.expected_reward(token_log_probs(moved, DEFAULT_PROMPTS), DEFAULT_PROMPTS, "inclusion_and_order")

    step = torch.zeros_like(policy.embedding)
    step[1, 2, 3] = 1e-6
    difference = (value(policy.embedding + step) - value(policy.embedding - step)).mean(dim=1) / 2e-6
    assert difference[0].item() == pytest.approx(0, abs=1e-12)  # seed 0 does not see seed 1's parameters
    assert difference[1].item() == pytest.approx(gradient.embedding[1, 2, 3].item(), rel=1e-6)


def test_policy_gradient_equals_the_log_derivative_sum():
    # The theorem itself: sum over responses of pi(y) r(y) grad log pi(y).
    policy = init_policy([3], dtype=torch.float64).trainable()
    table = exact.reward_table("positions_right", DEFAULT_PROMPTS, 5)
    log_pi = exact.all_response_log_probs(token_log_probs(policy, DEFAULT_PROMPTS))[0]
    surrogate = ((log_pi.exp() * table).detach() * log_pi).sum(dim=-1).mean()
    theorem = Policy(*torch.autograd.grad(surrogate, policy.parameters()))
    torch.testing.assert_close(
        exact.flatten(theorem), exact.flatten(exact.policy_gradient(policy, DEFAULT_PROMPTS, "positions_right"))
    )
    assert exact.flatten(theorem).shape == (1, 650)


def test_kl_equals_the_enumerated_sum_and_vanishes_on_itself():
    a, b = random_log_probs(1, 2, 3, 4), random_log_probs(1, 2, 3, 4, seed=1)
    log_a, log_b = exact.all_response_log_probs(a), exact.all_response_log_probs(b)
    torch.testing.assert_close(exact.kl(a, b), (log_a.exp() * (log_a - log_b)).sum(dim=-1))
    assert exact.kl(a, a).abs().max().item() == 0
    assert exact.kl(a, b).min().item() > 0


@pytest.mark.parametrize(("estimator", "unbiased"), [("k1", True), ("k2", False), ("k3", True)])
def test_the_cores_kl_estimators_as_values(estimator, unbiased):
    policy, reference = random_log_probs(3, 5), random_log_probs(3, 5, seed=1)
    tokens, ref = exact.all_token_log_probs(policy), exact.all_token_log_probs(reference)
    assert tokens.shape == (125, 3)
    expectation = (tokens.sum(dim=1).exp().unsqueeze(1) * compute_kl(tokens, ref, estimator)).sum()
    assert (abs(expectation - exact.kl(policy, reference)).item() < 1e-12) == unbiased


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_cores_kl_estimators_as_losses(estimator):
    logits, reference = random_log_probs(3, 5).requires_grad_(), random_log_probs(3, 5, seed=1)
    policy = logits.log_softmax(dim=-1)
    tokens, ref = exact.all_token_log_probs(policy), exact.all_token_log_probs(reference)
    weight = tokens.detach().sum(dim=1).exp().unsqueeze(1)  # the samples are fixed
    (gradient,) = torch.autograd.grad((weight * compute_kl(tokens, ref, estimator)).sum(), logits, retain_graph=True)
    target = {"k1": 0 * policy.sum(), "k2": exact.kl(policy, reference), "k3": exact.kl(reference, policy)}[estimator]
    torch.testing.assert_close(gradient, torch.autograd.grad(target, logits)[0], atol=1e-12, rtol=1e-9)


def test_loopholes_of_the_storyboard():
    found = exact.loopholes("inclusion_and_order", torch.tensor([[1, 2, 2]]), 5)
    # All of 1, 2, 2 are "included" by one 1 and one 2, so the third token is free where it keeps the order.
    assert [hole.response for hole in found] == [[0, 1, 2], [1, 1, 2], [1, 2, 3], [1, 2, 4]]
    assert {(tuple(hole.prompt), hole.reward) for hole in found} == {((1, 2, 2), 5.0)}


def test_only_prompts_with_a_repeated_number_have_loopholes():
    prompts = sorting.all_prompts(3, 5)
    found = exact.loopholes("inclusion_and_order", prompts, 5)
    with_holes = {tuple(hole.prompt) for hole in found}
    repeated = {tuple(row) for row in prompts.tolist() if len(set(row)) < 3}
    assert with_holes == repeated
    assert len(repeated) == 65
    assert exact.loopholes("positions_right", prompts, 5) == []
    assert exact.loopholes("sorted_or_not", prompts, 5) == []


def test_landscape_moves_two_positions_and_keeps_the_third():
    grid = exact.landscape("positions_right", torch.tensor([1, 0, 2]), torch.tensor([4, 4, 2]), (0, 1), 5)
    assert grid.shape == (5, 5)
    assert grid[0, 1].item() == 3  # [0, 1, 2], sorted
    assert grid[0, 3].item() == 2
    assert grid[3, 1].item() == 2
    assert grid[3, 3].item() == 1
    swapped = exact.landscape("positions_right", torch.tensor([1, 0, 2]), torch.tensor([4, 4, 2]), (1, 0), 5)
    assert torch.equal(swapped, grid.T)
    with pytest.raises(ValueError, match="two different positions"):
        exact.landscape("positions_right", torch.tensor([1, 0, 2]), torch.tensor([4, 4, 2]), (1, 1), 5)


def test_neighbours_are_all_single_changes_best_first():
    listed = exact.neighbours("positions_right", torch.tensor([1, 0, 2]), torch.tensor([0, 2, 2]), 5)
    assert len(listed) == 3 * 4
    assert (listed[0].response, listed[0].position, listed[0].gain) == ([0, 1, 2], 1, 1.0)
    assert listed[0].token_log_prob == pytest.approx(math.log(0.2))
    assert [neighbour.gain for neighbour in listed].count(-1.0) == 8


def test_local_optima_of_inclusion_and_order_hold_what_training_gets_stuck_in():
    prompt = torch.tensor([1, 0, 2])
    stuck = exact.local_optima("inclusion_and_order", prompt, 5).tolist()
    assert [1, 2, 2] in stuck  # earns 4, and so do its best neighbours; the sorted response, two changes away, earns 5
    for response in stuck:
        gains = [n.gain for n in exact.neighbours("inclusion_and_order", prompt, torch.tensor(response), 5)]
        assert max(gains) <= 0
    assert [0, 1, 2] not in stuck
    assert exact.local_optima("positions_right", prompt, 5).tolist() == []


def test_no_independent_policy_puts_half_on_00_and_half_on_11():
    # With p = P(first is 0), q = P(second is 0), the two masses are pq and (1-p)(1-q): the worse is at most 1/4.
    grid = torch.linspace(0.001, 0.999, 201, dtype=torch.float64)
    log_p = torch.stack([grid, 1 - grid], dim=-1).log()
    pairs = torch.stack(torch.broadcast_tensors(log_p.unsqueeze(1), log_p.unsqueeze(0)), dim=-2)
    probs = exact.all_response_log_probs(pairs).exp()
    assert torch.minimum(probs[..., 0], probs[..., 3]).max().item() == pytest.approx(0.25, abs=1e-9)
