import pytest
import torch

from grpo.checks import nb07
from grpo.checks.nb07 import check_advantages, check_diagnosis, check_response_ids, check_response_mask


def mask_of(start, end):
    """A mask function, true from column start(p, r) to before end(p, r)."""
    return lambda p, r, columns: [start(p, r) <= t < end(p, r) for t in range(columns)]


MASKS = {
    "nothing": (None, "Not done yet"),
    "returns nothing": (lambda p, r, c: None, "not done yet"),
    "no function": ([True], "the function itself"),
    "stub": (mask_of(lambda p, r: p, lambda p, r: p + r), "one place late"),
    "early": (mask_of(lambda p, r: p - 2, lambda p, r: p + r - 2), "one place early"),
    "first left out": (mask_of(lambda p, r: p, lambda p, r: p + r - 1), "first response token is left out"),
    "last left out": (mask_of(lambda p, r: p - 1, lambda p, r: p + r - 2), "last response token"),
    "prompt's last": (mask_of(lambda p, r: p - 2, lambda p, r: p + r - 1), "prompt's last token is in"),
    "one too many": (mask_of(lambda p, r: p - 1, lambda p, r: p + r), "one place too many"),
    "padding": (mask_of(lambda p, r: p - 1, lambda p, r: 99), "padding after the response is in"),
    "prompt": (mask_of(lambda p, r: 0, lambda p, r: p + r - 1), "the prompt is in"),
    "turned round": (mask_of(lambda p, r: 0, lambda p, r: p - 1), "turn it round"),
    "everything": (lambda p, r, c: [True] * c, "everything is in"),
    "too long": (lambda p, r, c: [True] * (c + 1), "one for each of the"),
    "nothing marked": (lambda p, r, c: [False] * c, "your mask is ........; it should be ..RR...."),
    "raises": (lambda p: None, "stopped with TypeError"),
    "a number": (lambda p, r, c: 1, "cannot be read"),
}


@pytest.mark.parametrize(("answer", "words"), MASKS.values(), ids=MASKS)
def test_wrong_masks_are_told_what_is_wrong(said, answer, words):
    printed = said(check_response_mask, answer)
    assert words in printed
    assert not printed.startswith("Right")


@pytest.mark.parametrize("kind", [list, torch.tensor], ids=["list", "tensor"])
def test_right_masks_pass(said, kind):
    right = mask_of(lambda p, r: p - 1, lambda p, r: p + r - 1)
    assert said(check_response_mask, lambda p, r, c: kind(right(p, r, c))).startswith("Right")


def normalized(rewards, group_size, center=True, over=None, correction=1, eps=1e-6, power=1.0):
    groups = rewards.view(-1, group_size)
    s = groups.std(dim=1, keepdim=True, correction=correction) if over is None else over(rewards)
    centered = groups - groups.mean(dim=1, keepdim=True) if center else groups
    return (centered / (s**power + eps)).flatten()


ADVANTAGES = {
    "nothing": (lambda r, g: None, "not done yet"),
    "ellipsis": (..., "Not done yet"),
    "stub": (lambda r, g: normalized(r, g, over=torch.std), "taken over the batch"),
    "mean of the batch": (
        lambda r, g: ((r.view(-1, g) - r.mean()) / (r.view(-1, g).std(dim=1, keepdim=True) + 1e-6)).flatten(),
        "taken over the batch",
    ),
    "both": (lambda r, g: (r - r.mean()) / (r.std() + 1e-6), "taken over the batch"),
    "population": (lambda r, g: normalized(r, g, correction=0), "by G - 1"),
    "not divided": (lambda r, g: normalized(r, g, over=lambda rewards: 1.0), "not yet divided"),
    "not centered": (lambda r, g: normalized(r, g, center=False), "subtract the group's mean"),
    "variance": (lambda r, g: normalized(r, g, power=2.0), "the variance"),
    "sign": (lambda r, g: -normalized(r, g), "of the wrong sign"),
    "no eps": (lambda r, g: normalized(r, g, eps=0.0), "Add 1e-6"),
    "large eps": (lambda r, g: normalized(r, g, eps=0.25), "it should be [0.50, 0.50, 0.50, -1.50]"),
    "a table": (lambda r, g: normalized(r, g).view(-1, g), "flatten"),
    "a list": (lambda r, g: [0.0], "expected a tensor"),
    "raises": (lambda r: None, "stopped with TypeError"),
}


@pytest.mark.parametrize(("answer", "words"), ADVANTAGES.values(), ids=ADVANTAGES)
def test_wrong_advantages_are_told_what_is_wrong(said, answer, words):
    printed = said(check_advantages, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_advantages_pass(said):
    assert said(check_advantages, normalized).startswith("Right")


def encoded(rollout, tokenizer):
    return tokenizer.encode(rollout.text, add_special_tokens=False)


def encoded_with_eos_after_stop(rollout, tokenizer):
    return encoded(rollout, tokenizer) + [tokenizer.eos_token_id] * (rollout.finish_reason == "stop")


def encoded_with_special_tokens(rollout, tokenizer):
    return tokenizer.encode(tokenizer.decode(rollout.token_ids), add_special_tokens=False)


IDS = {
    "returns nothing": (lambda r, t: None, "not done yet"),
    "stub": (lambda r, t: [*encoded(r, t), t.eos_token_id], "an EOS at its end that was never sampled"),
    "eos after stop": (encoded_with_eos_after_stop, "an EOS at its end that was never sampled"),
    "text alone": (encoded, "loses it"),
    "eos taken out": (lambda r, t: [i for i in r.token_ids if i != t.eos_token_id], "loses it"),
    "encoded again": (encoded_with_special_tokens, "the ids are not"),
    "one missing": (lambda r, t: r.token_ids[:-1], "your ids say"),
    "raises": (lambda r: None, "stopped with TypeError"),
    "a number": (lambda r, t: 3, "cannot be read"),
}


@pytest.mark.parametrize(("answer", "words"), IDS.values(), ids=IDS)
def test_wrong_ids_are_told_what_is_wrong(said, answer, words):
    printed = said(check_response_ids, answer)
    assert words in printed
    assert not printed.startswith("Right")


@pytest.mark.parametrize("kind", [list, torch.tensor], ids=["list", "tensor"])
def test_right_ids_pass(said, kind):
    assert said(check_response_ids, lambda rollout, tokenizer: kind(rollout.token_ids)).startswith("Right")


DIAGNOSES = {
    "stub": (None, "Not done yet"),
    "another": ("entropy", "none of the four"),
    "a number": (4, "none of the four"),
    "learning rate": ("learning rate", "the format break"),
    "coin": ("coin", "near 0.5"),
    "no signal": ("no signal", "0 in every row"),
}


@pytest.mark.parametrize(("answer", "words"), DIAGNOSES.values(), ids=DIAGNOSES)
def test_wrong_diagnoses_are_told_why_not(said, answer, words):
    printed = said(check_diagnosis, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_the_diagnosis_passes_and_its_reason_is_in_the_table(said):
    assert said(check_diagnosis, " Format paid").startswith("Right")
    assert all(row[1] == row[2] for row in nb07.FAILED_RUN)
    lines = nb07.failed_run().splitlines()
    assert len(lines) == 16
    assert {len(line) for line in lines} == {10 * len(nb07.COLUMNS)}
    assert lines[10].split() == ["10", "1.000", "1.000", "0.031", "16.2", "-", "1.000", "0.000"]
