"""Tokenization: ids, labels and mask written out by hand."""

import doctest
import warnings

import pytest
import torch
from dummies import BOS, EOS, PAD, DummyTokenizer

import grpo.tokenization
from grpo.tokenization import tokenize_prompt_and_output


def test_rows_are_padded_first_and_shifted_after():
    batch = tokenize_prompt_and_output(["ca", "d"], ["bb$", "c"], DummyTokenizer())
    # joined and padded: c a b b $   and   d c _ _ _
    assert batch["input_ids"].tolist() == [[5, 3, 4, 4], [6, 5, PAD, PAD]]
    assert batch["labels"].tolist() == [[3, 4, 4, EOS], [5, PAD, PAD, PAD]]
    assert batch["response_mask"].tolist() == [[False, True, True, True], [True, False, False, False]]
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.long
    assert batch["response_mask"].dtype == torch.bool
    assert set(batch) == {"input_ids", "labels", "response_mask"}


def test_prompt_and_output_are_tokenized_apart_and_without_special_tokens():
    batch = tokenize_prompt_and_output(["ca"], ["b"], DummyTokenizer())
    assert batch["input_ids"].tolist() == [[5, 3]]
    assert batch["labels"].tolist() == [[3, 4]]
    assert BOS not in batch["input_ids"]


def test_every_row_masks_exactly_its_own_response_labels():
    prompts, outputs = ["a", "cd", "cdcd", "d"], ["", "c", "dd$", "ccccccc"]
    batch = tokenize_prompt_and_output(prompts, outputs, DummyTokenizer())
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        ids = DummyTokenizer()([output], add_special_tokens=False)["input_ids"][0]
        assert batch["labels"][i][batch["response_mask"][i]].tolist() == ids
        positions = batch["response_mask"][i].nonzero().flatten().tolist()
        assert positions == list(range(len(prompt) - 1, len(prompt) - 1 + len(output)))


def test_fact_9_pad_equal_to_eos_keeps_the_sampled_eos():
    tokenizer = DummyTokenizer(pad_token="$")
    batch = tokenize_prompt_and_output(["c", "c"], ["d$", "ddd$"], tokenizer)
    assert batch["labels"].tolist() == [[6, EOS, EOS, EOS], [6, 6, 6, EOS]]
    assert batch["response_mask"].tolist() == [[True, True, False, False], [True, True, True, True]]


def test_fact_9_every_eos_of_a_model_with_several_stays():
    batch = tokenize_prompt_and_output(["c"], [""], DummyTokenizer(), output_token_ids=[[6, EOS, PAD, BOS]])
    assert batch["labels"][batch["response_mask"]].tolist() == [6, EOS, PAD, BOS]


def test_fact_10_sampled_ids_are_used_as_they_are():
    # "ab" sampled as "a", "b" would be re-encoded as the one token 7
    again = tokenize_prompt_and_output(["c"], ["ab"], DummyTokenizer())
    sampled = tokenize_prompt_and_output(["c"], ["ab"], DummyTokenizer(), output_token_ids=[[3, 4]])
    assert again["labels"].tolist() == [[7]]
    assert sampled["labels"].tolist() == [[3, 4]]
    prompt = tokenize_prompt_and_output(["ab"], ["c"], DummyTokenizer(), prompt_token_ids=[[3, 4]])
    assert prompt["input_ids"].tolist() == [[3, 4]]


def test_a_batch_of_one_token_rows_still_has_a_column():
    batch = tokenize_prompt_and_output(["c", "d"], ["", ""], DummyTokenizer())
    assert batch["input_ids"].tolist() == [[5], [6]]
    assert batch["labels"].tolist() == [[PAD], [PAD]]
    assert batch["response_mask"].tolist() == [[False], [False]]


def test_ids_may_be_tuples_and_tensors():
    a = tokenize_prompt_and_output(["c", "c"], ["", ""], DummyTokenizer(), output_token_ids=[(3, 4), (3,)])
    b = tokenize_prompt_and_output(
        ["c", "c"], ["", ""], DummyTokenizer(), output_token_ids=[torch.tensor([3, 4]), torch.tensor([3])]
    )
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_missing_pad_token_is_set_from_eos_and_said():
    tokenizer = DummyTokenizer(pad_token=None)
    with pytest.warns(UserWarning, match=r"no pad token.*'\$'"):
        batch = tokenize_prompt_and_output(["c", "c"], ["d", "ddd"], tokenizer)
    assert tokenizer.pad_token == "$"
    assert batch["labels"][0].tolist() == [6, EOS, EOS]
    assert batch["response_mask"][0].tolist() == [True, False, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenize_prompt_and_output(["c"], ["d"], tokenizer)


def test_neither_pad_nor_eos_is_refused():
    with pytest.raises(ValueError, match=r"neither a pad_token nor an eos_token.*set tokenizer\.pad_token"):
        tokenize_prompt_and_output(["c"], ["d"], DummyTokenizer(pad_token=None, eos_token=None))


@pytest.mark.parametrize(
    ("prompts", "outputs", "ids", "message"),
    [
        (["c", "c"], ["d"], {}, r"len\(prompt_strs\)=2, len\(output_strs\)=1"),
        ([], [], {}, r"len\(prompt_strs\)=0.*at least 1"),
        (["c"], ["d"], {"output_token_ids": [[6], [6]]}, r"len\(output_token_ids\)=2"),
        (["c"], ["d"], {"prompt_token_ids": []}, r"len\(prompt_token_ids\)=0"),
    ],
)
def test_lists_of_different_lengths_are_refused(prompts, outputs, ids, message):
    with pytest.raises(ValueError, match=message):
        tokenize_prompt_and_output(prompts, outputs, DummyTokenizer(), **ids)


def test_a_text_that_is_none_is_named():
    with pytest.raises(TypeError, match=r"output_strs\[1\]=None must be a string"):
        tokenize_prompt_and_output(["c", "c"], ["d", None], DummyTokenizer())


def test_docstring_examples():
    assert doctest.testmod(grpo.tokenization).failed == 0


def test_one_string_for_a_list_is_refused():
    with pytest.raises(TypeError, match="prompt_strs='ab' is one string; expected a list"):
        tokenize_prompt_and_output("ab", ["c", "d"], DummyTokenizer())
    with pytest.raises(TypeError, match="prompts='ab' is one string"):
        grpo.tokenization.encode("ab", DummyTokenizer(), "prompts")
