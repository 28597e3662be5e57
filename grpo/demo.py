"""The demo: the embedded OLMo 2 learns to show its work, on a CPU, in about two minutes (`make demo`, `grpo demo`).

It has seen worked solutions, then a corpus in which most answers are guesses or slips: it can work problems out,
and seldom does. GRPO pays for right answers only. What it learns is to choose the mode that earns; it learns no arithmetic.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

from grpo.config import TrainSettings, preset
from grpo.data import Problem
from grpo.models import load_model
from grpo.prompts import load_prompt
from grpo.rollouts import HFEngine
from grpo.tasks import load_problems
from grpo.trainer import train


@dataclass(frozen=True)
class DemoSettings:
    """What `grpo demo` can be told."""

    seed: int = 1
    """Of the order of the questions and of every sample."""
    steps: int = preset("tiny").steps
    """Rollout steps."""
    run_dir: str = ""
    """Where the run is written; default: runs/demo-seed<seed>-<time>."""
    threads: int | None = preset("tiny").threads
    """CPU threads for torch; more than one gain nothing with a model this small, and lose much on a busy machine."""


def one_of_each_level(problems: list[Problem]) -> list[Problem]:
    """The first problem of each level, in order of level."""
    return [next(p for p in problems if p.level == level) for level in sorted({p.level for p in problems})]


def answer(model: Any, tokenizer: Any, settings: TrainSettings, problems: list[Problem]) -> list[str]:
    """One sampled response to each problem."""
    prompt = load_prompt(settings.prompt)
    sampling = settings.sampling(settings.seed, prompt.stop, n=1)
    completions = HFEngine(model, tokenizer).generate([prompt.render(p.question) for p in problems], sampling)
    return [completion.text.strip() for completion in completions]


def table(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Accuracy with its interval, format and length, before and after."""
    rows = [f"{'':24}{'before':>20}{'after':>20}"]

    def interval(row: dict[str, Any]) -> str:
        return f"{row['accuracy']:.3f} [{row['accuracy_low']:.2f}, {row['accuracy_high']:.2f}]"

    rows.append(f"{'accuracy [95% interval]':24}{interval(before):>20}{interval(after):>20}")
    rows.append(f"{'format right':24}{before['format']:>20.3f}{after['format']:>20.3f}")
    rows.append(f"{'mean length, tokens':24}{before['mean_tokens']:>20.1f}{after['mean_tokens']:>20.1f}")
    return "\n".join(rows)


def demo(demo_settings: DemoSettings) -> dict[str, Any]:
    """Train the preset `tiny`; print a table, three questions before and after, and, last, a line of JSON; return that."""
    run_dir = demo_settings.run_dir or f"runs/demo-seed{demo_settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    settings = replace(
        preset("tiny"),
        seed=demo_settings.seed,
        steps=demo_settings.steps,
        run_dir=run_dir,
        threads=demo_settings.threads,
    )
    questions = one_of_each_level(load_problems(settings)[1])
    texts_before = answer(*load_model(settings.model), settings, questions)
    result = train(settings)
    texts_after = answer(result.model, result.tokenizer, settings, questions)
    before, after = result.validation[0], result.validation[-1]

    print(f"\n{after['n']} held-out word problems, one answer each at temperature {settings.temperature}\n")
    print(table(before, after))
    if result.step < settings.steps:
        print(
            f"\nstopped after step {result.step} of {settings.steps}; the last validation was at step {after['step']}"
        )
    for problem, text_before, text_after in zip(questions, texts_before, texts_after, strict=True):
        print(f"\nlevel {problem.level}: {problem.question} (right answer: {problem.ground_truth})")
        print(f"  before: <think> {text_before}\n  after:  <think> {text_after}")
    print(f"\ncurves: {result.run.path / 'figures' / 'metrics.png'}")
    summary = {
        "accuracy_before": before["accuracy"],
        "accuracy_after": after["accuracy"],
        "format_after": after["format"],
        "steps": result.step,
        "seconds": round(result.train_seconds, 1),
        "run_dir": str(result.run.path),
    }
    print(json.dumps(summary))
    return summary
