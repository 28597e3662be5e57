"""Checks of notebook 07: a response mask, advantages, the ids to train on, a run to diagnose.

Each check takes the learner's answer, prints one message and returns nothing. It raises for no answer, however wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from grpo.checks.judge import WrongAnswer, as_tensor, call, same
from grpo.models import resolve_model
from grpo.rollouts.base import Completion, decode

FAULTS = ("learning rate", "coin", "no signal", "format paid")
"""The answers that `check_diagnosis` knows."""

COLUMNS = ("step", "reward", "format", "accuracy", "length", "entropy", "no signal", "grad norm")

FAILED_RUN: tuple[tuple[float | None, ...], ...] = (
    (1, 0.828, 0.828, 0.211, 18.9, 0.298, 0.250, 0.478),
    (2, 0.891, 0.891, 0.172, 20.4, 0.282, 0.500, 0.342),
    (3, 0.977, 0.977, 0.148, 18.6, 0.313, 0.875, 0.157),
    (4, 0.992, 0.992, 0.141, 17.1, 0.285, 0.938, 0.061),
    (5, 0.953, 0.953, 0.086, 16.9, 0.325, 0.688, 0.189),
    (6, 0.961, 0.961, 0.062, 16.5, 0.328, 0.688, 0.344),
    (7, 0.969, 0.969, 0.047, 15.9, 0.325, 0.750, 0.202),
    (8, 0.984, 0.984, 0.062, 15.0, 0.357, 0.875, 0.114),
    (9, 0.984, 0.984, 0.047, 15.6, 0.321, 0.875, 0.125),
    (10, 1.000, 1.000, 0.031, 16.2, None, 1.000, 0.000),
    (11, 1.000, 1.000, 0.047, 16.1, None, 1.000, 0.000),
    (12, 0.992, 0.992, 0.039, 17.1, 0.343, 0.938, 0.058),
    (13, 0.992, 0.992, 0.062, 18.1, 0.300, 0.938, 0.070),
    (14, 1.000, 1.000, 0.047, 18.1, None, 1.000, 0.000),
    (15, 1.000, 1.000, 0.117, 16.7, None, 1.000, 0.000),
)
"""Metrics of a run of the tiny model as recorded: seed 1, 16 prompts x 8, the preset's learning rate, the format paid."""

_WHY_NOT = {
    "learning rate": "With a learning rate far too high we saw the format break in the first update: reward and format 0 "
    "from step 2 on, and responses that run to the limit. Here the format becomes better and better. What is paid?",
    "coin": "A coin pays half of the responses, whatever they are: the reward would stay near 0.5, and no group would be "
    "without signal for long. This reward goes to 1. What is paid?",
    "no signal": "If the grader never found an answer, the reward would be 0 in every row, and the gradient too, from the "
    "first step on. Here groups lose their signal later, and because all of their rewards are 1. What is paid?",
}


def check_response_mask(my_response_mask: Callable[[int, int, int], Any]) -> None:
    """Print whether a function of (prompt length, response length, columns) marks the labels of the response."""
    print(_said(_response_mask, my_response_mask))


def check_advantages(my_advantages: Callable[[Tensor, int], Any]) -> None:
    """Print whether a function of (rewards, group size) gives (r - mu) / (s + 1e-6) within each group."""
    print(_said(_advantages, my_advantages))


def check_response_ids(my_response_ids: Callable[[Completion, Any], Any]) -> None:
    """Print whether a function of (rollout, tokenizer) returns the ids that were sampled, however the rollout ended."""
    print(_said(_response_ids, my_response_ids))


def check_diagnosis(my_diagnosis: Any) -> None:
    """Print whether a name is the fault behind FAILED_RUN, and if not, what that fault would look like."""
    print(_diagnosis(my_diagnosis))


def failed_run() -> str:
    """FAILED_RUN as a table; a dash where there was no token to take the entropy of."""
    lines = ["".join(f"{name:>10}" for name in COLUMNS)]
    for step, *values in FAILED_RUN:
        shown = ["-" if value is None else f"{value:.1f}" if value > 10 else f"{value:.3f}" for value in values]
        lines.append(f"{step:>10}" + "".join(f"{text:>10}" for text in shown))
    return "\n".join(lines)


