from __future__ import annotations

import math
import re

import pytest

from grpo.checks.nb06 import (
    TEN_RESPONSES,
    check_categories,
    check_extract,
    check_pass_at_k,
    check_prompt,
)
from grpo.grading import r1_zero_reward_fn
from grpo.prompts import load_prompt


def extract(response):
    head, *closed = re.split("</answer>", response, maxsplit=1, flags=re.IGNORECASE)
    opening = re.search(r"</think>\s*<answer>", head, re.IGNORECASE)
    if not closed or opening is None:
        return None
    return head[opening.end() :].strip() or None


def searched(pattern, flags=re.DOTALL | re.IGNORECASE):
    def extract(response):
        match = re.search(pattern, response, flags)
        return (match[1].strip() or None) if match else None

    return extract


def without_strip(response):
    answer = extract(response)
    return answer and f" {answer} "


def whole_text_lowered(response):
    return extract(response.lower())


def cut(pattern, flags):
    """Cuts as it should be, then searches with a pattern of its own."""

    def extract(response):
        head, *closed = re.split("</answer>", response, maxsplit=1, flags=re.IGNORECASE)
        match = re.search(pattern, head, flags) if closed else None
        return (match[1].strip() or None) if match else None

    return extract


def second_cut(response):
    """The last closing tag."""
    pattern = r"((?!</answer>).)*?</think>\s*<answer>(.*)</answer>"
    match = re.match(pattern, response, re.DOTALL | re.IGNORECASE)
    return (match[2].strip() or None) if match else None


def exploding(response):
    """Right on the table, exponential on white space."""
    if re.search(r"</think>(\s*)*!", response.lower()):
        return None
    return extract(response)


EXTRACT_ANSWERS = {
    "stub": (searched("</think> <answer>(.*)</answer>", 0), "A hole"),
    "nothing": (lambda response: None, "Not yet"),
    "raises": (lambda response: re.search("<answer>", response)[0], "stopped with TypeError"),
    "not a text": (lambda response: 18, "expected a string or None"),
    "no function": ("extract", "the function itself"),
    "empty is an answer": (lambda r: extract(r) or ("" if "answer>" in r.lower() else None), "A hole"),
    "thinking not wanted": (searched("<answer>(.*?)</answer>"), "thinking that is never closed"),
    "closing not wanted": (searched(r"</think>\s*<answer>(.*?)(?:</answer>|$)"), "cut off before </answer>"),
    "words between": (searched(r"</think>.*?<answer>(.*?)</answer>"), "words between </think> and <answer>"),
    "not cut": (searched(r"</think>\s*<answer>(.*?)</answer>"), "only after the first </answer>"),
    "last closing tag": (second_cut, r"Cut at the \*first\* closing tag"),
    "a newline refused": (cut("</think> <answer>(.*)", re.DOTALL), "a newline between the tags"),
    "one line": (cut(r"</think>\s*<answer>[^\S\n]*(.*)", re.IGNORECASE), "on a line of its own"),
    "the first line": (cut(r"</think>\s*<answer>\s*(.*)", re.IGNORECASE), "an answer of two lines"),
    "lower case only": (cut(r"</think>\s*<answer>(.*)", re.DOTALL), "tags in capitals"),
    "the last opening": (cut(r"</think>\s*<answer>(?:.*<answer>)?(.*)", re.DOTALL | re.I), "two opening tags"),
    "case of the answer": (whole_text_lowered, "changed the case of the answer"),
    "white space left": (without_strip, "strip the white space"),
    "slow": (exploding, "more for more"),
}


@pytest.mark.parametrize(("answer", "words"), EXTRACT_ANSWERS.values(), ids=EXTRACT_ANSWERS)
def test_wrong_extractors_are_told_what_is_wrong(said, answer, words):
    printed = said(check_extract, answer)
    assert re.search(words, printed)
    assert not printed.startswith("Right")


def by_partition(response):
    lower = response.lower()
    end = lower.find("</answer>")
    thought, thinking, _ = lower[: max(end, 0)].partition("</think>")
    after = response[len(thought) + len(thinking) : max(end, 0)].lstrip()
    if not thinking or not after.lower().startswith("<answer>"):
        return None
    return after[len("<answer>") :].strip() or None


@pytest.mark.parametrize("answer", [extract, by_partition])
def test_right_extractors_pass(said, answer):
    assert said(check_extract, answer).startswith("Right")


PASS_AT_K_ANSWERS = {
    "stub": (lambda n, c, k: 1 - (1 - c / n) ** k, "with replacement"),
    "nothing": (lambda n, c, k: None, "not done yet"),
    "all right": (lambda n, c, k: math.comb(c, k) / math.comb(n, k), "*all* k are right"),
    "none right": (lambda n, c, k: math.comb(n - c, k) / math.comb(n, k), "take it from 1"),
    "not all right": (lambda n, c, k: 1 - math.comb(c, k) / math.comb(n, k), "not all are right"),
    "pass@1": (lambda n, c, k: c / n, "k does nothing"),
    "counted twice": (lambda n, c, k: min(1, k * c / n), "twice"),
    "any": (lambda n, c, k: c > 0, "pass@n"),
    "n and c exchanged": (lambda n, c, k: 1 - math.comb(n - k, c) / math.comb(n, k), "For n = 6, c = 2, k = 3"),
    "too few wrong ones": (
        lambda n, c, k: 1 - math.prod((n - c - i) / (n - i) for i in range(k)) if n - c >= k else 0.0,
        "For n = 4, c = 4, k = 3 it gives 0.000",
    ),
    "arguments missing": (lambda n, c: c / n, "stopped with TypeError"),
    "a text": (lambda n, c, k: "much", "cannot be read"),
    "no function": (0.8, "the function itself"),
}


