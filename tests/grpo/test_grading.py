from __future__ import annotations

import doctest
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import grpo.data
import grpo.grading
import grpo.prompts
from grpo.data import load_gsm8k
from grpo.grading import (
    answers_equal,
    extract_boxed_answer,
    extract_r1_zero_answer,
    parse_number,
    question_only_reward_fn,
    r1_zero_reward_fn,
)
from grpo.symbolic import symbolically_equal

CASES = Path(__file__).resolve().parent.parent / "cases"
TIME_LIMIT_S = 0.005


def rows(*names: str) -> list:
    """Every row of the named tables, with file, line and reason as the test's id."""
    found = []
    for name in names:
        lines = (CASES / name).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            row = json.loads(line)
            found.append(pytest.param(row, id=f"{name}:{number} {row['why']}"))
    return found


# ---- the tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("grading.jsonl", "grading_more.jsonl"))
def test_equality_table(row):
    assert answers_equal(row["answer"], row["gold"]) is row["equal"]
    strict_equal = row.get("strict_equal", row["equal"])
    assert answers_equal(row["answer"], row["gold"], strict=True) is strict_equal


@pytest.mark.parametrize("row", rows("formats.jsonl", "formats_more.jsonl"))
def test_format_table(row):
    reward_fn = question_only_reward_fn if row.get("prompt") == "question_only" else r1_zero_reward_fn
    verdict = reward_fn(row["response"], row["gold"])
    assert verdict == {
        "reward": row["reward"],
        "format_reward": row["format"],
        "answer_reward": row["reward"],
    }
    assert all(type(value) is float for value in verdict.values())
    strict_format = row.get("strict_format", row["format"])
    strict_reward = row.get("strict_reward", row["reward"]) * strict_format
    strict = reward_fn(row["response"], row["gold"], strict=True)
    assert strict == {
        "reward": strict_reward,
        "format_reward": strict_format,
        "answer_reward": strict_reward,
    }


def test_extraction_returns_stripped_text():
    assert extract_r1_zero_answer(" a </think>\n<answer>\n 18 eggs </answer> b") == "18 eggs"
    assert extract_r1_zero_answer(" a </think>\n<answer> 18 </answer>", strict=True) is None
    assert extract_boxed_answer(r"\boxed{1} and \boxed{ \text{a {b} c} }.") == r"\text{a {b} c}"
    assert extract_boxed_answer(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"


def test_parse_number_is_exact():
    assert parse_number("0.1") == Fraction(1, 10)
    assert parse_number("5 1/3") == Fraction(16, 3)
    assert parse_number("1e-3") == Fraction(1, 1000)
    assert parse_number("123456789012345678901/10") == Fraction(123456789012345678901, 10)
    assert parse_number("18 eggs", strict=True) is None


def test_long_answers_are_wrong_in_both_formats():
    for padding in ("0" * 511, " " * 600):
        assert extract_boxed_answer(f"\\boxed{{{padding}18}}") is not None
        assert question_only_reward_fn(f"\\boxed{{{padding}18}}", "18")["reward"] == 0
        assert r1_zero_reward_fn(f"</think> <answer>{padding}18</answer>", "18")["reward"] == 0


@pytest.mark.parametrize("module", [grpo.data, grpo.grading, grpo.prompts])
def test_docstring_examples_run(module):
    result = doctest.testmod(module)
    assert (result.failed, result.attempted > 0) == (0, True)


# ---- the real ground truths ----------------------------------------------------------------------------------


def test_every_gsm8k_ground_truth_is_graded(gsm8k_dir):
    problems = load_gsm8k("train", gsm8k_dir) + load_gsm8k("test", gsm8k_dir)
    for gold in sorted({problem.ground_truth for problem in problems}):
        value = int(gold)
        right = [f" so </think> <answer> {form} </answer>" for form in (gold, f"{value:,}", f"${gold}.00.")]
        for response in right:
            assert r1_zero_reward_fn(response, gold)["reward"] == 1, response
            assert r1_zero_reward_fn(response, gold, strict=True)["reward"] == 1, response
        for wrong in (str(value + 1), str(-value) if value else "1", f"{gold} or {value + 1}", gold + "1"):
            assert r1_zero_reward_fn(f" so </think> <answer> {wrong} </answer>", gold)["reward"] == 0, wrong
        assert question_only_reward_fn(f"so \\boxed{{{value:,} in all}}", gold)["reward"] == 1


# ---- properties ----------------------------------------------------------------------------------------------

FRAGMENTS = [
    *("0", "1", "9", "18", "000", *".,-+/*=${}()[]%ekx:`_~<>!?#&|@'", '"', "**", "__"),
    *(" ", "\n", "\t", "\u00a0", "\u2009", "\u202f", "\u200b", "\x00", "\ud800", "\u0336", "\u2212", "\u2013"),
    *("\u00bd", "\u00b2", "\uff11", "\u0663", "\u00d7", "\u03c0", "\u5341", "\u4e07", "\u20ac", "\U0001f389"),
    *("\\", "\\\\", "\\boxed{", "\\text{", "\\frac", "\\frac{1}{2}", "{,}", "\\,", "\\(", "\\]", "^\\circ", "^2"),
    *("1e999999", "1e3", "5 1/2", "1,000", "1 000", "eggs", " and ", " or ", "half ", "USD", "Rs.", "cm", "9**9"),
    *("</think>", "<think>", "<answer>", "</answer>", "</think> <answer>", "</think><answer>", "\\boxed{18}"),
]
any_text = st.text(st.characters(exclude_categories=()), max_size=60)
hostile_text = st.lists(st.one_of(st.sampled_from(FRAGMENTS), any_text), max_size=25).map("".join)
long_text = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=5).map(
    lambda parts: ("".join(parts) * 4000)[:4000]
)
wrapped = st.one_of(
    hostile_text,
    hostile_text.map(lambda text: f" a </think> <answer>{text}</answer>"),
    hostile_text.map(lambda text: f"\\boxed{{{text}}}"),
)
many = settings(max_examples=300, deadline=None)


