r"""Checks of notebook 06: an extractor, pass@k, ten responses to classify, a prompt.

Each check takes the learner's answer, prints one message and returns nothing. It raises for no answer, however wrong.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from grpo.checks.judge import WrongAnswer, call
from grpo.grading import r1_zero_reward_fn

TEN_RESPONSES: tuple[tuple[str, str], ...] = (
    (" 3 dozen * 3 eggs = 9 eggs. </think> <answer> 9 </answer>", "9"),
    (" rule here </think> <answer> additional answer on this stage here </answer>", "240"),
    (" 20 - 16 = 4, so the answer is <answer> 4 </answer>", "4"),
    (" 9*2 = 18 </think>\n\n<answer>\n**$18.00** a day\n</answer>", "18"),
    (" 9*2 = 18 </think> The answer is <answer> 18 </answer>", "18"),
    (" One way gives 17, another 18. </think> <answer> 17 or 18 </answer>", "18"),
    (" 2 + 2 = 4 </think> <answer> 4 </answer> Wait, no. </think> <answer> 3 </answer>", "3"),
    (" 9*2 = 18 </think> <answer> 18", "18"),
    (" 9*2 = 18 </think> <answer> 18 </answer>\nUser: A train leaves", "18"),
    (" 9*2 = 18, so \\boxed{18} </think> <answer> </answer>", "18"),
)
"""Responses and their ground truths, for `check_categories`; the first two are SmolLM2-135M's own."""

_LOOK_AT = (
    "does the grader look at the working? Only at what stands in the answer tags",
    "the tags are as they should be. What stands in them is another matter",
    "where does the thinking end?",
    "white space of any length may stand between the tags, and words, units and Markdown beside the number",
    "what stands between </think> and <answer>?",
    "how many different numbers does the answer state? The tags are as they should be",
    "cut at the first </answer>. What is left?",
    "is the answer ever closed?",
    "cut at the first </answer>. What is left?",
    "what stands between the answer tags? A box outside of them does not count",
)
"""What to look at again, for each of TEN_RESPONSES."""

_TEST_QUESTIONS = ("a robe takes 2 bolts", "john arm wrestles 20 people", "chatty prepared three dozen eggs")


def check_extract(my_extract: Callable[[str], Any]) -> None:
    """Print whether a function extracts the answer of an r1_zero response, accepts enough, refuses enough, and is fast."""
    print(_said(_extract, my_extract))


def check_pass_at_k(my_pass_at_k: Callable[[int, int, int], Any]) -> None:
    """Print whether a function of (n, c, k) is the unbiased estimate of pass@k, by enumeration of all sets of k."""
    print(_said(_pass_at_k, my_pass_at_k))


def check_categories(my_categories: Any) -> None:
    """Print which of TEN_RESPONSES are in the wrong category: 1 right, 2 right format alone, 3 wrong format."""
    print(_said(_categories, my_categories))


def check_prompt(my_prompt: Any) -> None:
    """Print whether a template asks for what the r1_zero grader reads, and gives nothing away."""
    print(_said(_prompt, my_prompt))


def _said(judge: Callable[[Any], str], answer: Any) -> str:
    """The judge's message on an answer of any kind."""
    try:
        return judge(answer)
    except WrongAnswer as wrong:
        return str(wrong)
    except Exception as error:  # an answer may be anything, and may raise when it is looked at
        return f"Your answer cannot be read: {type(error).__name__}: {str(error)[:300]}"


def _function(answer: Any) -> Callable[..., Any]:
    if not callable(answer):
        raise WrongAnswer(f"Give the check the function itself, without calling it; it got a {type(answer).__name__}.")
    return answer


# ---- extraction ----------------------------------------------------------------------------------------------

_REFUSE = (
    ("no tags at all", " so it is 18."),
    ("thinking that is never closed", " so <answer> 18 </answer>"),
    ("a response cut off before </answer>", " so </think> <answer> 18"),
    ("words between </think> and <answer>", " so </think> It is <answer> 18 </answer>"),
    ("<answer> before </think>", " <answer> 18 </think> </answer>"),
    ("an empty answer", " so </think> <answer> </answer>"),
    ("a format that comes right only after the first </answer>", " </answer> </think> <answer> 18 </answer>"),
    ("other tags in place of <answer>", " so </think> <result> 18 </result>"),
)
_READ = (
    ("the plain format", " so </think> <answer> 18 </answer>", "18"),
    ("a newline between the tags", " so </think>\n<answer> 18 </answer>", "18"),
    ("several newlines between the tags", " so </think>\n \n<answer> 18 </answer>", "18"),
    ("nothing between the tags", " so </think><answer>18</answer>", "18"),
    ("an answer on a line of its own", " so </think> <answer>\n18\n</answer>", "18"),
    ("an answer of two lines", " so </think> <answer> 18\ndollars </answer>", "18\ndollars"),
    ("tags in capitals", " so </THINK> <ANSWER> 18 </ANSWER>", "18"),
    ("tags with a capital", " so </Think> <Answer> 18 </Answer>", "18"),
    ("letters in the answer, which keep their case", " so </think> <answer> 18 USD </answer>", "18 USD"),
    ("an aside in the thinking", " a < b </think> <answer> 18 </answer>", "18"),
    ("text after the answer", " so </think> <answer> 18 </answer>\nUser: and", "18"),
    ("a second guess, which does not count", " so </think> <answer> 17 </answer> <answer> 18 </answer>", "17"),
    ("a second answer in full", " </think> <answer> 17 </answer> </think> <answer> 18 </answer>", "17"),
    ("two opening tags", " so </think> <answer> 17 <answer> 18 </answer>", "17 <answer> 18"),
)
_SLOW = ("</think>", " ", "<answer>", "</think> <answer>", "\n", "a</think>")
_SLOWEST_S = 0.3


