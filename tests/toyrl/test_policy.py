import math

import pytest
import torch

from toyrl import policy as P
from toyrl.sorting import DEFAULT_PROMPTS


def logits_by_loops(policy, seed, prompt):
    """The model of one seed and one prompt, one sum at a time."""
    embedding, encode, decode = (parameter[seed] for parameter in policy.parameters())
    encoded = sum(embedding[token] @ encode[t] for t, token in enumerate(prompt))
    return torch.stack([embedding @ (encoded @ decode[:, t]) for t in range(len(prompt))])


def test_logits_equal_the_sum_written_out():
    policy = P.init_policy([4, 7], dtype=torch.float64)
    logits = P.token_logits(policy, DEFAULT_PROMPTS)
    assert logits.shape == (2, 3, 3, 5)
    for s in range(2):
        for p, prompt in enumerate(DEFAULT_PROMPTS.tolist()):
            torch.testing.assert_close(logits[s, p], logits_by_loops(policy, s, prompt), rtol=1e-12, atol=1e-12)


def test_log_probs_are_normalised_and_temperature_divides_the_logits():
    policy = P.init_policy([0], dtype=torch.float64)
    log_probs = P.token_log_probs(policy, DEFAULT_PROMPTS, temperature=2.0)
    expected = (P.token_logits(policy, DEFAULT_PROMPTS) / 2).log_softmax(dim=-1)
    torch.testing.assert_close(log_probs, expected)
    torch.testing.assert_close(log_probs.exp().sum(dim=-1), torch.ones(1, 3, 3, dtype=torch.float64))


def test_number_of_parameters():
    # 5 x 10 embedding, and 3 encoding and 3 decoding matrices of 10 x 10.
    policy = P.init_policy([0, 1])
    assert policy.num_parameters == 50 + 300 + 300
    assert (policy.num_seeds, policy.vocab) == (2, 5)


def test_a_seeds_model_does_not_depend_on_the_others():
    alone, among = P.init_policy([5]), P.init_policy([9, 5, 1])
    for one, many in zip(alone.parameters(), among.parameters(), strict=True):
        assert torch.equal(one[0], many[1])
        assert not torch.equal(one[0], many[0])


def test_scale_is_on_the_embedding_alone():
    wide, narrow = P.init_policy([0]), P.init_policy([0], scale=0.2)
    torch.testing.assert_close(narrow.embedding, 0.2 * wide.embedding)
    assert torch.equal(narrow.encode, wide.encode)
    assert torch.equal(narrow.decode, wide.decode)


def test_response_log_probs_pick_the_sampled_tokens():
    log_probs = torch.randn(2, 3, 4, 5).log_softmax(dim=-1)
    responses = torch.randint(5, (2, 3, 6, 4))
    got = P.response_log_probs(log_probs, responses)
    assert got.shape == responses.shape
    for s, p, g, t in [(0, 0, 0, 0), (1, 2, 5, 3), (0, 1, 4, 2)]:
        assert got[s, p, g, t] == log_probs[s, p, t, responses[s, p, g, t]]


def test_sampling_inverts_the_distribution_function():
    log_probs = torch.tensor([0.2, 0.3, 0.0, 0.5]).log().reshape(1, 1, 1, 4)
    uniforms = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51, 0.999999]).reshape(1, 1, 6, 1)
    assert P.sample_responses(log_probs, uniforms).flatten().tolist() == [0, 0, 1, 1, 3, 3]


def test_sampling_never_leaves_the_vocabulary_when_rounding_leaves_the_sum_below_one():
    log_probs = torch.full((1, 1, 1, 3), math.log(0.333))
    responses = P.sample_responses(log_probs, torch.tensor([0.9999]).reshape(1, 1, 1, 1))
    assert responses.item() == 2


def test_sample_frequencies_match_the_probabilities():
    policy = P.init_policy([0], scale=0.5)
    log_probs = P.token_log_probs(policy, DEFAULT_PROMPTS)
    responses = P.sample_responses(log_probs, P.draw_uniforms([0], 3, 40_000, 3))
    frequencies = torch.nn.functional.one_hot(responses, 5).double().mean(dim=2)
    # The standard error is at most 0.0025.
    torch.testing.assert_close(frequencies, log_probs.exp().double(), atol=0.0125, rtol=0)


def test_uniforms_of_a_seed_do_not_depend_on_the_others():
    assert torch.equal(P.draw_uniforms([3, 8], 2, 4)[1], P.draw_uniforms([8], 2, 4)[0])
    assert not torch.equal(P.draw_uniforms([8], 2, 4), P.draw_uniforms([8], 2, 4, stream=2))


def test_entropy_of_uniform_and_of_certainty():
    uniform = torch.zeros(1, 1, 3, 5).log_softmax(dim=-1)
    torch.testing.assert_close(P.entropy(uniform), torch.tensor([[3 * math.log(5)]]))
    certain = torch.tensor([200.0, 0, 0, 0, 0]).expand(1, 1, 3, 5).log_softmax(dim=-1)
    assert P.entropy(certain).item() == 0


def test_entropy_at_the_start_rises_as_the_scale_falls():
    entropies = [
        P.entropy(P.token_log_probs(P.init_policy(range(64), scale=scale), DEFAULT_PROMPTS)).mean().item()
        for scale in (1.0, 0.5, 0.2, 0.01)
    ]
    assert entropies == sorted(entropies)
    assert entropies[0] < 1.8  # 1.4 nats of 4.83, measured
    assert entropies[-1] == pytest.approx(3 * math.log(5), abs=1e-3)


def test_freezing_as_in_the_notebook():
    # p = sigmoid(w) at w = 2. With p_old moving along, p / p_old is 1 everywhere and has no gradient; frozen, it has.
    w = torch.tensor(2.0, requires_grad=True)
    p = torch.sigmoid(w)
    (moving,) = torch.autograd.grad(p / torch.sigmoid(w), w)
    (frozen,) = torch.autograd.grad(torch.sigmoid(w) / p.detach(), w)
    assert moving.item() == pytest.approx(0, abs=1e-7)
    assert frozen.item() == pytest.approx(0.1192, abs=5e-5)


def test_frozen_copy_stays_when_the_original_moves():
    policy = P.init_policy([0]).trainable()
    frozen = policy.frozen()
    before = frozen.embedding.clone()
    with torch.no_grad():
        policy.embedding += 1
    assert torch.equal(frozen.embedding, before)
    assert not frozen.embedding.requires_grad
    assert policy.embedding.requires_grad


def test_select_takes_places_of_the_stack():
    policy = P.init_policy([4, 5, 6])
    assert torch.equal(policy.select([2, 0]).decode, policy.decode[[2, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: P.token_logits(p, torch.tensor([[1, 0]])), r"prompts has shape \(1, 2\).*\(prompts, 3\)"),
        (lambda p: P.token_logits(p, DEFAULT_PROMPTS, temperature=0.0), "temperature=0.0 must be above 0"),
        (lambda p: P.init_policy([]), "seeds is empty"),
        (lambda p: P.init_policy([-1]), "seed=-1 must be at least 0"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call(P.init_policy([0]))