def verdicts(text: str, gold: str) -> list:
    """Everything the module says about a text."""
    return [
        *(reward_fn(text, gold, strict=strict) for reward_fn in REWARD_FNS for strict in (False, True)),
        *(answers_equal(text, gold, strict=strict) for strict in (False, True)),
        *(parse_number(text, strict=strict) for strict in (False, True)),
    ]


REWARD_FNS = (r1_zero_reward_fn, question_only_reward_fn)


@many
@given(text=wrapped, gold=st.one_of(st.just("18"), hostile_text))
def test_any_text_has_a_verdict(text, gold):
    for verdict in verdicts(text, gold):
        if isinstance(verdict, dict):
            assert set(verdict.values()) <= {0.0, 1.0}
            assert verdict["reward"] == verdict["answer_reward"] <= verdict["format_reward"]


def best_time(call) -> float:
    """The fastest of up to 20 calls: on a shared machine one slow call says nothing, twenty do."""
    best = math.inf
    for _ in range(20):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
        if best < TIME_LIMIT_S / 2:
            break
    return best


def assert_fast(text: str) -> None:
    """Time everything on a text, as it stands, between answer tags and in a box."""
    for shown in (text, f" a </think> <answer>{text[:3950]}</answer>", f"\\boxed{{{text[:3990]}}}", text[:512]):
        for reward_fn in REWARD_FNS:
            for strict in (False, True):
                assert best_time(partial(reward_fn, shown, "18", strict=strict)) < TIME_LIMIT_S
        assert best_time(partial(answers_equal, shown, shown)) < TIME_LIMIT_S


@settings(max_examples=60, deadline=None)
@given(long_text)
def test_any_long_text_is_graded_in_time(text):
    assert_fast(text)


@pytest.mark.parametrize("fragment", [fragment for fragment in FRAGMENTS if fragment])
def test_repeated_fragments_are_graded_in_time(fragment):
    for size in (512, 4000):
        assert_fast((fragment * 4000)[:size])
        assert_fast("18" + (fragment * 4000)[: size - 2])


@pytest.mark.parametrize(
    "answer", ["1e999999999", "1e-999999999", "9" * 512, "1" * 255 + "/" + "7" * 256, "1." + "3" * 400 + "e-1000"]
)
def test_big_numbers_are_graded_in_time(answer):
    assert_fast(answer)


@many
@given(response=wrapped, extra=hostile_text)
@example(response=" a </think> <answer> 18 </answer>", extra=" </think> <answer> 19 </answer>")
def test_r1_zero_ignores_what_follows_the_first_closing_tag(response, extra):
    assume("</answer>" in response)
    for strict in (False, True):
        assert r1_zero_reward_fn(response, "18", strict=strict) == r1_zero_reward_fn(
            response + extra, "18", strict=strict
        )


@many
@given(text=wrapped, gold=st.one_of(st.just("18"), hostile_text))
def test_what_the_strict_rule_pays_the_wide_rule_pays(text, gold):
    for reward_fn in REWARD_FNS:
        narrow, wide = reward_fn(text, gold, strict=True), reward_fn(text, gold)
        assert all(narrow[key] <= wide[key] for key in wide)
    assert answers_equal(text, gold) or not answers_equal(text, gold, strict=True)
    strict_value = parse_number(text, strict=True)
    assert strict_value is None or strict_value == parse_number(text)


integers = st.integers(-(10**12), 10**12)


@many
@given(value=integers, other=integers, form=st.sampled_from(["{}", "{:,}", "{}.", "{}.00", "{}%", "\\boxed{{{:,}}}"]))
def test_an_integer_equals_itself_alone(value, other, form):
    answer = form.format(value)
    assert parse_number(answer, strict=True) == parse_number(answer) == value
    assert answers_equal(answer, str(other), strict=True) == answers_equal(answer, str(other)) == (value == other)


