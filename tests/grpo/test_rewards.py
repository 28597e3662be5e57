"""Rewards: what reward functions may return, and pass@k against enumeration."""

import doctest
import math
from itertools import product

import pytest
import torch
from dummies import counted, reward_of_truth

import grpo.rewards
from grpo.rewards import compute_rollout_rewards, pass_at_k


def test_rewards_in_order_and_their_means():
    rewards, metadata = compute_rollout_rewards(reward_of_truth, ["a", "ab", "ab", "c"], ["1", "0.25", "0", "1"])
    assert rewards.tolist() == [1.0, 0.25, 0.0, 1.0]
    assert rewards.shape == (4,)
    assert metadata["reward"] == pytest.approx(0.5625)
    assert metadata["format_reward"] == pytest.approx(0.5)
    assert metadata["answer_reward"] == pytest.approx(0.5)
    assert metadata["format_rewards"].tolist() == [0, 1, 1, 0]
    assert metadata["answer_rewards"].tolist() == [1, 0, 0, 1]


def test_each_pair_is_graded_once():
    reward_fn = counted(reward_of_truth)
    compute_rollout_rewards(reward_fn, ["a", "b"], ["1", "0"])
    assert reward_fn.calls == [("a", "1"), ("b", "0")]


@pytest.mark.parametrize("value", [True, 1, 1.0, torch.tensor(1.0)])
def test_numbers_of_any_kind_are_taken(value):
    rewards, _ = compute_rollout_rewards(
        lambda r, t: {"reward": value, "format_reward": value, "answer_reward": value, "extra": "left alone"},
        ["a"],
        [""],
    )
    assert rewards.tolist() == [1.0]


def good() -> dict:
    return {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (good() | {"reward": math.nan}, r"reward=nan; expected a finite number"),
        (good() | {"reward": math.inf}, r"reward=inf; expected a finite number"),
        (good() | {"answer_reward": math.nan}, r"answer_reward=nan"),
        (good() | {"reward": None}, r"reward=None; expected a number"),
        (good() | {"reward": "much"}, r"reward='much'; expected a number"),
        ({"reward": 1.0, "answer_reward": 1.0}, r"lacks \['format_reward'\]; expected a dict"),
        ({"format_reward": 1.0, "answer_reward": 1.0}, r"lacks \['reward'\]"),
        (0.5, r"returned 0\.5, which lacks"),
        (None, r"returned None, which lacks"),
    ],
)
def test_a_faulty_result_names_the_rollout(result, message):
    with pytest.raises(ValueError, match=rf"rollout_responses\[2\] \(ground truth '18'\).*{message}"):
        compute_rollout_rewards(lambda r, t: result if r == "bad" else good(), ["a", "b", "bad"], ["7", "8", "18"])


def test_a_reward_function_that_raises_names_the_rollout():
    def reward_fn(response, ground_truth):
        return good() if response == "a" else {}["nothing"]

    with pytest.raises(RuntimeError, match=r"rollout_responses\[1\].*raised KeyError: 'nothing'") as caught:
        compute_rollout_rewards(reward_fn, ["a", "b"], ["1", "2"])
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(("responses", "truths"), [(["a"], ["1", "2"]), ([], [])])
def test_lists_that_do_not_fit_are_refused_before_grading(responses, truths):
    reward_fn = counted(reward_of_truth)
    with pytest.raises(ValueError, match=rf"len\(rollout_responses\)={len(responses)}, len\(.*\)={len(truths)}"):
        compute_rollout_rewards(reward_fn, responses, truths)
    assert not reward_fn.calls


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_is_unbiased(k):
    n, p = 4, 0.3
    outcomes = list(product([True, False], repeat=n))
    expected = sum(
        math.prod(p if right else 1 - p for right in outcome) * pass_at_k(torch.tensor([outcome]), k)
        for outcome in outcomes
    )
    assert expected == pytest.approx(1 - (1 - p) ** k, rel=1e-12)


def test_pass_at_k_by_hand():
    # 2 right of 4, two drawn: 1 - (2/4)(1/3); none right: 0; the mean of both
    correct = torch.tensor([[True, True, False, False], [False] * 4])
    assert pass_at_k(correct, 2) == pytest.approx((5 / 6 + 0) / 2)
    assert pass_at_k(correct, 1) == pytest.approx(0.25)
    assert pass_at_k(correct, 4) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [0, 5, -1])
def test_pass_at_k_refuses_a_k_it_has_no_samples_for(k):
    with pytest.raises(ValueError, match=rf"k={k} must be from 1 to 4"):
        pass_at_k(torch.ones(1, 4, dtype=torch.bool), k)


def test_docstring_examples():
    results = doctest.testmod(grpo.rewards)
    assert results.failed == 0
    assert results.attempted > 0


@pytest.mark.parametrize("value", [10**400, 1e39, -1e39])
def test_a_reward_too_large_for_float32_names_the_rollout(value):
    with pytest.raises(ValueError, match=r"rollout_responses\[0\].*returned reward=.*expected a finite number"):
        compute_rollout_rewards(lambda response, truth: good() | {"reward": value}, ["a"], ["b"])


def test_one_string_for_a_list_is_refused():
    with pytest.raises(TypeError, match="rollout_responses='ab' is one string; expected a list"):
        compute_rollout_rewards(lambda response, truth: good(), "ab", ["1", "2"])