def _said(judge: Callable[[Any], str], answer: Any) -> str:
    """The judge's message, in one line, whatever the answer is."""
    if answer is None or answer is ...:
        return "Not done yet: define the function."
    if not callable(answer):
        return f"Give the function itself, without calling it; this is a {type(answer).__name__}."
    try:
        return judge(answer)
    except WrongAnswer as wrong:
        return " ".join(str(wrong).split())
    except Exception as error:  # a result may be anything, and may raise when it is looked at
        return f"What your function returns cannot be read: {type(error).__name__}."


def _response_mask(function: Callable[..., Any]) -> str:
    for prompt, response, columns in ((3, 2, 8), (3, 4, 6), (1, 1, 4), (5, 1, 5)):
        setting = f"prompt_length={prompt}, response_length={response}, columns={columns}"
        result = call(function, prompt, response, columns, setting=setting)
        found = [bool(value) for value in (result.tolist() if isinstance(result, Tensor) else result)]
        if len(found) != columns:
            raise WrongAnswer(
                f"With {setting}: your mask has {len(found)} entries; give one for each of the {columns} columns."
            )
        _judge_mask(found, prompt, response, columns, setting)
    return "Right: true exactly where the label is a token of the response, from the first to the last."


def _judge_mask(found: list[bool], prompt: int, response: int, columns: int, setting: str) -> None:
    """Raise WrongAnswer, with the token that is wrongly left out or let in, unless a mask is right."""

    def between(start: int, end: int) -> list[bool]:
        return [start <= t < end for t in range(columns)]

    start, end = prompt - 1, prompt + response - 1
    if found == between(start, end):
        return
    messages = {
        (
            start + 1,
            end + 1,
        ): "one place late: the first response token is not trained on, and the place after the last "
        "one, padding or nothing, is. Your mask is that of the row; labels[t] is the row's token t + 1.",
        (
            start - 1,
            end - 1,
        ): "one place early: the prompt's last token is trained on, and the response's last one, where "
        "it decides to end, is not.",
        (
            start + 1,
            end,
        ): "the first response token is left out. It is predicted from the prompt's last token, at column "
        "prompt_length - 1.",
        (start, end - 1): "the last response token, where the response decides to end, is left out.",
        (start - 1, end): "the prompt's last token is in. The policy did not write it.",
        (start, end + 1): "one place too many at the end: there the label is padding.",
        (start, columns): "the padding after the response is in.",
        (start + 1, columns): "the first response token is left out, and the padding after the response is in.",
        (0, end): "the prompt is in. The policy did not write it.",
        (0, start): "the mask is that of the prompt: turn it round, and leave out the padding.",
        (0, columns): "everything is in, the prompt and the padding too.",
    }
    for places, message in messages.items():
        if found == between(*places):
            raise WrongAnswer(f"With {setting}: {message}")
    shown, right = ("".join(".R"[value] for value in mask) for mask in (found, between(start, end)))
    raise WrongAnswer(f"With {setting}: your mask is {shown}; it should be {right} (R: the label is a response token).")


def _advantages(function: Callable[..., Any]) -> str:
    easy, hard = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    right = torch.tensor([0.5, 0.5, 0.5, -1.5], dtype=torch.float64)
    alone = _advantages_of(function, easy)
    both = _advantages_of(function, torch.cat([easy, hard]))[:4]
    if not same(alone, right):
        messages = {
            "the population's standard deviation, which divides by G: take the sample's, by G - 1": right * 2 / 3**0.5,
            "r - mu, not yet divided by s": right / 2,
            "r / s: subtract the group's mean": easy.double() / 0.5,
            "divided by the variance: the standard deviation is its root": right * 2,
            "of the wrong sign: better than the group must be positive": -right,
        }
        for message, wrong in messages.items():
            if torch.allclose(alone, wrong, atol=1e-4):
                raise WrongAnswer(f"On one group alone, rewards 1, 1, 1, 0, what you return is {message}.")
        raise WrongAnswer(
            f"On one group alone, rewards 1, 1, 1, 0, you return {_show(alone)}; it should be {_show(right)}."
        )
    if not same(both, right):
        raise WrongAnswer(
            f"A group of rewards 1, 1, 1, 0 gets {_show(alone)} alone, and {_show(both)} when another prompt's group, "
            "1, 0, 0, 0, is in the batch. The answers are no better or worse for it: something is taken over the batch."
        )
    mixed = _advantages_of(function, torch.cat([torch.zeros(4), easy, torch.ones(4)]))
    if not mixed.isfinite().all():
        raise WrongAnswer("A group of four equal rewards gets nan or inf: 0 / 0. Add 1e-6 to the standard deviation.")
    if not same(mixed, torch.cat([torch.zeros(4).double(), right, torch.zeros(4).double()])):
        raise WrongAnswer(f"Three groups, 0 0 0 0, 1 1 1 0 and 1 1 1 1, get {_show(mixed)}; equal rewards must get 0.")
    return "Right: what a group gets does not depend on which other prompts are in the batch."


