"""Bytes counted on tensors without data: against sizes by hand, and against what torch's profiler measures."""

from __future__ import annotations

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from grpo.footprint import (
    LiveBytes,
    cache_bytes_per_token,
    generation_bytes,
    microbatch_bytes,
    model_shape,
    model_size,
)
from grpo.models import load_model
from grpo.rollouts import HFEngine, Sampling
from grpo.update import UpdateSettings, policy_gradient_update

SMALL = {
    "model_type": "olmo2",
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def olmo2_parameters(hidden, layers, key_values, intermediate, vocabulary, tables):
    """By hand: attention (q and o, k and v), their norms, the gated MLP, two norms a layer, and one at the end."""
    attention = 2 * hidden * hidden + 2 * hidden * key_values
    norms = hidden + key_values + 2 * hidden
    return tables * vocabulary * hidden + layers * (attention + 3 * hidden * intermediate + norms) + hidden


def test_parameters_by_formula():
    size = model_size(json.dumps(SMALL))
    assert size.parameters == olmo2_parameters(16, 3, 8, 40, 100, 2) == 11_448
    # Without 3 x (16 + 8 + 32) + 16 norms and 100 x 16 embeddings that are only looked up.
    assert size.in_products == 11_448 - 184 - 1600
    assert (size.largest, size.vocabulary, size.context) == (1600, 100, 64)
    tied = model_size(json.dumps(SMALL | {"tie_word_embeddings": True}))
    assert tied.parameters == olmo2_parameters(16, 3, 8, 40, 100, 1)
    assert tied.in_products == size.in_products


def test_olmo2_1b_needs_no_download(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    size = model_size(model_shape("olmo2-1b"))
    assert size.parameters == olmo2_parameters(2048, 16, 2048, 8192, 100_352, 2) == 1_484_916_736
    assert size.context == 4096


def test_tiny_is_counted_like_the_loaded_one():
    model, _ = load_model("tiny", device="cpu")
    assert model_size(model_shape("tiny")).parameters == sum(p.numel() for p in model.parameters())


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="no config could be read"):
        model_shape(str(tmp_path))


@pytest.mark.parametrize(("half", "size"), [(False, 4), (True, 2)])
def test_cache_bytes_of_a_token(half, size):
    # 2 (keys and values) x layers x key-value heads x head size x bytes
    assert cache_bytes_per_token(json.dumps(SMALL), half=half) == 2 * 3 * 2 * 4 * size
    assert cache_bytes_per_token(model_shape("tiny"), half=half) == 2 * 4 * 4 * 32 * size


def test_live_bytes():
    known = torch.zeros(1000)
    with LiveBytes(known) as live:
        view = known.view(10, 100)
        first = known + 1
        second = view * 2
        assert (live.now, live.peak) == (8000, 8000)
        del first
        assert (live.now, live.peak) == (4000, 8000)
        second.add_(1)
        third = second.to(torch.bfloat16)
        assert (live.now, live.peak) == (6000, 8000)
    del second, third
    assert live.now == 0


def test_a_large_vocabulary_is_held_five_times():
    shape = json.dumps(SMALL | {"vocab_size": 20_000})
    logits = 4 * 4 * 30 * 20_000
    kept, peak = microbatch_bytes(shape, 4, 30, half=False, gradients=True)
    assert kept == pytest.approx(logits, rel=0.15)
    assert peak == pytest.approx(5 * logits, rel=0.05)


def test_without_gradients_they_are_made():
    shape = json.dumps(SMALL | {"intermediate_size": 20_000})  # the weights outweigh the activations
    with_them = microbatch_bytes(shape, 1, 2, half=False, gradients=True)[1]
    made = microbatch_bytes(shape, 1, 2, half=False, gradients=False)[1]
    assert made > 0.9 * 4 * model_size(shape).parameters > 2 * with_them


def measured_peak(prof):
    now = peak = 0
    for event in prof.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_update_as_measured(half, microbatches):
    torch.set_num_threads(1)
    model, _ = load_model("tiny", device="cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    settings = UpdateSettings(microbatches, autocast_dtype=torch.bfloat16 if half else None)

    def update(rows, width):
        ids = torch.randint(5, 400, (rows, width))
        batch = {"input_ids": ids, "labels": ids, "response_mask": torch.ones(rows, width, dtype=torch.bool)}
        policy_gradient_update(model, optimizer, batch, torch.ones(rows), settings)

    update(4, 5)  # AdamW makes its moments
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        update(32, 60)
    shape = model_shape("tiny")
    accumulates = microbatches > 1
    peak = microbatch_bytes(shape, 32 // microbatches, 60, half=half, gradients=accumulates)[1]
    gradients = 4 * model_size(shape).parameters if accumulates else 0
    assert measured_peak(prof) == pytest.approx(peak + gradients, rel=0.01)


def test_rollouts_as_measured():
    torch.set_num_threads(1)
    model, tokenizer = load_model("tiny", device="cpu")
    engine = HFEngine(model, tokenizer)
    engine.eos_token_ids = [-1]  # no row ends early
    prompts = ["one two three four five six seven eight"] * 4
    length = len(tokenizer.encode(prompts[0], add_special_tokens=False))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        engine.generate(prompts, Sampling(n=8, max_tokens=40))
    cache, peak = generation_bytes(model_shape("tiny"), 32, 4, length, 40, half=False)
    assert cache == 32 * (length + 39) * 4096
    assert measured_peak(prof) == pytest.approx(peak, rel=0.03)
