"""grpo_train_step as a whole: independence of microbatches and pruning, masks, metrics, and what it refuses."""

import doctest
import math
from statistics import mean

import pytest
import torch
from dummies import (
    DummyModel,
    DummyTokenizer,
    counted,
    flat,
    relative_error,
    reward_of_truth,
    row_log_probs,
    sgd_gradient,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

import grpo.train_step
import grpo.update
from grpo.tokenization import tokenize_prompt_and_output
from grpo.train_step import grpo_train_step
from grpo.update import UpdateSettings, policy_gradient_update

F64 = torch.float64


def arguments(model, optimizer=None, **changes):
    """A batch of two prompts with two rollouts each."""
    return {
        "model": model,
        "tokenizer": DummyTokenizer(),
        "optimizer": optimizer or torch.optim.SGD(model.parameters(), lr=1.0),
        "gradient_accumulation_steps": 2,
        "max_grad_norm": None,
        "reward_fn": reward_of_truth,
        "repeated_prompts": ["ca", "ca", "d", "d"],
        "rollout_responses": ["d$", "cbb$", "a", "aba$"],
        "repeated_ground_truths": ["1", "0", "0.5", "1"],
        "group_size": 2,
    } | changes


def gradient_of(seed=0, model=None, **changes):
    model = model or DummyModel(seed)
    return sgd_gradient(model, lambda optimizer: grpo_train_step(**arguments(model, optimizer, **changes)))


# Independence of how the batch is cut -----------------------------------------------------------------------------


@st.composite
def batches(draw):
    groups, group_size = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    rows = groups * group_size
    prompts = draw(st.lists(st.sampled_from(["c", "cda", "dd"]), min_size=groups, max_size=groups))
    token = st.integers(0, 7)
    return {
        "group_size": group_size,
        "repeated_prompts": [p for p in prompts for _ in range(group_size)],
        "response_token_ids": draw(st.lists(st.lists(token, max_size=6), min_size=rows, max_size=rows)),
        "repeated_ground_truths": draw(
            st.lists(st.sampled_from(["0", "0", "1", "1", "0.1", "0.7", "2"]), min_size=rows, max_size=rows)
        ),
        "rollout_responses": [str(i) for i in range(rows)],
        "baseline": draw(st.sampled_from(["none", "mean", "leave_one_out"])),
        "advantage_normalizer": draw(st.sampled_from(["none", "std", "mean"])),
        "advantage_eps": 0.01,
        "importance_reweighting_method": draw(st.sampled_from(["none", "noclip", "grpo", "gspo", "cispo"])),
        "cliprange": draw(st.sampled_from([0.1, (0.2, 0.4)])),
        "loss_normalization": draw(st.sampled_from(["sequence", "constant", "token"])),
        "normalization_constant": 11.0,
        "kl_coef": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "max_grad_norm": draw(st.sampled_from([None, 0.05])),
    }  # fmt: skip


NOTHING = {
    "group_size": 2, "repeated_prompts": ["c", "c"], "response_token_ids": [[], []], "repeated_ground_truths": ["1", "0"],
    "rollout_responses": ["", ""], "importance_reweighting_method": "gspo", "cliprange": 0.1,
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 13), st.booleans(), st.integers(0, 1000))
@example(NOTHING, 2, True, 0)
@example(NOTHING | {"repeated_ground_truths": ["1", "1"], "response_token_ids": [[3], []]}, 2, True, 0)
def test_loss_gradient_metrics_and_parameters_do_not_depend_on_how_the_batch_is_cut(batch, steps, prune, seed):
    generator = torch.Generator().manual_seed(seed)
    longest = max(len(p) + len(r) for p, r in zip(batch["repeated_prompts"], batch["response_token_ids"], strict=True))
    shape = (len(batch["response_token_ids"]), max(1, longest - 1))
    extra = {
        name: -2 + 0.3 * torch.randn(shape, generator=generator, dtype=F64)
        for name in ("old_log_probs", "ref_log_probs")
    }

    def run(steps, prune):
        model = DummyModel(seed % 3)
        cut = {"gradient_accumulation_steps": steps, "prune_zero_advantages": prune}
        gradient, _ = gradient_of(model=model, **batch, **extra, **cut)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        grpo_train_step(**arguments(model, optimizer))  # so that there is momentum
        loss, metadata = grpo_train_step(**arguments(model, optimizer, **batch, **extra, **cut))
        return gradient, flat(list(model.parameters())), loss.item(), metadata

    gradient, parameters, loss, metadata = run(1, False)
    other_gradient, other_parameters, other_loss, other = run(steps, prune)
    assert (gradient - other_gradient).norm() <= 1e-9 * max(1e-3, gradient.norm())
    assert relative_error(other_parameters, parameters) < 1e-9
    assert other_loss == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert metadata["skipped"] == other["skipped"] == 0
    assert metadata.keys() == other.keys()
    for name in metadata.keys() - {"rows_pruned", "tokens_processed"}:
        assert other[name] == pytest.approx(metadata[name], rel=1e-9, abs=1e-12, nan_ok=True), name