@pytest.mark.parametrize(("answer", "words"), PASS_AT_K_ANSWERS.values(), ids=PASS_AT_K_ANSWERS)
def test_wrong_estimates_of_pass_at_k_are_told_what_is_wrong(said, answer, words):
    printed = said(check_pass_at_k, answer)
    assert words in printed
    assert not printed.startswith("Right")


def by_product(n, c, k):
    return 1 - math.prod(max(0, n - c - i) / (n - i) for i in range(k))


@pytest.mark.parametrize("answer", [lambda n, c, k: 1 - math.comb(n - c, k) / math.comb(n, k), by_product])
def test_right_estimates_of_pass_at_k_pass(said, answer):
    assert said(check_pass_at_k, answer).startswith("Right")


CATEGORIES = [1, 2, 3, 1, 3, 2, 2, 3, 1, 3]
CATEGORY_ANSWERS = {
    "stub": ([3] * 10, "4 of 10. Response 0, your 3"),
    "all right": ([1] * 10, "Response 1, your 1: the tags are as they should be"),
    "reads the working": ([2, *CATEGORIES[1:]], "9 of 10. Response 0, your 2: does the grader look at the working"),
    "strict": ([1, 2, 3, 3, 3, 2, 2, 3, 1, 3], "Response 3, your 3: white space of any length"),
    "pays hedging": ([1, 2, 3, 1, 3, 1, 2, 3, 1, 3], "Response 5, your 1: how many different numbers"),
    "the last answer": ([1, 2, 3, 1, 3, 2, 1, 3, 1, 3], "Response 6, your 1: cut at the first </answer>"),
    "a box counts": ([1, 2, 3, 1, 3, 2, 2, 3, 1, 1], "Response 9, your 1: what stands between the answer tags?"),
    "nothing": (None, "Not done yet"),
    "nine": (CATEGORIES[:9], "a list of ten"),
    "a text": ("1231322313", "a list of ten"),
    "names": (["right"] * 10, "each entry is 1, 2 or 3"),
    "booleans": ([True] * 10, "each entry is 1, 2 or 3"),
    "a number": (3, "cannot be read"),
}


@pytest.mark.parametrize(("answer", "words"), CATEGORY_ANSWERS.values(), ids=CATEGORY_ANSWERS)
def test_wrong_categories_are_told_where_to_look(said, answer, words):
    printed = said(check_categories, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_the_right_categories_pass_and_each_occurs(said):
    assert said(check_categories, CATEGORIES).startswith("Right")
    assert said(check_categories, tuple(CATEGORIES)).startswith("Right")
    assert {1, 2, 3} == set(CATEGORIES)
    for (response, truth), category in zip(TEN_RESPONSES, CATEGORIES, strict=True):
        verdict = r1_zero_reward_fn(response, truth)
        assert (verdict["format_reward"], verdict["answer_reward"]) == {1: (1, 1), 2: (1, 0), 3: (0, 0)}[category]


PROMPT = "Think first. Write it as <think> reasoning </think> <answer> number </answer>.\nProblem: {question}\n<think>"
PROMPT_ANSWERS = {
    "stub": ("Solve the problem.\n{question}\nAnswer: <answer>", "It ends in <answer>"),
    "nothing": (None, "Not done yet"),
    "not a text": (5, "expected a text"),
    "no question": (PROMPT.replace("{question}", ""), "not 0 times"),
    "two questions": (PROMPT.replace("{question}", "{question} {question}"), "not 2 times"),
    "the truth": (PROMPT.replace("Think", "The answer is {answer}. Think"), "give the answer away"),
    "a test question": (
        PROMPT.replace("Think", "A robe takes 2 bolts of blue fiber, 2 + 1 = 3. Think"),
        "the test set",
    ),
    "tags unexplained": ("Solve it.\n{question}\n<think>", "is not explained"),
    "answer tags unexplained": ("Use <think> and </think>.\n{question}\n<think>", "<answer> is not explained"),
    "tags apart": (
        "First <think> and </think>, and then also <answer> and </answer>. {question} <think>",
        "Show once </think> with <answer> right after it",
    ),
    "an open end": (PROMPT.removesuffix("<think>"), "must end in <think>"),
    "boxed": (r"Put the answer into \boxed{}. {question}", "the other grader's format"),
    "after the thinking": (PROMPT + " </think>", "nothing left to think"),
    "white space": (PROMPT + " ", "White space follows"),
    "hedging example": (PROMPT.replace("number", "17 or 18"), "with several numbers"),
    "question last": (PROMPT.replace("{question}", "") + "{question}", "must end in <think>"),
}


@pytest.mark.parametrize(("answer", "words"), PROMPT_ANSWERS.values(), ids=PROMPT_ANSWERS)
def test_wrong_prompts_are_told_what_is_wrong(said, answer, words):
    printed = said(check_prompt, answer)
    assert words in printed
    assert not printed.startswith("Right")


@pytest.mark.parametrize(
    "answer", [PROMPT, load_prompt("r1_zero").template, load_prompt("r1_zero_three_shot_gsm8k").template]
)
def test_right_prompts_pass(said, answer):
    assert said(check_prompt, answer).startswith("Right")