def _advantages_of(function: Callable[..., Any], rewards: Tensor) -> Tensor:
    setting = f"rewards {[int(r) for r in rewards]} and group_size 4"
    hint = "One number a rollout, in the order of the rewards: flatten the table."
    return as_tensor(call(function, rewards.clone(), 4, setting=setting), "the result", (len(rewards),), hint)


def _show(values: Tensor) -> str:
    return "[" + ", ".join(f"{value:.2f}" for value in values) + "]"


@functools.cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve_model("tiny"))


def _rollouts(tokenizer: Any) -> dict[str, Completion]:
    """Four rollouts, by how they ended or what is odd about them."""

    def completion(pieces: Sequence[str], reason: Any, end: Sequence[int] = ()) -> Completion:
        ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
        return Completion(decode(tokenizer, [*ids, *end]), [*ids, *end], [-0.5] * (len(ids) + len(end)), reason)

    eos = tokenizer.eos_token_id
    return {
        "ended with the stop string": completion([" 2+6=8 </think> <answer> 8 </answer>"], "stop"),
        "ended with the EOS token": completion([" 4+7=11, 4+11=15"], "stop", [eos]),
        "was cut off at the longest length": completion([" 4+7=11, 4+7=11, 4+7"], "length"),
        'wrote " guess" in two pieces': completion([" I", " ", "guess", " 5. </think> <answer> 5 </answer>"], "stop"),
    }


def _response_ids(function: Callable[..., Any]) -> str:
    tokenizer = _tokenizer()
    eos = tokenizer.eos_token_id
    for what, rollout in _rollouts(tokenizer).items():
        result = call(function, rollout, tokenizer, setting=f"a rollout that {what}")
        found = result.tolist() if isinstance(result, Tensor) else list(result)
        sampled = list(rollout.token_ids)
        if found == sampled:
            continue
        if found == [*sampled, eos]:
            raise WrongAnswer(
                f"A rollout that {what} gets an EOS at its end that was never sampled: you would train the policy on a "
                "decision that it did not take."
            )
        if sampled[-1] == eos and found == sampled[:-1]:
            raise WrongAnswer(
                f"A rollout that {what} loses it: 'stop here' was a decision, it was rewarded or not, and you leave it out."
            )
        text = decode(tokenizer, found)
        if text == rollout.text:
            raise WrongAnswer(
                f"A rollout that {what}: the text is the same, the ids are not ({len(found)} in place of {len(sampled)}). "
                "Their log-probs are those of something that was not sampled. Do not encode text."
            )
        raise WrongAnswer(f"A rollout that {what}: your ids say {text!r}; sampled was {rollout.text!r}.")
    return "Right: the ids as they were sampled, nothing added, nothing lost."


def _diagnosis(answer: Any) -> str:
    if answer is None or answer is ...:
        return "Not done yet: set my_diagnosis to one of the four names."
    if not isinstance(answer, str) or answer.strip().lower() not in FAULTS:
        return f"{answer!r} is none of the four: choose one of {', '.join(map(repr, FAULTS))}."
    answer = answer.strip().lower()
    if answer in _WHY_NOT:
        return _WHY_NOT[answer]
    return (
        "Right: reward and format are equal in every row, and the accuracy falls from 0.21 to about 0.05. A guess in the "
        "right tags is the safest way to be paid for tags. Once all are paid, no group has a signal, and it stops there."
    )
