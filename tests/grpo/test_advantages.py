"""Advantages: the table of design.md, by hand, and the facts that implementations get wrong."""

import doctest
import math
from statistics import mean, stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo.advantages
from grpo.advantages import ESTIMATORS, compute_group_normalized_rewards, max_rewards

REWARDS = [1.0, 0.0, 0.5, 0.0, 2.0, 2.0, 0.0, 1.0]  # two groups of four: mu 0.375 and 1.25


def by_definition(name: str, r: list[float], eps: float) -> list[float]:
    """A group's advantages from the definitions, in Python's floats."""
    mu, n = mean(r), len(r)
    if name in {"reinforce", "rft"}:
        return list(r)
    if name in {"grpo", "grpo_constant"}:
        return [(x - mu) / (stdev(r) + eps) for x in r]
    if name == "dr_grpo":
        return [x - mu for x in r]
    if name == "maxrl":
        return [(x - mu) / (mu + eps) for x in r]
    if name == "rloo":
        return [x - (sum(r) - x) / (n - 1) for x in r]
    assert name == "max_rewards"
    return [x if x == max(r) else 0.0 for x in r]


def settings_of(name: str) -> dict:
    if name == "max_rewards":
        return {"baseline": max_rewards, "advantage_normalizer": "none"}
    return {key: ESTIMATORS[name][key] for key in ("baseline", "advantage_normalizer")}


@pytest.mark.parametrize("name", [*ESTIMATORS, "max_rewards"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_named_estimator(name, dtype):
    rewards = torch.tensor(REWARDS, dtype=dtype)
    advantages, _ = compute_group_normalized_rewards(rewards, 4, advantage_eps=0.1, **settings_of(name))
    expected = by_definition(name, REWARDS[:4], 0.1) + by_definition(name, REWARDS[4:], 0.1)
    assert advantages.shape == (8,)
    assert advantages.dtype == dtype
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=dtype))


def test_the_table_of_names_is_the_one_specified():
    assert {name: tuple(e.values()) for name, e in ESTIMATORS.items()} == {
        "reinforce": ("none", "none", "sequence"),
        "grpo": ("mean", "std", "sequence"),
        "grpo_constant": ("mean", "std", "constant"),
        "dr_grpo": ("mean", "none", "constant"),
        "rft": ("none", "none", "constant"),
        "maxrl": ("mean", "mean", "constant"),
        "rloo": ("leave_one_out", "none", "sequence"),
    }


def test_grpo_is_the_default_with_eps_1e_6():
    advantages, _ = compute_group_normalized_rewards(torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), 4)
    # mu = 0.25, s = 0.5 (sample; the population's would be 0.433)
    assert advantages.tolist() == pytest.approx([0.75 / 0.500001] + [-0.25 / 0.500001] * 3, rel=1e-12)


def test_fact_3_sample_standard_deviation():
    advantages, _ = compute_group_normalized_rewards([1, 0, 0, 0], 4, advantage_eps=0.0)
    assert advantages.tolist() == [1.5, -0.5, -0.5, -0.5]


def test_the_spread_is_the_groups_not_the_batchs():
    advantages, _ = compute_group_normalized_rewards([1.0, 0.0, 5.0, 0.0], 2, advantage_eps=0.0)
    half = 1 / math.sqrt(2)  # of [x, 0]: (x/2) / (x / sqrt 2)
    assert advantages.tolist() == pytest.approx([half, -half, half, -half])


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e-8, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("normalizer", ["none", "std", "mean"])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_fact_2_equal_rewards_give_exactly_zero(value, dtype, baseline, normalizer, eps):
    rewards = torch.full((8,), value, dtype=dtype)
    advantages, metadata = compute_group_normalized_rewards(rewards, 8, baseline, eps, normalizer)
    assert advantages.tolist() == [0.0] * 8
    assert metadata["zero_spread"] == 1.0


@pytest.mark.parametrize("normalizer", ["std", "mean"])
@pytest.mark.parametrize("baseline", ["none", "mean", "leave_one_out"])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_fact_4_an_all_zero_group_gives_zeros(normalizer, baseline, eps):
    advantages, _ = compute_group_normalized_rewards([0.0] * 4, 4, baseline, eps, normalizer)
    assert advantages.tolist() == [0.0] * 4


def test_fact_4_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match=r"raw_rewards holds -0\.5.*'mean'.*>= 0"):
        compute_group_normalized_rewards([1.0, -0.5], 2, "mean", 1e-6, "mean")
    compute_group_normalized_rewards([1.0, -0.5], 2, "mean", 1e-6, "std")


@pytest.mark.parametrize(
    ("baseline", "normalizer", "named"),
    [("mean", "std", "std"), ("none", "std", "std"), ("leave_one_out", "none", "lea")],
)
def test_fact_3_a_group_of_one_is_refused(baseline, normalizer, named):
    with pytest.raises(ValueError, match=rf"group_size=1 with .*='{named}.*group_size >= 2"):
        compute_group_normalized_rewards([1.0, 0.0], 1, baseline, 1e-6, normalizer)


def test_a_group_of_one_is_fine_without_a_spread():
    assert compute_group_normalized_rewards([1.0, 0.5], 1, "none", 1e-6, "none")[0].tolist() == [1.0, 0.5]
    assert compute_group_normalized_rewards([1.0, 0.5], 1, "mean", 1e-6, "none")[0].tolist() == [0.0, 0.0]


