"""Counts by category and their interval, on an engine that says what it is told to."""

from __future__ import annotations

import pytest

from grpo.data import Problem
from grpo.evaluation import QUESTIONS_AT_ONCE, accuracy_by_level, evaluate, summarize
from grpo.intervals import wilson_interval
from grpo.prompts import load_prompt
from grpo.rollouts import Completion, Sampling

ANSWERS = [" 9 </think> <answer> 9 </answer>", " 9 </think> <answer> 8 </answer>", " 9", ""]


class ScriptedEngine:
    """Says ANSWERS in turn."""

    def __init__(self):
        self.calls = []

    def generate(self, prompts, sampling):
        self.calls.append((prompts, sampling))
        texts = [ANSWERS[i % 4] for i in range(len(prompts) * sampling.n)]
        return [Completion(t, [1] * len(t), [0.0] * len(t), "stop" if "</answer>" in t else "length") for t in texts]


@pytest.mark.parametrize(("right", "n"), [(0, 10), (5, 10), (10, 10), (37, 256), (1, 1)])
def test_wilson_interval_holds_the_proportions_that_would_not_be_rejected(right, n):
    """Its ends are the p at which the observed share lies exactly 1.96 standard errors, sqrt(p (1 - p) / n), away."""
    low, high = wilson_interval(right, n)
    assert low - 1e-12 <= right / n <= high + 1e-12
    for end in (low, high):
        if 1e-12 < end < 1 - 1e-12:
            assert abs(right / n - end) == pytest.approx(1.959964 * (end * (1 - end) / n) ** 0.5)


def test_wilson_interval_at_a_published_example():
    assert wilson_interval(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)


def test_wilson_interval_refuses():
    for right, n in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match=f"right={right} of n={n}"):
            wilson_interval(right, n)


def test_categories_order_stop_strings_and_sink():
    engine, sunk = ScriptedEngine(), []
    problems = [Problem(f"Q{i}?", "#### 9", "9", "1") for i in range(2)]
    prompt = load_prompt("r1_zero")
    records = evaluate(engine, problems, prompt, Sampling(n=2, max_tokens=5), sink=sunk.extend)
    assert [r["question"] for r in records] == ["Q0?", "Q0?", "Q1?", "Q1?"]
    assert [r["response"] for r in records] == ANSWERS
    assert sunk == records
    prompts, sampling = engine.calls[0]
    assert prompts[0] == prompt.render("Q0?")
    assert sampling.stop == ("</answer>",)
    s = summarize(records)
    assert (s.n, s.format_and_right, s.format_only, s.neither) == (4, 1, 1, 2)
    assert (s.accuracy, s.format, s.reward, s.cut_off) == (0.25, 0.5, 0.25, 0.5)
    assert s.mean_tokens == sum(map(len, ANSWERS)) / 4


def test_each_call_of_the_engine_has_its_own_seed():
    engine = ScriptedEngine()
    problems = [Problem("Q?", "#### 9", "9")] * (QUESTIONS_AT_ONCE + 1)
    assert len(evaluate(engine, problems, load_prompt("question_only"), Sampling(seed=5))) == QUESTIONS_AT_ONCE + 1
    seeds = [sampling.seed for _, sampling in engine.calls]
    assert len(set(seeds)) == len(seeds) == 2


def test_own_reward_function():
    def long(response, ground_truth):
        return {"reward": len(response), "format_reward": 0, "answer_reward": 0}

    records = evaluate(
        ScriptedEngine(), [Problem("Q?", "#### 9", "9")], load_prompt("r1_zero"), Sampling(), reward_fn=long
    )
    assert records[0]["reward"] == len(ANSWERS[0])


def test_nothing_to_summarize():
    with pytest.raises(ValueError, match="records is empty"):
        summarize([])


def test_accuracy_of_each_level():
    """Of ANSWERS the first alone is right: level 1 has it, and the last, which is wrong; level 2 has the two others."""
    problems = [Problem(f"Q{level}?", "#### 9", "9", level) for level in ("1", "2", "2", "1")]
    records = evaluate(ScriptedEngine(), problems, load_prompt("r1_zero"), Sampling())
    assert accuracy_by_level(records) == {"accuracy_level_1": 0.5, "accuracy_level_2": 0.0}
    assert accuracy_by_level(records[1:3]) == {}
    assert accuracy_by_level([record | {"level": ""} for record in records]) == {}