# Masks and ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [-200.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("method", ["noclip", "grpo", "gspo", "cispo"])
def test_fact_5_old_and_reference_log_probs_of_masked_positions_do_not_matter(method, junk):
    # rows: c a d $ | c a c b b $ | d a | d ab a $, padded to six tokens; T = 5
    mask = torch.tensor([[0, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]).bool()
    results = []
    for value in (-1.0, junk):
        filled = torch.full((4, 5), -2.1, dtype=F64).masked_fill(~mask, value)
        results.append(
            gradient_of(
                importance_reweighting_method=method,
                cliprange=0.2,
                old_log_probs=filled,
                ref_log_probs=filled,
                kl_coef=0.1,
            )
        )
    (clean, (clean_loss, clean_metadata)), (dirty, (dirty_loss, dirty_metadata)) = results
    assert torch.equal(clean, dirty)
    assert clean_loss == dirty_loss
    assert clean_metadata == dirty_metadata
    assert dirty_metadata["skipped"] == 0
    assert dirty.norm() > 1e-3


@pytest.mark.parametrize("normalization", ["sequence", "constant", "token"])
def test_fact_6_a_row_without_response_tokens_leaves_the_others_alone(normalization):
    """Three rows and an empty one: the gradient of the three, times 3/4 where rows are averaged."""
    common = {
        "baseline": "none", "advantage_normalizer": "none",
        "loss_normalization": normalization, "normalization_constant": 8.0, "rollout_responses": ["w", "x", "y", "z"],
    }  # fmt: skip
    ids = [[4, 6, 1], [3], [6, 6], []]
    gradient, (loss, metadata) = gradient_of(response_token_ids=ids, **common)
    three = {name: arguments(DummyModel())[name][:3] for name in ("repeated_prompts", "repeated_ground_truths")}
    common |= {"rollout_responses": ["w", "x", "y"], "group_size": 1}
    alone, (alone_loss, _) = gradient_of(response_token_ids=ids[:3], **three, **common)
    share = 3 / 4 if normalization == "sequence" else 1.0
    assert relative_error(gradient, share * alone) < 1e-12
    assert loss.item() == pytest.approx(share * alone_loss.item(), rel=1e-12)
    assert metadata["response_length_mean"] == pytest.approx(6 / 4)


def test_fact_9_pad_equal_to_eos_changes_nothing():
    distinct, (loss, _) = gradient_of(tokenizer=DummyTokenizer())
    same, (same_loss, _) = gradient_of(tokenizer=DummyTokenizer(pad_token="$"))
    assert relative_error(same, distinct) < 1e-12
    assert same_loss.item() == pytest.approx(loss.item(), rel=1e-12)
    without_eos, _ = gradient_of(tokenizer=DummyTokenizer(pad_token="$"), rollout_responses=["d", "cbb", "a", "aba"])
    assert relative_error(without_eos, distinct) > 0.1


def test_fact_10_the_sampled_ids_are_trained_on():
    # "ab" was sampled as "a", "b"; the tokenizer would make one token of it
    one = {
        "repeated_prompts": ["c"], "rollout_responses": ["ab"], "repeated_ground_truths": ["1"], "group_size": 1,
        "baseline": "none", "advantage_normalizer": "none", "loss_normalization": "constant", "normalization_constant": 1,
    }  # fmt: skip
    for ids, response in (([[3, 4]], [3, 4]), (None, [7])):
        gradient, (loss, _) = gradient_of(response_token_ids=ids, **one)
        model = DummyModel()
        expected = -row_log_probs(model, [5], response).sum()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
        assert relative_error(gradient, flat(torch.autograd.grad(expected, list(model.parameters())))) < 1e-12


def test_fact_9_a_tokenizer_without_a_pad_token_gets_eos_and_a_warning():
    tokenizer = DummyTokenizer(pad_token=None)
    with pytest.warns(UserWarning, match="no pad token"):
        gradient, _ = gradient_of(tokenizer=tokenizer)
    assert tokenizer.pad_token == "$"
    assert relative_error(gradient, gradient_of()[0]) < 1e-12


# What comes back --------------------------------------------------------------------------------------------------


def test_fact_2_equal_rewards_are_no_step():
    model = DummyModel()
    gradient, (loss, metadata) = gradient_of(model=model, repeated_ground_truths=["0.1", "0.1", "0.7", "0.7"])
    assert loss.item() == 0.0
    assert gradient.norm() == 0.0
    assert not model.calls
    assert metadata["rows_pruned"] == 4
    assert metadata["zero_spread"] == 1.0


def test_metadata_by_hand():
    model = DummyModel()
    _, (loss, metadata) = gradient_of(
        model=model,
        repeated_prompts=["ca"] * 3 + ["d"] * 3 + ["c"] * 3,
        rollout_responses=["d$", "c", "aba$", "a", "bbbb$", "b", "cc", "", "c$"],
        repeated_ground_truths=["1", "0", "0", "0", "0", "0", "1", "1", "0.5"],
        group_size=3,
    )
    assert metadata["reward"] == pytest.approx(3.5 / 9)
    assert metadata["format_reward"] == pytest.approx(5 / 9)  # longer than one character
    assert metadata["answer_reward"] == pytest.approx(3 / 9)
    assert metadata["pass@1"] == pytest.approx(mean([1 / 3, 0, 2 / 3]))
    assert metadata["pass@2"] == pytest.approx(mean([2 / 3, 0, 1]))
    assert metadata["pass@3"] == pytest.approx(mean([1, 0, 1]))
    assert "pass@4" not in metadata
    assert metadata["zero_spread"] == pytest.approx(1 / 3)
    lengths = [2, 1, 3, 1, 5, 1, 2, 0, 2]
    assert metadata["response_length_mean"] == pytest.approx(mean(lengths))
    assert metadata["response_length_max"] == 5
    assert metadata["rows_pruned"] == 3
    assert metadata["tokens_processed"] == (1 + 2) + (1 + 1) + (1 + 3) + 2 + 0 + 2
    assert metadata["loss"] == loss.item()
    assert metadata["clip_fraction"] == 0.0
    assert metadata["ratio_mean"] == metadata["ratio_max"] == 1.0
    assert metadata["approx_kl"] == 0.0
    assert metadata["grad_norm"] > 0
    assert 0 < metadata["token_entropy"] < math.log(8)
    assert metadata["skipped"] == 0
    assert all(isinstance(value, (float, int)) for value in metadata.values())


def test_max_grad_norm_none_reports_and_clips_nothing():
    free, (_, metadata) = gradient_of(max_grad_norm=None)
    assert metadata["grad_norm"] == pytest.approx(free.norm().item(), rel=1e-9)
    clipped, (_, metadata) = gradient_of(max_grad_norm=0.01)
    assert metadata["grad_norm"] == pytest.approx(free.norm().item(), rel=1e-9)
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_callables_go_all_the_way():
    halved, _ = gradient_of(
        baseline=lambda r: r.mean(dim=1, keepdim=True), advantage_normalizer=lambda r: torch.full_like(r, 2.0)
    )
    plain, _ = gradient_of(baseline="mean", advantage_normalizer="none")
    assert relative_error(halved, plain / 2) < 1e-6


@pytest.mark.parametrize(
    "extra", [{"temperature": 0.5}, {"kl_coef": 0.5}, {"kl_coef": 0.5, "kl_estimator": "k2"}, {"max_grad_norm": 0.01}]
)
def test_keyword_settings_reach_the_update(extra):
    ref = torch.full((4, 5), -1.0, dtype=F64)
    gradient, _ = gradient_of(ref_log_probs=ref, baseline="none", advantage_normalizer="none", **extra)
    plain, _ = gradient_of(baseline="none", advantage_normalizer="none")
    model = DummyModel()
    rollouts = arguments(model)
    batch = tokenize_prompt_and_output(rollouts["repeated_prompts"], rollouts["rollout_responses"], DummyTokenizer())
    rewards = torch.tensor([1, 0, 0.5, 1], dtype=F64)
    update, _ = sgd_gradient(
        model, lambda o: policy_gradient_update(model, o, batch, rewards, UpdateSettings(**extra), None, ref)
    )
    assert relative_error(gradient, update) < 1e-12
    assert relative_error(gradient, plain) > 1e-2


def test_positional_arguments_are_in_the_order_of_the_specification():
    model = DummyModel()
    gradient, _ = sgd_gradient(
        model,
        lambda optimizer: grpo_train_step(
            model, DummyTokenizer(), optimizer, 2, None, reward_of_truth, ["ca", "ca", "d", "d"],
            ["d$", "cbb$", "a", "aba$"], ["1", "0", "0.5", "1"], 2, "mean", 1e-6, "none", "grpo",
            torch.full((4, 5), -2.0, dtype=F64), 0.2, "constant", 9.0,
        ),
    )  # fmt: skip
    named, _ = gradient_of(
        baseline="mean", advantage_eps=1e-6, advantage_normalizer="none", importance_reweighting_method="grpo",
        old_log_probs=torch.full((4, 5), -2.0, dtype=F64), cliprange=0.2, loss_normalization="constant",
        normalization_constant=9.0,
    )  # fmt: skip
    assert torch.equal(gradient, named)


def test_defaults_are_grpo():
    gradient, _ = gradient_of()
    spelled, _ = gradient_of(
        baseline="mean", advantage_eps=1e-6, advantage_normalizer="std", importance_reweighting_method="none",
        loss_normalization="sequence",
    )  # fmt: skip
    assert torch.equal(gradient, spelled)


def test_a_step_that_is_not_finite_is_skipped_and_said():
    model = DummyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    grpo_train_step(**arguments(model, optimizer))
    before = flat(list(model.parameters()))
    momentum = flat([state["exp_avg"] for state in optimizer.state.values()])
    old = torch.full((4, 5), -2.0, dtype=F64)
    old[1, 2] = math.nan
    _, metadata = grpo_train_step(
        **arguments(model, optimizer, importance_reweighting_method="noclip", old_log_probs=old)
    )
    assert metadata["skipped"] == 1
    assert metadata["reward"] == pytest.approx(0.625)
    assert torch.equal(flat(list(model.parameters())), before)
    assert torch.equal(flat([state["exp_avg"] for state in optimizer.state.values()]), momentum)
    assert all(p.grad is None for p in model.parameters())


def test_autocast_reaches_the_model():
    model = DummyModel(dtype=torch.float32)
    _, metadata = grpo_train_step(**arguments(model, autocast_dtype=torch.bfloat16))
    assert model.logits_dtypes == {torch.bfloat16}
    assert metadata["skipped"] == 0


def test_training_makes_the_rewarded_response_more_likely():
    model = DummyModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    before = row_log_probs(model, [5], [6, 1]).sum().item()
    for _ in range(20):
        grpo_train_step(
            **arguments(
                model, optimizer, repeated_prompts=["c", "c"], rollout_responses=["d$", "ccc"],
                repeated_ground_truths=["1", "0"],
            )
        )  # fmt: skip
    assert row_log_probs(model, [5], [6, 1]).sum().item() > before + 1


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 3}, r"rollout_responses has 4 rollouts, .*multiple of group_size=3"),
        ({"repeated_prompts": ["c"] * 3}, r"len\(repeated_prompts\)=3, len\(rollout_responses\)=4, len\(repeated_g"),
        ({"repeated_ground_truths": ["1"] * 5}, r"len\(repeated_ground_truths\)=5"),
        ({"rollout_responses": ["c"]}, r"len\(rollout_responses\)=1"),
        ({"response_token_ids": [[3]] * 3}, r"len\(response_token_ids\)=3"),
        (
            {"repeated_prompts": [], "rollout_responses": [], "repeated_ground_truths": []},
            r"len\(rollout_responses\)=0.*at least 1",
        ),
        ({"rollout_responses": ["a", "b", None, "d"]}, r"\[2\]=None must be a string"),
        ({"group_size": 1}, r"group_size=1 with advantage_normalizer='std'.*group_size >= 2"),
        (
            {"group_size": 1, "baseline": "leave_one_out", "advantage_normalizer": "none"},
            r"group_size=1 with baseline=",
        ),
        ({"group_size": 0}, r"group_size=0 must be an integer of at least 1"),
        ({"baseline": "median"}, r"baseline='median' is unknown.*'none', 'mean', 'leave_one_out', or a callable"),
        (
            {"advantage_normalizer": "max"},
            r"advantage_normalizer='max' is unknown.*'none', 'std', 'mean', or a callable",
        ),
        ({"advantage_eps": -1}, r"advantage_eps=-1 must be a finite number"),
        ({"importance_reweighting_method": "ppo"}, r"importance_reweighting_method='ppo' is unknown.*'cispo'"),
        ({"loss_normalization": "mean"}, r"loss_normalization='mean' is unknown.*'sequence', 'constant', 'token'"),
        ({"kl_estimator": "k4"}, r"kl_estimator='k4' is unknown.*'k1', 'k2', 'k3'"),
        (
            {"importance_reweighting_method": "grpo", "old_log_probs": torch.zeros(4, 5)},
            r"cliprange=None with importance_reweighting_method='grpo'",
        ),
        (
            {"importance_reweighting_method": "gspo", "cliprange": 0.2},
            r"old_log_probs=None with importance_reweighting_method='gspo'.*\(4, 5\)",
        ),
        ({"loss_normalization": "constant"}, r"normalization_constant=None.*above 0"),
        (
            {"importance_reweighting_method": "noclip", "old_log_probs": torch.zeros(4, 6)},
            r"old_log_probs has shape \(4, 6\); expected \(4, 5\)",
        ),
        (
            {"importance_reweighting_method": "noclip", "old_log_probs": torch.zeros(3, 5)},
            r"old_log_probs has shape \(3, 5\); expected \(4, 5\)",
        ),
        ({"kl_coef": 0.1}, r"ref_log_probs=None with kl_coef=0\.1"),
        ({"kl_coef": 0.1, "ref_log_probs": torch.zeros(4, 1)}, r"ref_log_probs has shape \(4, 1\); expected \(4, 5\)"),
        ({"gradient_accumulation_steps": 0}, r"gradient_accumulation_steps=0 must be an integer of at least 1"),
        ({"max_grad_norm": -1.0}, r"max_grad_norm=-1\.0 must be above 0"),
        ({"temperature": 0}, r"temperature=0 must be a finite number above 0"),
        ({"repeated_prompts": ["c", "c", "d" * 9, "d" * 9]}, r"11 tokens long; the model's context holds 8"),
        ({"tokenizer": DummyTokenizer(pad_token=None, eos_token=None)}, r"neither a pad_token nor an eos_token"),
    ],
)
def test_bad_input_is_named_before_anything_is_graded_or_computed(changes, message):
    model = DummyModel(context=8)
    reward_fn = counted(reward_of_truth)
    before = flat(list(model.parameters()))
    with pytest.raises((ValueError, TypeError), match=message):
        grpo_train_step(**arguments(model, reward_fn=reward_fn, **changes))
    assert not reward_fn.calls
    assert not model.calls
    assert torch.equal(flat(list(model.parameters())), before)