def _extract(answer: Any) -> str:
    function = _function(answer)
    for what, response in _REFUSE:
        if (found := _extracted(function, response)) is not None:
            raise WrongAnswer(f"A hole: {response!r} gives {found!r}; it must give None: {what}.")
    for what, response, right in _READ:
        found = _extracted(function, response)
        if found == right:
            continue
        if found is None:
            raise WrongAnswer(f"Not yet: {response!r} gives None; it should give {right!r}: {what}.")
        if "</answer>" in found.lower():
            raise WrongAnswer(f"A hole: {response!r} gives {found!r}. Cut at the *first* closing tag: {what}.")
        if found.lower() == right.lower():
            raise WrongAnswer(
                f"{response!r} gives {found!r}: you changed the case of the answer, not only of the tags."
            )
        if found.strip() == right:
            raise WrongAnswer(f"{response!r} gives {found!r}: strip the white space around the answer.")
        raise WrongAnswer(f"{response!r} gives {found!r}; it should give {right!r}: {what}.")
    for part in _SLOW:
        _time(function, part)
    return (
        "Right: it reads every sloppy format of the table, refuses every wrong one, and long texts do not slow it down."
    )


def _extracted(function: Callable[..., Any], response: str) -> str | None:
    try:
        found = function(response)
    except (Exception, SystemExit) as error:
        raise WrongAnswer(
            f"On {response!r} your function stopped with {type(error).__name__}: {error}. It must return None there."
        ) from None
    if found is None or isinstance(found, str):
        return found
    raise WrongAnswer(f"On {response!r} it returns a {type(found).__name__}; expected a string or None.")


def _time(function: Callable[..., Any], part: str) -> None:
    """Raise WrongAnswer for a function that gets slow. Small steps: an exponential one is caught, not waited for."""
    for n in (*range(16, 40, 2), *(2**power for power in range(6, 15))):
        text = "</think>" + part * n
        start = time.perf_counter()
        _extracted(function, text)
        if (took := time.perf_counter() - start) > _SLOWEST_S:
            raise WrongAnswer(
                f"It reads everything right, but needs {took:.1f} s for {n} times {part!r} ({len(text)} characters), and "
                "more for more: a policy that finds such a text stops the run. Look for quantifiers that can match the "
                "same text."
            )


# ---- pass@k --------------------------------------------------------------------------------------------------

_CASES = ((6, 2, 3), (5, 1, 2), (4, 0, 2), (4, 4, 3), (5, 4, 3), (8, 3, 1), (7, 2, 7))


def _by_enumeration(n: int, c: int, k: int) -> float:
    sets = list(combinations([True] * c + [False] * (n - c), k))
    return sum(any(chosen) for chosen in sets) / len(sets)


_MISTAKES: tuple[tuple[Callable[[int, int, int], float], str], ...] = (
    (
        lambda n, c, k: 1 - (1 - c / n) ** k,
        "this draws the k tries with replacement, and reads low on average. Count sets of k of the n samples",
    ),
    (lambda n, c, k: math.comb(c, k) / math.comb(n, k), "this is the chance that *all* k are right, not at least one"),
    (lambda n, c, k: math.comb(n - c, k) / math.comb(n, k), "this is the chance that *none* is right: take it from 1"),
    (lambda n, c, k: 1 - math.comb(c, k) / math.comb(n, k), "this is the chance that not all are right"),
    (lambda n, c, k: c / n, "this is pass@1: k does nothing in it"),
    (lambda n, c, k: min(1.0, k * c / n), "k times c/n counts sets with two right ones twice"),
    (lambda n, c, k: float(c > 0), "this says whether any of the n is right: it is pass@n, whatever k"),
)


