"""The gradient that grpo_train_step takes, against definitions written out here.

First part: every estimator x method x normalization on one batch. The gradient of a token's loss with respect to its log pi
is written down as a number (no autograd through ratios, minima and clips), and multiplied with the gradient of log pi.
Second part: the expectation over *all* groups of responses, with their probabilities, against the gradient of E[r].
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from statistics import mean, stdev

import pytest
import torch
from dummies import DummyModel, DummyTokenizer, flat, relative_error, reward_of_truth, row_log_probs, sgd_gradient

from grpo.advantages import ESTIMATORS, max_rewards
from grpo.train_step import grpo_train_step

EPS = 0.01  # not the default, so that it must arrive
UPPER, LOWER = 0.34, 0.2

# Two prompts, three rollouts each; one response is empty, one holds EOS in the middle and one ends in it.
PROMPTS = [[5, 3], [6]]
RESPONSES = [[4, 6, 1], [3], [7, 7, 5, 4, 1], [], [5, 1, 3, 3], [6, 6]]
REWARDS = [1.75, 0.25, 0.25, 0.0, 3.0, 0.0]  # mu 0.75 and 1, exact in float32; s 0.87 and 1.73
GROUP = 3
CONSTANT = 12.5
SEED = 3


def advantages_by_definition(name: str, r: list[float]) -> list[float]:
    mu, n = mean(r), len(r)
    formula = {
        "reinforce": lambda x: x,
        "rft": lambda x: x,
        "grpo": lambda x: (x - mu) / (stdev(r) + EPS),
        "grpo_constant": lambda x: (x - mu) / (stdev(r) + EPS),
        "dr_grpo": lambda x: x - mu,
        "maxrl": lambda x: (x - mu) / (mu + EPS),
        "rloo": lambda x: x - (sum(r) - x) / (n - 1),
        "max_rewards": lambda x: x if x == max(r) else 0.0,
    }[name]
    return [formula(x) for x in r]


def token_weights(method: str, a: float, log_ratios: list[float]) -> tuple[list[float], list[float | None]]:
    """For each token of a row: d loss / d log pi, and the loss (None where it is the first times log pi)."""
    w = [math.exp(x) for x in log_ratios]
    if method == "none":
        return [-a] * len(w), [None] * len(w)
    if method == "noclip":
        return [-a * x for x in w], [-a * x for x in w]
    if method == "cispo":
        return [-a * min(x, 1 + UPPER) for x in w], [None] * len(w)
    lower, upper = (LOWER, UPPER) if method == "clip_higher" else (LOWER, LOWER)
    if method == "gspo" and w:
        w = [math.exp(sum(log_ratios) / len(w))] * len(w)
    gradients, losses = [], []
    for x in w:
        if a > 0 and x > 1 + upper:
            gradients, losses = [*gradients, 0.0], [*losses, -a * (1 + upper)]
        elif a < 0 and x < 1 - lower:
            gradients, losses = [*gradients, 0.0], [*losses, -a * (1 - lower)]
        else:
            gradients, losses = [*gradients, -a * x], [*losses, -a * x]
    return gradients, losses


@cache
def scored() -> tuple[DummyModel, list[torch.Tensor], list[list[float]]]:
    """The model, each row's log pi with its graph, and log pi - log pi_old, chosen so that all clips are met."""
    model = DummyModel(seed=SEED)
    rows = [row_log_probs(model, PROMPTS[i // GROUP], response) for i, response in enumerate(RESPONSES)]
    generator = torch.Generator().manual_seed(5)
    shifts = [0.45, -0.4, 0.1, 0.0, 0.1, -0.5]
    noise = [0.3 * torch.randn(len(r), generator=generator, dtype=torch.float64) for r in rows]
    return model, rows, [(x + shift).tolist() for x, shift in zip(noise, shifts, strict=True)]


def expected(name: str, method: str, normalization: str) -> tuple[float, torch.Tensor]:
    """Loss and gradient of the batch from the definitions."""
    model, rows, log_ratios = scored()
    loss, combination = 0.0, torch.zeros((), dtype=torch.float64)
    tokens = sum(map(len, RESPONSES))
    advantages = [a for group in (REWARDS[:GROUP], REWARDS[GROUP:]) for a in advantages_by_definition(name, group)]
    for log_pi, ratios, a in zip(rows, log_ratios, advantages, strict=True):
        share = {
            "sequence": 1 / (len(RESPONSES) * max(1, len(log_pi))),
            "constant": 1 / CONSTANT,
            "token": 1 / tokens,
        }[normalization]
        gradients, losses = token_weights(method, a, ratios)
        for t, (g, value) in enumerate(zip(gradients, losses, strict=True)):
            loss += share * (g * log_pi[t].item() if value is None else value)
            combination = combination + share * g * log_pi[t]
    gradient = torch.autograd.grad(combination, list(model.parameters()), retain_graph=True)
    return loss, flat(gradient)


def padded_old_log_probs() -> torch.Tensor:
    """(N, T) old log-probs, with what must not matter (-200) at every position that is not a response token's."""
    _, rows, log_ratios = scored()
    width = max(len(PROMPTS[i // GROUP]) + len(r) for i, r in enumerate(RESPONSES)) - 1
    old = torch.full((len(RESPONSES), width), -200.0, dtype=torch.float64)
    for i, (log_pi, ratios) in enumerate(zip(rows, log_ratios, strict=True)):
        start = len(PROMPTS[i // GROUP]) - 1
        old[i, start : start + len(log_pi)] = log_pi.detach() - torch.tensor(ratios, dtype=torch.float64)
    return old


METHODS = ["none", "noclip", "grpo", "gspo", "cispo", "clip_higher"]
CASES = list(product([*ESTIMATORS, "max_rewards"], METHODS, ["sequence", "constant", "token"]))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: "-".join(CASES[number]))
def test_loss_and_gradient_of_every_estimator_method_and_normalization(number):
    name, method, normalization = CASES[number]
    model = DummyModel(seed=SEED)
    named = {"baseline": max_rewards, "advantage_normalizer": "none"} if name == "max_rewards" else ESTIMATORS[name]
    cliprange = {"cispo": (LOWER, UPPER), "clip_higher": (LOWER, UPPER), "grpo": LOWER, "gspo": LOWER}.get(method)

    def step(optimizer):
        return grpo_train_step(
            model,
            DummyTokenizer(pad_token="$"),
            optimizer,
            gradient_accumulation_steps=number % 4 + 1,
            max_grad_norm=None,
            reward_fn=reward_of_truth,
            repeated_prompts=["ca", "ca", "ca", "d", "d", "d"],
            rollout_responses=[f"response {i}" for i in range(6)],  # text that the tokenizer does not even know
            repeated_ground_truths=[str(r) for r in REWARDS],
            group_size=GROUP,
            baseline=named["baseline"],
            advantage_eps=EPS,
            advantage_normalizer=named["advantage_normalizer"],
            importance_reweighting_method="grpo" if method == "clip_higher" else method,
            old_log_probs=padded_old_log_probs(),
            cliprange=cliprange,
            loss_normalization=normalization,
            normalization_constant=CONSTANT if normalization == "constant" else None,
            response_token_ids=RESPONSES,
            prune_zero_advantages=bool(number % 2),
        )

    gradient, (loss, metadata) = sgd_gradient(model, step)
    expected_loss, expected_gradient = expected(name, method, normalization)
    assert relative_error(gradient, expected_gradient) < 1e-6
    assert loss.item() == pytest.approx(expected_loss, rel=1e-6)
    assert loss.shape == ()
    assert not loss.requires_grad
    assert metadata["loss"] == loss.item()
    assert metadata["grad_norm"] == pytest.approx(expected_gradient.norm().item(), rel=1e-6)
    if method in {"grpo", "gspo", "clip_higher"}:
        assert 0 < metadata["clip_fraction"] < 1, "nothing clipped, or everything, would show nothing"


def test_the_cases_differ_from_each_other():
    """Else one formula could stand in for another: of 144 gradients, only those that the table makes equal are."""
    gradients = {case: expected(*case)[1] for case in CASES}
    for a, b in product(CASES, CASES):
        # reinforce and rft, grpo and grpo_constant differ by the normalization alone; rloo is 3/2 of dr_grpo
        same_name = {a[0], b[0]} in ({"reinforce", "rft"}, {"grpo", "grpo_constant"}) or a[0] == b[0]
        if (same_name and a[1:] == b[1:]) or (gradients[b].norm() < 1e-12):
            continue
        assert relative_error(gradients[a], gradients[b]) > 1e-3, (a, b)


# Expectations over all groups -------------------------------------------------------------------------------------


class SmallTokenizer(DummyTokenizer):
    ids = {"_": 0, "$": 0, "a": 1, "b": 2}  # noqa: RUF012 - the vocabulary of a model of two or three tokens


def responses_up_to(length: int, vocabulary: int) -> list[tuple[int, ...]]:
    """Everything that sampling can produce: it stops at EOS (0), or at `length` tokens."""
    complete, open_ends = [], [()]
    for _ in range(length):
        longer = [(*r, token) for r in open_ends for token in range(vocabulary)]
        complete += [r for r in longer if r[-1] == 0]
        open_ends = [r for r in longer if r[-1] != 0]
    return complete + open_ends


def reward_of(response: tuple[int, ...]) -> float:
    """An arbitrary reward, a multiple of 1/8, related to neither length nor end."""
    return (sum((i + 2) * (token + 1) ** 2 for i, token in enumerate(response)) * 5 % 9) / 8


def expectations(responses, group_size, baseline, normalization, constant, vocabulary):
    """(expected gradient of the loss over all groups, gradient of E[r], gradient of E[r / L])."""
    model = DummyModel(seed=1, vocabulary=vocabulary)
    log_p = [row_log_probs(model, [1], r).sum() for r in responses]
    probabilities = [x.exp().item() for x in log_p]
    assert sum(probabilities) == pytest.approx(1.0, rel=1e-12)
    rewards = [reward_of(r) for r in responses]
    of_reward = sum(x.exp() * r for x, r in zip(log_p, rewards, strict=True))
    of_reward_by_length = sum(x.exp() * r / len(y) for x, r, y in zip(log_p, rewards, responses, strict=True))
    parameters = list(model.parameters())
    true = flat(torch.autograd.grad(of_reward, parameters, retain_graph=True))
    by_length = flat(torch.autograd.grad(of_reward_by_length, parameters))

    total = torch.zeros_like(true)
    for group in product(range(len(responses)), repeat=group_size):

        def step(optimizer, group=group):
            return grpo_train_step(
                model, SmallTokenizer(pad_token="$"), optimizer, 1, None, reward_of_truth, ["a"] * group_size,
                [str(responses[i]) for i in group], [str(rewards[i]) for i in group], group_size, baseline, 1e-6, "none",
                loss_normalization=normalization, normalization_constant=constant,
                response_token_ids=[responses[i] for i in group],
            )  # fmt: skip

        total += math.prod(probabilities[i] for i in group) * sgd_gradient(model, step)[0]
    return total, true, by_length


UNEQUAL = [  # longest response, vocabulary, group size: 15 responses in 225 pairs, 4 responses in 64 groups of three
    pytest.param(3, 3, 2, id="pairs"),
    pytest.param(3, 2, 3, id="triples"),
]


@pytest.mark.parametrize(("length", "vocabulary", "group_size"), UNEQUAL)
@pytest.mark.parametrize("baseline", ["none", "leave_one_out", "mean"])
def test_constant_normalization_has_the_gradient_of_the_expected_reward(length, vocabulary, group_size, baseline):
    responses = responses_up_to(length, vocabulary)
    assert {len(r) for r in responses} == {1, 2, 3}
    total, true, _ = expectations(responses, group_size, baseline, "constant", group_size, vocabulary)
    factor = (group_size - 1) / group_size if baseline == "mean" else 1.0
    assert true.norm() > 1e-2
    assert relative_error(total, -factor * true) < 1e-6


def test_sequence_normalization_is_one_over_the_length_at_equal_lengths():
    responses = list(product(range(3), repeat=2))
    total, true, _ = expectations(responses, 2, "none", "sequence", None, 3)
    assert relative_error(total, -true / 2) < 1e-6
    total, true, _ = expectations(list(product(range(2), repeat=3)), 2, "leave_one_out", "sequence", None, 2)
    assert relative_error(total, -true / 3) < 1e-6


def test_sequence_normalization_points_elsewhere_at_unequal_lengths():
    total, true, by_length = expectations(responses_up_to(3, 3), 2, "none", "sequence", None, 3)
    cosine = torch.nn.functional.cosine_similarity(-total, true, dim=0).item()
    assert cosine < 0.99
    # what it follows instead, without a baseline: the expectation of r / L
    assert relative_error(total, -by_length) < 1e-6


def test_token_normalization_is_not_the_expected_reward_either():
    total, true, _ = expectations(responses_up_to(3, 3), 2, "none", "token", None, 3)
    assert torch.nn.functional.cosine_similarity(-total, true, dim=0).item() < 0.995