def raising(response, ground_truth):
    raise KeyError("no grade")


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        ({"reward": 1.0}, ValueError, r"rollout_responses\[2\].*lacks \['format_reward', 'answer_reward'\]"),
        (
            {"reward": math.nan, "format_reward": 1, "answer_reward": 1},
            ValueError,
            r"rollout_responses\[2\].*reward=nan",
        ),
        (None, RuntimeError, r"rollout_responses\[2\].*raised KeyError"),
    ],
)
def test_a_faulty_reward_function_is_named_before_the_model_is_called(result, error, message):
    def reward_fn(response, ground_truth):
        if response != "a":
            return reward_of_truth(response, ground_truth)
        return raising(response, ground_truth) if result is None else result

    model = DummyModel()
    with pytest.raises(error, match=message):
        grpo_train_step(**arguments(model, reward_fn=reward_fn))
    assert not model.calls


def test_maxrl_refuses_negative_rewards_before_the_model_is_called():
    model = DummyModel()
    with pytest.raises(ValueError, match=r"raw_rewards holds -1\.0.*>= 0"):
        grpo_train_step(**arguments(model, advantage_normalizer="mean", repeated_ground_truths=["1", "-1", "0", "0"]))
    assert not model.calls


@pytest.mark.parametrize("module", [grpo.train_step, grpo.update])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0