def test_max_rewards_keeps_ties_and_negative_maxima():
    advantages, _ = compute_group_normalized_rewards([1.0, 1, 0, -1, -3, -2], 3, max_rewards, 1e-6, "none")
    assert advantages.tolist() == [1.0, 1.0, 0.0, -1.0, 0.0, 0.0]


def test_callables_get_the_table_and_no_eps_is_added():
    seen = []

    def baseline(rewards):
        seen.append(rewards.tolist())
        return rewards.amin(dim=1, keepdim=True)

    def normalizer(rewards):
        seen.append(rewards.tolist())
        return torch.full_like(rewards, 4.0)

    advantages, _ = compute_group_normalized_rewards([1.0, 3.0, 2.0, 6.0], 2, baseline, 0.5, normalizer)
    assert advantages.tolist() == [0.0, 0.5, 0.0, 1.0]
    assert seen == [[[1.0, 3.0], [2.0, 6.0]]] * 2


def test_a_callable_cannot_change_the_rewards():
    rewards = torch.tensor([1.0, 3.0])
    advantages, _ = compute_group_normalized_rewards(rewards, 2, lambda r: r.zero_(), 1e-6, "none")
    assert advantages.tolist() == rewards.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("argument", "function", "message"),
    [
        (
            "baseline",
            lambda r: r.mean(dim=1),
            r"baseline callable returned shape \(2,\).*\(2, 1\) \(use keepdim=True\)",
        ),
        ("baseline", lambda r: r * math.nan, r"baseline callable returned a value that is not finite"),
        ("advantage_normalizer", lambda r: r[:1], r"advantage_normalizer callable returned shape \(1, 3\)"),
        ("advantage_normalizer", lambda r: r * 0, r"advantage_normalizer callable returned 0.*eps"),
    ],
)
def test_results_of_callables_that_do_not_fit_are_refused(argument, function, message):
    with pytest.raises(ValueError, match=message):
        compute_group_normalized_rewards([1.0, 0, 0, 1, 0, 0], 3, **{argument: function})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw_rewards": [1.0, 0, 1]}, r"raw_rewards has 3 rollouts.*multiple of group_size=2"),
        ({"raw_rewards": []}, r"raw_rewards has 0 rollouts"),
        ({"raw_rewards": [[1.0, 0.0]]}, r"raw_rewards has shape \(1, 2\); expected .*\(N,\)"),
        ({"raw_rewards": [1.0, math.nan]}, r"raw_rewards\[1\]=nan is not finite"),
        ({"raw_rewards": [-math.inf, 1.0]}, r"raw_rewards\[0\]=-inf is not finite"),
        ({"group_size": 0}, r"group_size=0 must be an integer of at least 1"),
        ({"group_size": 2.0}, r"group_size=2\.0 must be an integer"),
        ({"baseline": "median"}, r"baseline='median' is unknown.*'none', 'mean', 'leave_one_out', or a callable"),
        ({"baseline": None}, r"baseline=None is unknown"),
        (
            {"advantage_normalizer": "max"},
            r"advantage_normalizer='max' is unknown.*'none', 'std', 'mean', or a callable",
        ),
        ({"advantage_eps": -1.0}, r"advantage_eps=-1\.0 must be a finite number of at least 0"),
        ({"advantage_eps": math.nan}, r"advantage_eps=nan"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        compute_group_normalized_rewards(**({"raw_rewards": [1.0, 0.0], "group_size": 2} | changes))


def test_metadata_by_hand():
    _, metadata = compute_group_normalized_rewards([1.0, 1, 0, 0, 3, 1], 2)
    assert metadata["zero_spread"] == pytest.approx(2 / 3)
    assert metadata["reward_mean"] == pytest.approx(1.0)
    assert metadata["reward_std"] == pytest.approx(math.sqrt((0 + 0 + 1 + 1 + 4 + 0) / 5))
    assert (metadata["reward_min"], metadata["reward_max"]) == (0.0, 3.0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0, 2.5]), min_size=3, max_size=3),
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0, 2.5]), min_size=3, max_size=3),
    st.sampled_from(["none", "mean", "leave_one_out"]),
    st.sampled_from(["none", "std", "mean"]),
)
def test_groups_do_not_see_each_other(first, second, baseline, normalizer):
    both, _ = compute_group_normalized_rewards(first + second, 3, baseline, 1e-6, normalizer)
    apart = [compute_group_normalized_rewards(r, 3, baseline, 1e-6, normalizer)[0] for r in (first, second)]
    assert torch.equal(both, torch.cat(apart))


def test_docstring_examples():
    results = doctest.testmod(grpo.advantages)
    assert results.failed == 0
    assert results.attempted > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rewards_are_worked_on_in_float32(dtype):
    advantages, _ = compute_group_normalized_rewards(torch.tensor([1, 0, 0], dtype=dtype), 3)
    # mu = 1/3, s = sqrt(1/3)
    expected = torch.tensor([2.0, -1.0, -1.0]) / 3 / (3**-0.5 + 1e-6)
    torch.testing.assert_close(advantages, expected)


@pytest.mark.parametrize("returned", [None, "mean", [[1.0], [2.0, 3.0]]])
def test_a_callable_that_returns_no_tensor_is_named(returned):
    with pytest.raises(ValueError, match=r"the baseline callable returned .* for rewards of shape \(1, 4\); expected"):
        compute_group_normalized_rewards([1.0, 0, 0, 0], 4, baseline=lambda rewards: returned)