def _pass_at_k(answer: Any) -> str:
    function = _function(answer)
    values = []
    for n, c, k in _CASES:
        value = call(function, n, c, k, setting=f"n={n}, c={c}, k={k}")
        values.append(float(value))
    rights = [_by_enumeration(*case) for case in _CASES]
    known = (message for wrong, message in _MISTAKES if _close(values, [wrong(*case) for case in _CASES]))
    mistake = next(known, None)
    for (n, c, k), found, right in zip(_CASES, values, rights, strict=True):
        if not _close([found], [right]):
            where = (
                f"For n = {n}, c = {c}, k = {k} it gives {found:.3f}; of all sets of {k}, {right:.3f} hold a right one."
            )
            raise WrongAnswer(f"Not yet: {mistake}. {where}" if mistake else where)
    return "Right: it agrees with the enumeration of all sets of k, also where fewer than k samples are wrong."


def _close(found: Sequence[float], right: Sequence[float]) -> bool:
    return all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(found, right, strict=True))


# ---- categories ----------------------------------------------------------------------------------------------


def _categories(answer: Any) -> str:
    if answer is None or answer is ...:
        raise WrongAnswer("Not done yet: set my_categories to a list of ten numbers, each 1, 2 or 3.")
    if isinstance(answer, str) or len(answer) != len(TEN_RESPONSES):
        raise WrongAnswer("my_categories must be a list of ten numbers, one a response, each 1, 2 or 3.")
    if strange := [entry for entry in answer if isinstance(entry, bool) or entry not in (1, 2, 3)]:
        raise WrongAnswer(f"my_categories holds {strange[0]!r}; each entry is 1, 2 or 3.")
    wrong = [
        number
        for number, (response, truth) in enumerate(TEN_RESPONSES)
        if answer[number] != _category(r1_zero_reward_fn(response, truth))
    ]
    if not wrong:
        return "Right: all ten. You grade as the grader does."
    first = wrong[0]
    raise WrongAnswer(f"{10 - len(wrong)} of 10. Response {first}, your {answer[first]}: {_LOOK_AT[first]}.")


def _category(verdict: dict[str, float]) -> int:
    if verdict["format_reward"] == 0:
        return 3
    return 1 if verdict["answer_reward"] == 1 else 2


# ---- a prompt ------------------------------------------------------------------------------------------------


def _prompt(answer: Any) -> str:
    if answer is None or answer is ...:
        raise WrongAnswer("Not done yet: set my_prompt to a text with {question} in it.")
    if not isinstance(answer, str):
        raise WrongAnswer(f"my_prompt is a {type(answer).__name__}; expected a text.")
    if (count := answer.count("{question}")) != 1:
        raise WrongAnswer(f"{{question}} must stand in it exactly once, not {count} times: the question goes there.")
    if slot := re.search(r"\{(answer|ground_truth|solution|truth|gold)\}", answer):
        raise WrongAnswer(
            f"{slot[0]} would give the answer away, and nothing fills it in. Only {{question}} may stand."
        )
    if any(question in " ".join(answer.lower().split()) for question in _TEST_QUESTIONS):
        raise WrongAnswer("A question of the test set stands in it: then you measure copying. Make up an example.")
    _end(answer)
    before = answer[: answer.rindex("<think>")]
    missing = [tag for tag in ("<think>", "</think>", "<answer>", "</answer>") if tag not in before]
    if missing:
        raise WrongAnswer(
            f"{missing[0]} is not explained: the model cannot know that it must write it. Show the whole form."
        )
    if not re.search(r"</think>\s*<answer>", before):
        raise WrongAnswer(
            "Show once </think> with <answer> right after it: the grader refuses what stands between, and a model copies."
        )
    for example in re.findall(r"<answer>(.*?)</answer>", before, re.DOTALL):
        if len(set(re.findall(r"\d+", example))) > 1:
            raise WrongAnswer(
                f"An example answers {example.strip()!r}, with several numbers: the grader would refuse it."
            )
    if answer.rindex("{question}") > answer.rindex("<think>"):
        raise WrongAnswer("The question stands after the last <think>: the model would think before it is asked.")
    return "Right: one question, all four tags shown in the order that the grader wants, and it ends where thinking begins."


def _end(template: str) -> None:
    """Raise WrongAnswer unless a response to the template can have the format."""
    text = template.rstrip()
    if text.endswith("<answer>"):
        raise WrongAnswer(
            "It ends in <answer>: the response would begin with the answer, without </think>, and the grader refuses every "
            "one. It also leaves no room to think."
        )
    if text.endswith(("</think>", "</answer>")):
        raise WrongAnswer(
            f"It ends in {text[-9:].lstrip()!r}, after the thinking: the model has nothing left to think."
        )
    if not text.endswith("<think>"):
        if r"\boxed" in template:
            raise WrongAnswer(
                r"\boxed{} is the other grader's format: this exercise wants the tags, and <think> at the end."
            )
        raise WrongAnswer(
            "It must end in <think>: the model's text then begins as thinking, which it has only to close."
        )
    if text != template:
        raise WrongAnswer(
            "White space follows the last <think>. Most tokenizers put the space at the start of the next word, so the "
            "model would have to begin with a token it has seldom seen there. End it in <think>."
        )
