"""Plans against numbers by hand, on a model small enough for that and on GPUs made up for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from grpo.cli import main
from grpo.config import TrainSettings, preset
from grpo.footprint import microbatch_bytes, model_shape, model_size
from grpo.needs import GB, GPU, GPUS, Memory, PlanSettings, Prompts, memory, prompt_lengths, times
from grpo.plan import USABLE, changes_to_fit, engine_tokens, fits, on_trainer, plan, show

SETTINGS = TrainSettings(
    rollout_batch=16, train_batch=16, group_size=4, microbatches=2, max_new_tokens=20, device="cpu"
)


def test_memory_by_hand():
    need = memory(SETTINGS, 30)
    n = 919_680
    assert model_size(model_shape("tiny")).parameters == n
    assert (need.weights, need.moments, need.gradients, need.reference) == (4 * n, 8 * n, 4 * n, 0)
    assert (need.rows, need.width) == (8, 49)
    assert need.logits == 4 * 8 * 49 * 512
    assert need.kept > need.logits
    assert need.cache_per_token == 2 * 4 * 4 * 32 * 4
    # 256 validation questions at once, more than the 16 rows of a rollout batch; the last token is never fed back
    assert (need.rows_in_flight, need.cache) == (256, 256 * 49 * 4096)
    assert need.update == 12 * n + 4 * n + need.microbatch
    assert need.rollouts == 12 * n + need.generation
    assert need.optimizer_step == 8 * 512 * 128  # a CPU steps one tensor at a time; the embedding is the largest


def test_memory_follows_the_settings():
    base = memory(SETTINGS, 30)
    assert memory(replace(SETTINGS, kl_coef=0.1), 30).update - base.update == base.weights
    whole = memory(replace(SETTINGS, microbatches=1), 30)
    assert (whole.rows, whole.accumulates) == (16, False)
    assert whole.update == whole.fixed + whole.microbatch  # gradients are made in it, not there before
    gpu = memory(replace(SETTINGS, device="auto"), 30)
    assert gpu.cache == base.cache / 2
    assert gpu.optimizer_step == gpu.weights
    assert memory(replace(SETTINGS, device="auto", autocast=False), 30).cache == base.cache
    few = memory(replace(SETTINGS, max_batch_tokens=500), 30)
    assert few.rows_in_flight == 10  # 500 / (30 + 20)
    vllm = memory(replace(SETTINGS, engine="vllm"), 30)
    assert (vllm.generation, vllm.cache) == (0, 0)


def test_the_optimizers_step_can_be_the_peak():
    need = Memory(
        weights=40,
        moments=80,
        reference=0,
        gradients=40,
        optimizer_step=40,
        rows=1,
        width=1,
        logits=1,
        kept=2,
        microbatch=30,
        accumulates=True,
        cache_per_token=1,
        cache=1,
        generation=5,
        rows_in_flight=1,
    )
    assert (need.fixed, need.update, need.rollouts) == (120, 200, 125)
    assert replace(need, microbatch=70).update == 230
    assert replace(need, microbatch=70, accumulates=False).update == 200


def test_prompts_counted_estimated_and_given(tmp_path, monkeypatch):
    counted = prompt_lengths(PlanSettings(SETTINGS))
    assert counted.source == "counted"
    assert 16 < counted.mean < counted.longest < 60
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    olmo = prompt_lengths(PlanSettings(preset("olmo2-1b")))
    # r1_zero has 425 bytes beside the question; GSM8K's longest question has 991, their mean is 235
    assert (olmo.longest, olmo.mean) == (354, 165)
    assert prompt_lengths(PlanSettings(SETTINGS, prompt_tokens=7)) == Prompts(7, 7, "as given")


def test_times_by_hand():
    settings = replace(
        SETTINGS, device="auto", autocast=False, steps=10, validate_every=4, validation_questions=8, passes=2
    )
    options = PlanSettings(settings, mfu=0.5, bandwidth_share=0.25, prompt_tokens=30, response_tokens=10)
    need = memory(settings, 30)
    n, prompts = model_size(model_shape("tiny")).in_products, Prompts(30, 28.0, "")
    assert need.rows_in_flight == 16

    slow_memory = times(options, prompts, need, GPU("", 1, bandwidth=0.004, bf16=9, fp32=1e3))
    decode = 10 * (4 * n + 3 * 16 * 4096 * (28 + 5)) / (0.004e9 * 0.25)
    assert slow_memory.rollouts == pytest.approx(decode, rel=1e-3)

    slow_products = times(options, prompts, need, GPU("", 1, bandwidth=1e9, bf16=9, fp32=1e-3))
    assert slow_products.rollouts == pytest.approx((10 * 16 + 4 * 28) * 2 * n / 0.5e9)
    # two passes of 6, one of 2 for the old log-probs, on 16 rows of 28 + 10 tokens
    assert slow_products.update == pytest.approx((2 * 6 + 2) * n * 16 * 38 / 0.5e9)
    validation = (10 * 8 + 8 * 28) * 2 * n / 0.5e9
    run = 10 * (slow_products.rollouts + slow_products.update) + 4 * validation  # before, after 4, 8 and 10
    assert slow_products.run == pytest.approx(run)


def test_what_to_change_by_hand():
    settings = replace(SETTINGS, device="auto", microbatches=1, validation_questions=4, kl_coef=0.1)
    options = PlanSettings(settings, prompt_tokens=30)
    need = memory(settings, 30)
    assert need.update > need.rollouts
    roomy = GPU("", on_trainer(options, need, GPUS["h100"]) / GB / USABLE * 1.001, 1, 1, 1)
    assert fits(options, need, roomy)
    assert changes_to_fit(options, 30, roomy) == ([], True)

    halved = memory(replace(settings, microbatches=2), 30)
    tight = replace(roomy, memory=halved.update / GB / USABLE * 1.001)
    changes, fit = changes_to_fit(options, 30, tight)
    assert [(c.name, c.before, c.after) for c in changes] == [("microbatches", 1, 2)]
    assert changes[0].saves == need.update - halved.update
    assert fit

    changes, fit = changes_to_fit(options, 30, replace(roomy, memory=0.001))
    assert not fit
    assert {c.name for c in changes} >= {"microbatches", "kl_coef"}
    assert [c.saves for c in changes] == sorted((c.saves for c in changes), reverse=True)
    at_last = replace(settings, **{c.name: c.after for c in changes})
    left = on_trainer(options, need, tight) - sum(c.saves for c in changes)
    assert left == on_trainer(PlanSettings(at_last), memory(at_last, 30), tight)


def test_a_vllm_engine_beside_the_trainer_and_on_a_gpu_of_its_own():
    settings = replace(SETTINGS, device="auto", engine="vllm")
    need = memory(settings, 30)
    gpu = GPU("", 1.0, 1, 1, 1)  # GB
    assert on_trainer(PlanSettings(settings), need, gpu) == need.update + 0.4e9
    apart = PlanSettings(replace(settings, engine_gpus=(1,)))
    assert on_trainer(apart, need, gpu) == need.update
    assert on_trainer(PlanSettings(replace(settings, engine_gpus=(0,))), need, gpu) == need.update + 0.4e9
    assert on_trainer(PlanSettings(replace(settings, engine_gpus=(1,), device="cuda:1")), need, gpu) > need.update
    server = replace(settings, engine="vllm-server", engine_url="http://gpu:8000", engine_folder="shared")
    assert on_trainer(PlanSettings(server), need, gpu) == need.update
    asleep = PlanSettings(replace(settings, engine_sleep=True))
    assert on_trainer(asleep, need, gpu) == max(need.update, need.rollouts + 0.4e9)
    # 0.4 GB less two bytes a parameter, at 2 x 4 layers x 4 heads x 32 x 2 bytes a token
    assert engine_tokens(PlanSettings(settings), need, gpu) == (400_000_000 - 2 * 919_680) // 2048
    assert not fits(apart, need, replace(gpu, memory=0.0046))  # vLLM's weights leave no room


def test_published_preset_on_the_known_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    result = plan(PlanSettings(preset("olmo2-1b"), gpu="h100"))
    n = 1_484_916_736
    assert result.parameters == n
    assert result.memory.cache_per_token == 2 * 16 * 16 * 128 * 2
    assert result.memory.logits == 4 * 8 * 865 * 100_352
    peak = microbatch_bytes(model_shape("olmo2-1b"), 8, 865, half=True, gradients=True)[1]
    assert result.gpus["h100"].bytes_needed == 16 * n + peak
    assert result.gpus["h100"].fits
    text = show(PlanSettings(preset("olmo2-1b"), gpu="h100"), result)
    assert "not measured" in text
    assert "assumed" in text


def test_the_command(capsys):
    arguments = ["--preset", "tiny", "--microbatches", "8", "--prompt-tokens", "40", "--gpu", "rtx4090"]
    assert main(["plan", *arguments]) == 0
    out = capsys.readouterr().out
    assert "microbatch of 32 x 119 tokens" in out
    line = json.loads(out.splitlines()[-1])
    assert line["parameters"] == 919_680
    assert line["fits"] == {"rtx4090": True}
    assert main(["plan", *arguments, "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["fits"] == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "h1000"}, "gpu='h1000' is unknown; choose one of 'h200', 'h100', 'a100-80gb', 'a100-40gb', 'rtx4090'"),
        ({"mfu": 0.0}, "mfu=0.0 must be above 0 and at most 1"),
        ({"bandwidth_share": 1.5}, "bandwidth_share=1.5 must be above 0 and at most 1"),
        ({"prompt_tokens": 0}, "prompt_tokens=0 must be at least 1"),
        ({"response_tokens": 0}, "response_tokens=0 must be at least 1"),
        ({"response_tokens": 21}, "response_tokens=21 must be at most max_new_tokens=20"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        plan(PlanSettings(SETTINGS, **change))


def test_a_prompt_that_does_not_fit_the_context():
    with pytest.raises(
        ValueError, match="a prompt of 500 tokens with max_new_tokens=20 exceeds the model's context of 512"
    ):
        memory(SETTINGS, 500)
