"""The tiny model and its tokenizer, both as built from nothing and as committed in data/tiny."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, Olmo2ForCausalLM, PreTrainedTokenizerFast

import grpo.tiny
from grpo.prompts import load_prompt
from grpo.tiny import CONTEXT, TAGS, VOCAB_SIZE, build_model, build_tokenizer
from grpo.words import word_problems

FOLDER = Path(__file__).resolve().parents[2] / "data" / "tiny"
STYLES = ("tiny_question_only", "tiny_r1_zero", "tiny_r1_zero_three_shot")
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Olmo2ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def small_tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(["Tom has 3 pens.", "Tom has 12 pens and 12 cups."] * 2)


def test_committed_folder_is_small_and_plain():
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert sum(files.values()) <= 5_000_000
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert "tokenizer_config.json" in files
    assert "warmup.json" in files
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Olmo2ForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert config["tie_word_embeddings"] is True
    assert "auto_map" not in config  # no code of its own: vLLM knows the class
    # vLLM's attention on CPUs takes no smaller head.
    assert config["hidden_size"] // config["num_attention_heads"] >= 32


def test_committed_model_has_the_parameters_counted_by_hand(model):
    embedding = 512 * 128  # tied: counted once
    attention = 4 * 128 * 128 + 2 * 128  # q, k, v, o; norms of q and k
    feed_forward = 3 * 128 * 384
    norms = 2 * 128
    assert model.num_parameters() == embedding + 4 * (attention + feed_forward + norms) + 128 == 919_680
    assert isinstance(model, Olmo2ForCausalLM)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_config_tokenizer_and_generation_config_agree(model):
    for config in (model.config, model.generation_config):
        assert config.pad_token_id == TOKENIZER.pad_token_id
        assert config.eos_token_id == TOKENIZER.eos_token_id
        assert config.bos_token_id is None
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    assert len(TOKENIZER) <= model.config.vocab_size == VOCAB_SIZE
    assert model.config.max_position_embeddings == CONTEXT == TOKENIZER.model_max_length


def test_committed_tokenizer_is_a_plain_fast_one_that_adds_nothing():
    assert isinstance(TOKENIZER, PreTrainedTokenizerFast)
    assert TOKENIZER.bos_token is None
    assert TOKENIZER("pens").input_ids == TOKENIZER("pens", add_special_tokens=False).input_ids
    assert TOKENIZER("").input_ids == []


def test_digits_are_single_tokens():
    digits = [TOKENIZER.encode(digit) for digit in "0123456789"]
    assert [len(ids) for ids in digits] == [1] * 10
    expected = [digits[int(digit)][0] for digit in "2026"]
    assert TOKENIZER.encode("2026") == expected
    with_space = TOKENIZER.encode(" 2026")
    assert with_space[-4:] == expected  # no token of a space and a digit
    merged = [token for token in TOKENIZER.get_vocab() if len(token) > 1 and any(c.isdigit() for c in token)]
    assert merged == []


@pytest.mark.parametrize("tag", TAGS)
def test_tags_are_single_tokens_that_decoding_keeps(tag):
    ids = TOKENIZER.encode(tag)
    assert len(ids) == 1
    assert ids[0] not in TOKENIZER.all_special_ids
    text = f"9{tag}a {tag} 7{tag}"
    joined = TOKENIZER.encode(text)
    assert joined.count(ids[0]) == 3
    assert TOKENIZER.decode(joined, skip_special_tokens=True) == text


def test_decoding_leaves_out_pad_and_eos():
    ids = [TOKENIZER.pad_token_id, *TOKENIZER.encode("7 pens"), TOKENIZER.eos_token_id]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "7 pens"


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(alphabet="<>/thinkaswer 0123=\n\\boxed{}'", max_size=60))
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("text", ["", " ", "\n\n", "naïve – 3 ≠ 4 🤖", "\x00\x7f\u200b", "<|pad|> <|eos|>", " 's 't"])
def test_texts_that_tokenizers_trip_over_come_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("style", STYLES)
def test_prompts_fit_and_leave_room_for_a_response(style):
    prompt = load_prompt(style)
    lengths = [len(TOKENIZER.encode(prompt.render(p.question))) for p in word_problems(500, levels=(1, 2, 3, 4))]
    assert max(lengths) <= CONTEXT - 128
    if style != "tiny_r1_zero_three_shot":  # short prompts keep a training step cheap
        assert max(lengths) <= 64


def test_words_of_the_problems_are_single_tokens():
    for word in (" Tom", " Zoe", " apples", " pens", " loses", " boxes", " many", " left", "Assistant"):
        assert len(TOKENIZER.encode(word)) == 1, word


def test_building_a_tokenizer_is_deterministic_and_ignores_tags_in_its_texts():
    texts = ["Tom has 3 pens. <think> 3+4 </think>", "Tom has pens."] * 3
    first, second = build_tokenizer(texts), build_tokenizer(texts)
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert len(first.encode("Tom has pens")) == 3
    assert [len(first.encode(tag)) for tag in TAGS] == [1, 1, 1, 1]
    assert not [token for token in first.get_vocab() if "hink" in token and token not in TAGS]


def test_a_tokenizer_of_few_texts_still_has_every_byte():
    tokenizer = small_tokenizer()
    assert len(tokenizer) < VOCAB_SIZE
    assert tokenizer.decode(tokenizer.encode("ÿ 🤖 19")) == "ÿ 🤖 19"


def test_a_vocabulary_too_small_is_refused():
    with pytest.raises(ValueError, match="vocab_size=200 must be at least 262"):
        build_tokenizer(["a"], vocab_size=200)


def test_build_model_is_seeded_and_leaves_the_global_generator():
    tokenizer = small_tokenizer()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (build_model(tokenizer, hidden_size=32, num_layers=1, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    weight = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[weight], again.state_dict()[weight])
    assert not torch.equal(first.state_dict()[weight], other.state_dict()[weight])
    assert first.config.vocab_size == VOCAB_SIZE


def test_build_model_refuses_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="hidden_size=100 must be a multiple of num_heads=3"):
        build_model(small_tokenizer(), hidden_size=100, num_heads=3)


def test_the_documentation_shows_what_happens():
    assert doctest.testmod(grpo.tiny).failed == 0
