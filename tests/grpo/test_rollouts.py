"""The hf engine: greedy text equal to transformers' own, log-probs equal to the trainer's, stops, seeds, budgets."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM

from grpo.log_probs import get_response_log_probs
from grpo.models import eos_token_ids
from grpo.rollouts import Completion, HFEngine, Sampling
from grpo.rollouts.hf import filter_top_p, sample_tokens
from grpo.tiny import build_tokenizer
from grpo.tokenization import tokenize_prompt_and_output
from grpo.words import word_problems

PROMPTS = ["Tom has 3 pens.", "Ann has 12 eggs and gets 4 more. How many eggs?", "Q"]


@pytest.fixture(scope="module")
def tokenizer():
    problems = word_problems(200, levels=(1, 2))
    return build_tokenizer(p.question + p.answer for p in problems)


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    config = Olmo2Config(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.5,
    )
    return Olmo2ForCausalLM(config).eval()


def test_greedy_equals_transformers_generate(model, tokenizer):
    completions = HFEngine(model, tokenizer).generate(PROMPTS, Sampling(temperature=0, max_tokens=20))
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
        assert completion.token_ids == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_are_the_trainers_at_the_sampling_temperature(model, tokenizer, temperature):
    sampling = Sampling(n=3, temperature=temperature, max_tokens=17, stop=("pen",))
    completions = HFEngine(model, tokenizer).generate(PROMPTS, sampling)
    repeated = [prompt for prompt in PROMPTS for _ in range(3)]
    batch = tokenize_prompt_and_output(
        repeated, [c.text for c in completions], tokenizer, output_token_ids=[c.token_ids for c in completions]
    )
    with torch.no_grad():
        expected = get_response_log_probs(model, batch["input_ids"], batch["labels"], temperature=temperature)
    for row, mask, completion in zip(expected["log_probs"], batch["response_mask"], completions, strict=True):
        assert row[mask].tolist() == pytest.approx(completion.log_probs, abs=1e-4)


def test_samples_follow_the_policy(model, tokenizer):
    completions = HFEngine(model, tokenizer).generate(["Q"], Sampling(n=4000, max_tokens=1))
    with torch.no_grad():
        logits = model(torch.tensor(tokenizer("Q", add_special_tokens=False)["input_ids"]).unsqueeze(0)).logits[0, -1]
    p = logits.softmax(-1)
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in completions]), minlength=512)
    likeliest = p.topk(5).indices
    for token in likeliest.tolist():
        share, expected = counts[token].item() / 4000, p[token].item()
        assert abs(share - expected) < 4.5 * math.sqrt(expected * (1 - expected) / 4000)


def test_order_and_number(model, tokenizer):
    single = [HFEngine(model, tokenizer).generate([p], Sampling(temperature=0, max_tokens=5))[0] for p in PROMPTS]
    several = HFEngine(model, tokenizer).generate(PROMPTS, Sampling(n=2, temperature=0, max_tokens=5))
    assert [c.token_ids for c in several] == [c.token_ids for c in single for _ in range(2)]


def test_token_budget_changes_no_greedy_text_and_bounds_the_batch(model, tokenizer):
    rows = []
    forward = model.forward

    def count(ids, **more):
        rows.append(len(ids))
        return forward(ids, **more)

    model.forward = count
    everything = HFEngine(model, tokenizer).generate(PROMPTS, Sampling(n=4, temperature=0, max_tokens=6))
    assert max(rows) == 12
    rows.clear()
    small = HFEngine(model, tokenizer, max_batch_tokens=60).generate(
        PROMPTS, Sampling(n=4, temperature=0, max_tokens=6)
    )
    assert small == everything or [c.token_ids for c in small] == [c.token_ids for c in everything]
    longest = max(len(tokenizer(p, add_special_tokens=False)["input_ids"]) for p in PROMPTS) + 6
    assert max(rows) <= 60 // (1 + 6)
    assert longest <= 60


def test_seeds(model, tokenizer):
    engine = HFEngine(model, tokenizer)
    first = engine.generate(PROMPTS, Sampling(n=3, max_tokens=10, seed=5))
    assert engine.generate(PROMPTS, Sampling(n=3, max_tokens=10, seed=5)) == first
    assert engine.generate(PROMPTS, Sampling(n=3, max_tokens=10, seed=6)) != first
    for i in range(0, 9, 3):  # the samples of one prompt differ
        assert len({tuple(c.token_ids) for c in first[i : i + 3]}) == 3


def script(model, tokenizer, texts: list[list[int]]):
    """Make the model say given ids, whatever it is asked: row i of the batch says texts[i]."""
    said = itertools.count()

    def forward(ids, past_key_values=None, **_):
        class Out:
            pass

        out, step = Out(), next(said)
        logits = torch.full((len(ids), 1, 512), -1e4)
        for row in range(len(ids)):
            text = texts[row % len(texts)]
            logits[row, 0, text[min(step, len(text) - 1)]] = 1e4
        out.logits, out.past_key_values = logits, past_key_values
        past_key_values.batch_select_indices = lambda rows: None
        return out

    model.forward = forward
    return HFEngine(model, tokenizer)


def test_stop_string_is_kept_and_ends_the_completion(model, tokenizer):
    ids = tokenizer(" 7 </answer> and more", add_special_tokens=False)["input_ids"]
    [c] = script(model, tokenizer, [ids]).generate(["Q"], Sampling(temperature=0, max_tokens=30, stop=("</answer>",)))
    assert c.text == " 7 </answer>"
    assert c.finish_reason == "stop"
    assert c.token_ids == ids[: len(c.token_ids)]
    assert len(c.log_probs) == len(c.token_ids)


def test_stop_string_over_several_tokens_with_text_behind_it(model, tokenizer):
    ids = tokenizer("1 2 3 stop. Then", add_special_tokens=False)["input_ids"]
    [c] = script(model, tokenizer, [ids]).generate(["Q"], Sampling(temperature=0, max_tokens=30, stop=("3 sto",)))
    assert c.text == "1 2 3 sto"
    assert c.finish_reason == "stop"


def test_stop_string_that_is_not_ascii(model, tokenizer):
    ids = tokenizer("so ✓ and more", add_special_tokens=False)["input_ids"]
    [c] = script(model, tokenizer, [ids]).generate(["Q"], Sampling(temperature=0, max_tokens=30, stop=("✓",)))
    assert (c.text, c.finish_reason) == ("so ✓", "stop")


def test_every_eos_id_ends_and_stays_in_the_ids(model, tokenizer):
    other = tokenizer("9", add_special_tokens=False)["input_ids"][0]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, other]
    assert eos_token_ids(model, tokenizer) == sorted({tokenizer.eos_token_id, other})
    word = tokenizer(" 7", add_special_tokens=False)["input_ids"]
    for eos in (tokenizer.eos_token_id, other):
        [c] = script(model, tokenizer, [[*word, eos, *word]]).generate(["Q"], Sampling(temperature=0, max_tokens=9))
        assert c.token_ids == [*word, eos]
        assert c.finish_reason == "stop"
    assert "9" in c.text  # an ordinary token that ends is still text; only special tokens are left out


def test_cut_off_at_max_tokens(model, tokenizer):
    ids = tokenizer(" 1 2 3 4 5 6 7 8 9", add_special_tokens=False)["input_ids"]
    [c] = script(model, tokenizer, [ids]).generate(["Q"], Sampling(temperature=0, max_tokens=4))
    assert c == Completion(tokenizer.decode(ids[:4]), ids[:4], c.log_probs, "length")


def test_top_p_keeps_the_smallest_set():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert filter_top_p(logits, 0.79).isfinite().tolist() == [[True, True, False, False]]
    assert filter_top_p(logits, 0.81).isfinite().tolist() == [[True, True, True, False]]
    assert filter_top_p(logits, 0.01).isfinite().tolist() == [[True, False, False, False]]
    assert filter_top_p(logits, 1.0) is logits


def test_sample_tokens_log_prob_is_under_the_temperature():
    logits = torch.tensor([[2.0, 0.0]])
    ids, log_probs = sample_tokens(logits, Sampling(temperature=2.0), torch.Generator().manual_seed(0))
    expected = math.log(math.e / (math.e + 1)) if ids.item() == 0 else math.log(1 / (math.e + 1))
    assert log_probs.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("stop", "x"),
        ("stop", ("",)),
    ],
)
def test_bad_sampling(field, value):
    with pytest.raises(ValueError, match=field):
        Sampling(**{field: value})


def test_bad_prompts(model, tokenizer):
    engine = HFEngine(model, tokenizer)
    model.forward = None  # no compute is spent
    with pytest.raises(ValueError, match=r"prompts\[1\].* holds 128"):
        engine.generate(["Q", "long " * 100], Sampling(max_tokens=50))
    with pytest.raises(ValueError, match=r"prompts\[0\]='' has no tokens"):
        engine.generate([""], Sampling(max_tokens=5))
    with pytest.raises(ValueError, match="max_batch_tokens=0"):
        HFEngine(model, tokenizer, max_batch_tokens=0)
    assert engine.generate([], Sampling()) == []


def test_sync_copies_the_weights_of_another_policy(model, tokenizer):
    torch.manual_seed(1)
    other = Olmo2ForCausalLM(model.config)
    with HFEngine(model, tokenizer) as engine:
        engine.sync(other)
        engine.sync(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_training_mode_is_put_back_and_progress_adds_up(model, tokenizer):
    ended = []
    model.train()
    HFEngine(model, tokenizer, on_progress=ended.append).generate(PROMPTS, Sampling(n=5, max_tokens=12))
    assert model.training
    assert sum(ended) == 15