@many
@given(top=integers, bottom=st.integers(1, 10**6), digits=st.integers(0, 9))
def test_fractions_and_decimals_are_exact(top, bottom, digits):
    assert parse_number(f"{top}/{bottom} of it") == Fraction(top, bottom)
    scaled = f"{'-' if top < 0 else ''}{abs(top) // 10**digits}.{abs(top) % 10**digits:0{digits or 1}d}"
    assert parse_number(scaled) == parse_number(scaled, strict=True) == Fraction(scaled)


@many
@given(
    first=st.integers(0, 999999),
    second=st.integers(0, 999999),
    joint=st.sampled_from(
        [" or ", ", ", " and ", "; ", "\n", " - ", "-", "+", ":", " to ", "|", " (", "*", "..", " $"]
    ),
)
def test_two_numbers_are_never_right(first, second, joint):
    assume(first != second)
    for strict in (False, True):
        assert parse_number(f"{first}{joint}{second}", strict=strict) is None


def test_grading_works_in_any_thread():
    responses = [f" a </think> <answer> {n} </answer>" for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        rewards = list(pool.map(lambda response: r1_zero_reward_fn(response, "18")["reward"], responses))
    assert [n for n, reward in enumerate(rewards) if reward] == [18]


# ---- symbolic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("x^2+1", "1+x^2", True),
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        (r"\sqrt{324}", "18", True),
        ("9+9", "18", True),
        ("x^2", "x^3", False),
        ("17 or 18", "18", False),  # a set of two
        ("17, 18", "18", False),
        ("17 1", "18", False),  # math-verify takes it for 17 + 1
        (r"17\,1", "18", False),
        ("seY", "Yes", False),  # math-verify multiplies the letters
        ("0.333333", "1/3", False),  # two numbers are compared exactly, and never sent
        ("\ud800", "x", False),
        ("", "x", False),
        ("x" * 513, "x" * 513, False),
    ],
)
def test_symbolic_answers(answer, gold, equal):
    assert answers_equal(answer, gold, symbolic=True) is equal


def test_symbolic_is_off_unless_asked_for():
    assert not answers_equal("9+9", "18")
    response = " a </think> <answer> 9+9 </answer>"
    assert r1_zero_reward_fn(response, "18")["reward"] == 0
    assert r1_zero_reward_fn(response, "18", symbolic=True)["reward"] == 1
    assert question_only_reward_fn(r"\boxed{9+9}", "18", symbolic=True)["reward"] == 1


def test_symbolic_keeps_the_strict_rule_for_numbers():
    assert answers_equal("18 dollars", "18", symbolic=True)
    assert not answers_equal("18 dollars", "18", strict=True, symbolic=True)


def test_symbolic_question_that_takes_too_long_is_wrong_and_the_next_is_answered():
    assert symbolically_equal("x+x", "2x")  # the worker is up
    begin = time.monotonic()
    assert not symbolically_equal("9^{9^{9^9}}", "1", time_limit_s=0.5)
    assert 0.5 <= time.monotonic() - begin < 5  # stopped by the limit, not refused before it
    assert symbolically_equal("x+x", "2x")


def test_symbolic_works_from_many_threads():
    pairs = [("x+x", "2x"), ("x+x", "3x")] * 8
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda pair: symbolically_equal(*pair), pairs)) == [True, False] * 8


@pytest.mark.skipif(os.name != "posix", reason="looks for a process by its id")
def test_symbolic_worker_survives_a_kill_and_a_fork_and_ends_with_its_parent():
    script = """
import os, signal, sys
from grpo import symbolic
ask = lambda: symbolic.symbolically_equal("x+x", "2x")
assert ask()
os.kill(symbolic._worker._process.pid, signal.SIGKILL)
assert ask()
symbolic._worker._lock.acquire()  # as another thread of the parent may hold it
child = os.fork()
if child == 0:
    ok = ask()
    symbolic._worker.close()
    os._exit(0 if ok else 1)
symbolic._worker._lock.release()
assert os.waitpid(child, 0)[1] == 0
assert ask()
print(symbolic._worker._process.pid)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_symbolic_says_when_its_worker_cannot_start(monkeypatch):
    from grpo import symbolic

    monkeypatch.setattr(symbolic.sys, "executable", sys.executable)
    monkeypatch.setattr(symbolic, "_START_LIMIT_S", 0.0)
    worker = symbolic._Worker()
    with pytest.raises(RuntimeError, match="import math_verify"):
        worker.ask("x", "x+0", 1.0)
    assert worker._process is None


@pytest.mark.parametrize("strict", [False, True])
def test_an_exponent_is_read_to_its_end(strict):
    assert parse_number("18e0000001", strict) == 180
    assert parse_number("18e-0000001", strict) == Fraction(18, 10)
    assert parse_number("1e" + "0" * 400 + "3", strict) == 1000
    assert parse_number("18e0001001", strict) is None
