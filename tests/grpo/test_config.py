"""Settings: presets as the assignment has them, derived values, errors that name the field."""

from __future__ import annotations

import dataclasses
import math

import pytest

from grpo.advantages import ESTIMATORS
from grpo.config import PRESETS, TrainSettings, preset


def test_olmo2_preset_is_the_assignments_run():
    s = preset("olmo2-1b")
    assert (s.model, s.data, s.prompt) == ("olmo2-1b", "gsm8k", "r1_zero")
    assert (s.train_questions, s.validation_questions, s.steps) == (6400, 1024, 200)
    assert (s.rollout_batch, s.train_batch, s.group_size, s.microbatches) == (256, 256, 8, 32)
    assert (s.learning_rate, s.betas, s.weight_decay, s.max_grad_norm) == (1e-5, (0.9, 0.95), 0.0, 1.0)
    assert (s.temperature, s.top_p, s.max_new_tokens, s.validate_every) == (1.0, 1.0, 512, 10)
    update = s.update_settings()
    assert update.loss_normalization == "sequence"
    assert update.importance_reweighting_method == "none"
    assert s.advantage_settings() == {"baseline": "mean", "advantage_eps": 1e-6, "advantage_normalizer": "std"}


def test_normalization_constant_is_train_batch_times_longest_response():
    s = preset("olmo2-1b")
    assert s.update_settings().normalization_constant == 131_072
    assert dataclasses.replace(s, train_batch=8).update_settings().normalization_constant == 4_096
    assert dataclasses.replace(s, normalization_constant=7).update_settings().normalization_constant == 7


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_by_name_and_overridden(name):
    s = TrainSettings(estimator=name)
    assert s.advantage_settings()["baseline"] == ESTIMATORS[name]["baseline"]
    assert s.advantage_settings()["advantage_normalizer"] == ESTIMATORS[name]["advantage_normalizer"]
    assert s.update_settings().loss_normalization == ESTIMATORS[name]["loss_normalization"]
    other = TrainSettings(estimator=name, baseline="leave_one_out", loss_normalization="token")
    assert other.advantage_settings()["baseline"] == "leave_one_out"
    assert other.update_settings().loss_normalization == "token"


def test_updates_per_step():
    s = TrainSettings(rollout_batch=256, train_batch=8, passes=2)
    assert s.prompts_per_step == 32
    assert s.updates_per_step == 64


def test_learning_rates():
    s = TrainSettings(learning_rate=1.0, steps=10, warmup_updates=2)
    assert [s.learning_rate_at(u) for u in (0, 1, 2, 9)] == [0.5, 1.0, 1.0, 1.0]
    linear = dataclasses.replace(s, schedule="linear")
    assert [linear.learning_rate_at(u) for u in (2, 6, 10)] == [1.0, 0.5, 0.0]
    cosine = dataclasses.replace(s, schedule="cosine")
    assert cosine.learning_rate_at(4) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_clip_higher():
    s = TrainSettings(importance_reweighting="grpo", cliprange=0.2, cliprange_upper=0.28)
    assert s.update_settings().cliprange == (0.2, 0.28)


def test_every_preset_is_valid_and_unknown_ones_are_named():
    assert set(PRESETS) == {"tiny", "smollm2", "olmo2-1b"}
    with pytest.raises(ValueError, match=r"preset='gpt' is unknown; choose one of 'tiny', 'smollm2', 'olmo2-1b'"):
        preset("gpt")


def test_every_field_has_a_docstring():
    import ast
    import inspect

    body = ast.parse(inspect.getsource(TrainSettings)).body[0].body[1:]
    fields = [i for i, node in enumerate(body) if isinstance(node, ast.AnnAssign)]
    assert len(fields) == len(dataclasses.fields(TrainSettings))
    for i in fields:
        assert isinstance(body[i + 1].value, ast.Constant), ast.unparse(body[i])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"group_size": True}, "group_size=True"),
        ({"rollout_batch": 100}, "rollout_batch=100 must be a multiple of train_batch=256"),
        ({"train_batch": 4}, "train_batch=4 must be a multiple of group_size=8"),
        ({"train_questions": 31}, "train_questions=31 is fewer than the 32 prompts"),
        ({"group_size": 1}, "group_size=1 with advantage_normalizer='std'"),
        ({"importance_reweighting": "grpo"}, "cliprange=None"),
        ({"cliprange_upper": 0.3}, "cliprange_upper=0.3 without cliprange"),
        ({"importance_reweighting": "quotient"}, "importance_reweighting_method='quotient' is unknown"),
        ({"estimator": "ppo"}, "estimator='ppo' is unknown; choose one of 'reinforce'"),
        ({"schedule": "step"}, "schedule='step' is unknown"),
        ({"engine": "sglang"}, "engine='sglang' is unknown"),
        ({"data": "math"}, "data='math' is unknown"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"engine_weight_cap": 0.0}, "engine_weight_cap=0.0"),
        ({"engine": "vlm"}, "engine='vlm' is unknown; choose one of 'hf', 'vllm'"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"threads": 0}, "threads=0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"betas": (2.0, 0.9)}, r"betas=\(2.0, 0.9\) must be two numbers"),
        ({"seed": 2**32}, "seed=4294967296 must be an integer"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0"),
        ({"kl_coef": -1.0}, "kl_coef=-1.0"),
        ({"warmup_updates": -1}, "warmup_updates=-1"),
        ({"normalization_constant": 0.0}, "normalization_constant=0.0"),
    ],
)
def test_bad_settings(changes, message):
    if "normalization_constant" in changes:
        changes = changes | {"estimator": "dr_grpo"}
    with pytest.raises(ValueError, match=message):
        TrainSettings(**changes)


@pytest.mark.parametrize("seed", [2**32 - 1, 1 - 2**32])
def test_the_largest_seeds_seed_every_generator(seed):
    from types import SimpleNamespace

    from grpo.tasks import question_numbers
    from grpo.trainer import Trainer

    settings = TrainSettings(seed=seed, passes=2, steps=10**6)
    assert len(question_numbers(10**6, 32, 2048, seed)) == 32
    rows = list(Trainer._train_batches(SimpleNamespace(settings=settings, step=10**6)))
    assert [len(r) for r in rows] == [256, 256]
    assert settings.sampling(seed * 1_000_003 + 10**6).seed < 2**63
