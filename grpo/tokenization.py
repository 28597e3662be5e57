"""Tokenization: a prompt and a response become one row of ids, its next-token labels, and the mask of response labels.

The trainer trains on the ids that were sampled. Decoding a rollout and encoding the text again can give other ids (the
model may have written "th" + "e" where the tokenizer would write "the"), and their log-probs are those of something that
was never sampled: pass `output_token_ids` wherever they are at hand. Strings are for people and graders.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def ensure_pad_token(tokenizer: Any) -> int:
    """Return the id of the pad token; where the tokenizer has none, set it from eos and say so in a warning.

    A pad token equal to eos is harmless here: masks come from lengths, never from comparing ids with the pad id.
    Raises ValueError when there is no eos token either.
    """
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ValueError("tokenizer has neither a pad_token nor an eos_token; set tokenizer.pad_token first")
        warnings.warn(
            f"tokenizer has no pad token; using its eos token {tokenizer.eos_token!r} for padding",
            stacklevel=2,
        )
        tokenizer.pad_token = tokenizer.eos_token
    return int(tokenizer.pad_token_id)


def encode(texts: Sequence[str], tokenizer: Any, argument: str = "texts") -> list[list[int]]:
    """Token ids of each text, without special tokens.

    Raises TypeError, naming the argument and the place, when a text is not a string, or when one string stands where a
    list of them is expected: it would be taken for a list of its characters.
    """
    check_no_string(argument, texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{argument}[{i}]={text!r} must be a string")
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]] if texts else []


def join_and_pad(
    prompt_ids: Sequence[Sequence[int]], output_ids: Sequence[Sequence[int]], pad_token_id: int
) -> dict[str, Tensor]:
    """Rows of prompt + output, right-padded to the longest, as input_ids, labels and response_mask, each (N, T).

    T is the longest row less one (and at least 1, so that a model has something to read): the last column is dropped for
    input_ids, the first for labels, so that labels[:, t] is the token that follows input_ids[:, :t+1]. The mask is True
    exactly where the label is a token of the output.
    """
    rows = [[*prompt, *output] for prompt, output in zip(prompt_ids, output_ids, strict=True)]
    width = max(2, *map(len, rows))
    ids = torch.full((len(rows), width), pad_token_id, dtype=torch.long)
    is_output = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, (row, prompt) in enumerate(zip(rows, prompt_ids, strict=True)):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        is_output[i, len(prompt) : len(row)] = True
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "response_mask": is_output[:, 1:]}


def tokenize_prompt_and_output(
    prompt_strs: Sequence[str],
    output_strs: Sequence[str],
    tokenizer: Any,
    *,
    prompt_token_ids: Sequence[Sequence[int]] | None = None,
    output_token_ids: Sequence[Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """Tokenize prompts and outputs apart, without special tokens, and join each pair to one right-padded row.

    prompt_token_ids, output_token_ids: ids to use as they are in place of the strings' (the sampled ones).
    Returns input_ids (long), labels (long) and response_mask (bool), each (N, T) with T = longest row - 1.

    Raises ValueError for lists that are empty or of different lengths, and a tokenizer without pad and eos tokens; a
    tokenizer without a pad token gets its eos token, with a warning.
    """
    lists: dict[str, Sequence[Any]] = {"prompt_strs": prompt_strs, "output_strs": output_strs}
    lists |= {"prompt_token_ids": prompt_token_ids} if prompt_token_ids is not None else {}
    lists |= {"output_token_ids": output_token_ids} if output_token_ids is not None else {}
    check_same_length(lists)
    pad_token_id = ensure_pad_token(tokenizer)
    prompts = encode(prompt_strs, tokenizer, "prompt_strs") if prompt_token_ids is None else prompt_token_ids
    outputs = encode(output_strs, tokenizer, "output_strs") if output_token_ids is None else output_token_ids
    return join_and_pad(prompts, outputs, pad_token_id)


def check_no_string(argument: str, values: object) -> None:
    """Raise TypeError for a string where a list is expected: it would be taken for a list of its characters."""
    if isinstance(values, str):
        raise TypeError(f"{argument}={values[:80]!r} is one string; expected a list with an entry for each rollout")


def check_same_length(lists: dict[str, Sequence[Any]]) -> None:
    """Raise ValueError, with every length, unless the named lists have one length, which is not 0.

    Raises TypeError for a string in the place of a list.
    """
    for name, values in lists.items():
        check_no_string(name, values)
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        described = ", ".join(f"len({name})={length}" for name, length in lengths.items())
        raise ValueError(f"{described}: expected one length of at least 1, an entry for each rollout")
