r"""Core checks of the two reward functions: a table of responses, each with what it earns and what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpo.checks.judge import WrongAnswer, call, entry, judged

Case = tuple[str, str, int, int, str]
"""Response, ground truth, reward, format reward, and what is wrong with a function that says otherwise."""

_NEWER = "two numbers that a float cannot tell apart. Compare exactly: fractions.Fraction, or int."
_ANSWERS: tuple[tuple[str, str, int, str], ...] = (
    ("18", "18", 1, "the plainest right answer is not paid"),
    ("17", "18", 0, "a wrong answer is paid"),
    ("118", "18", 0, "you look for the truth somewhere in the answer. 118 is not 18"),
    ("18.00", "18", 1, "you compare strings. 18.00 is 18: compare numbers"),
    ("$18", "18", 1, "a dollar sign in front does not make it another number"),
    ("1,000", "1000", 1, "take the thousands separators out before comparing"),
    ("18 or 20", "18", 0, "two different numbers are no answer: a policy would learn to list them all"),
    ("9+9", "18", 0, "a sum is not its result. Never eval what a model wrote"),
    ("9007199254740993", "9007199254740992", 0, _NEWER),
    ("nan", "18", 0, "nan is no answer"),
)
"""What stands where the answer belongs, the ground truth, and what it earns; the format is right in all of them."""

_R1_FORMATS: tuple[Case, ...] = (
    ("So it is 18.", "18", 0, 0, "without tags the format is wrong and nothing is paid"),
    ("6+12 <answer> 18 </answer>", "18", 0, 0, "the format needs </think> before <answer>"),
    ("6+12 </think> <answer> 18", "18", 0, 0, "without </answer> the format is wrong: the answer has not ended"),
    ("6+12 </think>\n\n<answer>18</answer>", "18", 1, 1, "white space between the tags may be any, or a new line"),
    ("</think> so <answer> 18 </answer>", "18", 0, 0, "between </think> and <answer> only white space may stand"),
    ("</think> <answer>  </answer>", "18", 0, 0, "an empty answer has the wrong format"),
    ("</think> <answer> 17 </answer> <answer> 18 </answer>", "18", 0, 1, "cut at the first </answer>; it says 17"),
    ("18 </think> <answer> 17 </answer> 18", "18", 0, 1, "only what stands between the answer tags counts"),
)
_BOX_FORMATS: tuple[Case, ...] = (
    ("So it is 18.", "18", 0, 0, r"without a \boxed{} the format is wrong and nothing is paid"),
    (r"\boxed{17}, no: \boxed{18}", "18", 1, 1, r"the last \boxed{} counts; you take another"),
    (r"\boxed{18}, no: \boxed{17}", "18", 0, 1, r"the last \boxed{} counts; you take another, or any"),
    (r"It is \boxed{\text{18}}.", "18", 1, 1, r"braces nest: the box holds \text{18}"),
    (r"\boxed{} is 18", "18", 0, 0, "an empty box has the wrong format"),
    (r"\boxed{18", "18", 0, 0, "a box that is not closed has the wrong format"),
    (r"\boxed{17} and 18", "18", 0, 1, "only what stands in the box counts"),
)


@judged
def check_r1_zero_reward_fn(function: Callable[..., Any]) -> str:
    """A response to an r1_zero prompt: format </think> <answer> ... </answer>, paid when the answer is right."""
    answers = [(f"6+12 </think> <answer> {a} </answer>", truth, pays, 1, why) for a, truth, pays, why in _ANSWERS]
    _grade(function, [*answers, *_R1_FORMATS])
    return "Right: every response of the table is graded as it should be, and the format alone is never paid."


@judged
def check_question_only_reward_fn(function: Callable[..., Any]) -> str:
    r"""A response with its answer in \boxed{}: paid when the last box is right."""
    answers = [(rf"So it is \boxed{{{a}}}.", truth, pays, 1, why) for a, truth, pays, why in _ANSWERS]
    _grade(function, [*answers, *_BOX_FORMATS])
    return "Right: every response of the table is graded as it should be, and the format alone is never paid."


def _grade(function: Callable[..., Any], cases: list[Case]) -> None:
    found = []
    for response, truth, *_ in cases:
        result = call(function, response, truth, setting=f"{response!r}, ground truth {truth!r}")
        try:
            found.append([float(entry(result, key)) for key in ("reward", "format_reward", "answer_reward")])
        except (TypeError, ValueError):
            raise WrongAnswer("Return three numbers: reward, format_reward, answer_reward.") from None
    if all(reward == format_reward for reward, format_reward, _ in found) and any(reward for reward, *_ in found):
        raise WrongAnswer("You pay for the format: a wrong answer in the right tags must earn a reward of 0.")
    if any(reward not in (0, 1) for reward, *_ in found):
        raise WrongAnswer("The reward is 0 or 1: the answer's alone. Format is logged, and neither paid nor added.")
    for (response, truth, reward, format_reward, why), (is_reward, is_format, is_answer) in zip(
        cases, found, strict=True
    ):
        if is_reward != reward:
            raise WrongAnswer(f"{response!r}, ground truth {truth!r}: reward {is_reward:g}, should be {reward}: {why}.")
        if is_format != format_reward:
            raise WrongAnswer(
                f"{response!r}: format_reward {is_format:g}, should be {format_reward}"
                + (f": {why}." if len({reward, format_reward}) == 1 else "; the format does not depend on the answer.")
            )
        if is_answer != is_reward:
            raise WrongAnswer(f"{response!r}: answer_reward {is_answer:g}; it is 1 exactly where the reward is.")
