"""Which problems a run trains and validates on, and in which order: functions of the settings and the step alone."""

from __future__ import annotations

import random

import torch

from grpo.advantages import check_choice
from grpo.config import DATASETS, TrainSettings
from grpo.data import Problem, load_gsm8k, load_jsonl
from grpo.words import word_problems


def load_problems(settings: TrainSettings) -> tuple[list[Problem], list[Problem]]:
    """Training and validation problems, disjoint, the same for every seed.

    Raises ValueError when a file holds fewer than asked for, or one question in both, and what the loaders raise.
    """
    n, m = settings.train_questions, settings.validation_questions
    if settings.data == "words":
        levels = settings.levels
        return word_problems(n, 0, "train", levels), word_problems(m, 0, "validation", levels)
    if settings.data == "gsm8k":
        problems = load_gsm8k("train", settings.data_dir)
    else:
        problems = load_jsonl(settings.data)
    if n + m > len(problems):
        raise ValueError(
            f"train_questions={n} and validation_questions={m} are more than the {len(problems)} questions of "
            f"data={settings.data!r}"
        )
    random.Random(0).shuffle(problems)
    training, validation = problems[:n], problems[n : n + m]
    known = {problem.question for problem in training}
    for problem in validation:
        if problem.question in known:
            raise ValueError(
                f"data={settings.data!r} holds the question {problem.question[:80]!r} twice, which puts it into training "
                "and into validation; leave each question once"
            )
    return training, validation


def load_test_problems(data: str, n: int | None = None, data_dir: str | None = None) -> list[Problem]:
    """Questions to evaluate on: of data="words" n (default 256) held-out ones, of "gsm8k" or a .jsonl file the first n.

    Raises ValueError for other data, and what the loaders raise.
    """
    if data == "words":
        return word_problems(256 if n is None else n, 0, "validation")
    if data == "gsm8k":
        return load_gsm8k("test", data_dir, n)
    if not data.endswith(".jsonl"):
        check_choice("data", data, (*DATASETS, "a .jsonl file"))
    return load_jsonl(data, limit=n)


def question_numbers(step: int, per_step: int, questions: int, seed: int) -> list[int]:
    """Which questions a rollout step (from 1) uses: the next ones of an endless row of random permutations."""
    numbers = []
    for place in range((step - 1) * per_step, step * per_step):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + place // questions)
        numbers.append(torch.randperm(questions, generator=generator)[place % questions].item())
    return [int(number) for number in numbers]
