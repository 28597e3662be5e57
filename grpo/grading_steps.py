r"""Why a response got its grade: the steps of `grpo.grading`, one after the other, up to the one that refused.

>>> for step in grading_steps(" 6+12=18 </think> <answer> 17 </answer>", "18"):
...     print(step)
passed: closed: cut at the first </answer>
passed: tags in order: </think>, then <answer>
passed: something in it: '17'
passed: one number: 17
REFUSED: right: 17 is not 18
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from grpo.grading import (
    MAX_ANSWER_CHARS,
    answers_equal,
    extract_boxed_answer,
    extract_r1_zero_answer,
    parse_number,
    question_only_reward_fn,
    r1_zero_reward_fn,
)

LONGEST_SHOWN = 40


@dataclass(frozen=True)
class GradingStep:
    """One question that the grader asks of a response."""

    name: str
    """What is asked."""
    passed: bool
    """Whether the answer was yes."""
    detail: str
    """What was found."""

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'REFUSED'}: {self.name}: {self.detail}"


def grading_steps(
    response: str, ground_truth: str, reward_fn: Callable[..., object] = r1_zero_reward_fn
) -> list[GradingStep]:
    """The steps that a reward function of `grpo.grading`, in its normal form, takes on a response, the refusing one last.

    All passed: the reward is 1. The format is right when the first three passed (question_only: two).
    Raises ValueError for another reward function, whose steps are not known.
    """
    if reward_fn is r1_zero_reward_fn:
        steps, answer = _r1_zero_format(response), extract_r1_zero_answer(response)
    elif reward_fn is question_only_reward_fn:
        steps, answer = _boxed_format(response), extract_boxed_answer(response)
    else:
        raise ValueError(
            f"reward_fn={reward_fn!r}: the steps are known of r1_zero_reward_fn and question_only_reward_fn"
        )
    taken = []
    for step in steps:
        taken.append(step)
        if not step.passed:
            return taken
    assert answer is not None  # the same conditions, which the tests compare on many responses
    for step in _equality(answer, ground_truth):
        taken.append(step)
        if not step.passed:
            break
    return taken


def _r1_zero_format(response: str) -> Iterator[GradingStep]:
    head, closing, _ = response.partition("</answer>")
    yield GradingStep("closed", bool(closing), "cut at the first </answer>" if closing else "no </answer>")
    thought, thinking, after = head.partition("</think>")
    answer = extract_r1_zero_answer(response)
    blank = answer is None and extract_r1_zero_answer(head + "x</answer>") is not None
    if answer is not None or blank:
        found = "</think>, then <answer>"
    elif not thinking:
        found = "no </think>" + (" before <answer>" if "<answer>" in head else ", and no <answer>")
    elif "<answer>" not in after:
        found = "no <answer> after </think>" + (", but one before it" if "<answer>" in thought else "")
    else:
        found = f"{_shown(after.partition('<answer>')[0].strip())} stands between </think> and <answer>"
    yield GradingStep("tags in order", answer is not None or blank, found)
    yield GradingStep("something in it", not blank, "nothing between the tags" if answer is None else _shown(answer))


def _boxed_format(response: str) -> Iterator[GradingStep]:
    answer = extract_boxed_answer(response)
    found = r"the last closed \boxed{}" if answer is not None else r"no \boxed{...} that is closed and holds something"
    yield GradingStep("boxed", answer is not None, found)
    yield GradingStep("something in it", True, "" if answer is None else _shown(answer))


def _equality(answer: str, ground_truth: str) -> Iterator[GradingStep]:
    if len(answer) > MAX_ANSWER_CHARS:
        yield GradingStep("short", False, f"{len(answer)} characters; the most is {MAX_ANSWER_CHARS}")
        return
    right, value = answers_equal(answer, ground_truth), parse_number(answer)
    if parse_number(ground_truth) is not None:
        found = f"{_shown(answer)} states none, several, or something to work out" if value is None else str(value)
        yield GradingStep("one number", value is not None, found)
    said = _shown(answer) if value is None else str(value)
    yield GradingStep("right", right, f"{said} is {'' if right else 'not '}{ground_truth}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…")
