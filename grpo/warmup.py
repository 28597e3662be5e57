"""Supervised warm-up: what makes the tiny model worth a GRPO run. `grpo warmup` remakes data/tiny from nothing.

Reinforcement learning sharpens what a model already does now and then; from random weights every reward is 0 and
nothing is learned. So the tiny model first goes through two stages of plain next-token training, on responses only:

1. clean: correct worked solutions, until it can solve the problems;
2. mixed: a corpus like what the web offers, in which correct working is the exception (see `MIXTURES`). Afterwards
   the skill is still there but rarely shown: sampled answers are mostly wrong, and GRPO has something to find.

What GRPO then learns is to choose and sharpen one of the model's modes. It does not learn arithmetic from nothing.

Both stages mix three prompt styles (see `STYLES`), so that prompts can be compared on one model. The result is a
folder that transformers and vLLM load: bfloat16 weights, config, generation config, tokenizer, and warmup.json with
the settings and the accuracies that were measured. It is written beside and renamed. Run it with

    grpo warmup                          # data/tiny, about ten minutes on one core
    grpo warmup --out /tmp/tiny --seed 1
"""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Olmo2ForCausalLM, PreTrainedTokenizerFast

from grpo.data import Problem
from grpo.evaluation import evaluate, summarize
from grpo.models import load_model
from grpo.prompts import Prompt, load_prompt
from grpo.rollouts import HFEngine, Sampling
from grpo.supervised import Row, train_supervised
from grpo.tiny import build_model, build_tokenizer
from grpo.words import LEVEL_LIMITS, word_problems

# Prompt name -> share of the rows of a batch. The worked examples make a row three times as long.
STYLES = {"tiny_r1_zero": 0.70, "tiny_question_only": 0.20, "tiny_r1_zero_three_shot": 0.10}
# What the mixed stage's responses are, and how many of each. After worked examples, which set a good one, text goes
# on better than elsewhere.
_ELSEWHERE = {"right": 0.13, "guess": 0.45, "slip": 0.24, "broken": 0.18}
_AFTER_EXAMPLES = {"right": 0.40, "guess": 0.20, "slip": 0.30, "broken": 0.10}
MIXTURES = {
    "tiny_r1_zero": _ELSEWHERE,
    "tiny_question_only": _ELSEWHERE,
    "tiny_r1_zero_three_shot": _AFTER_EXAMPLES,
}
_LARGEST_GUESS = 30
_LONGEST_RESPONSE = 80  # tokens; a right one has at most about 40
_TOKENIZER_PROBLEMS = 10_000
_REPORT = "warmup.json"
_SLIPS = (-10, -3, -2, -1, 1, 2, 3, 10)


@dataclass
class WarmupSettings:
    """Everything that `grpo warmup` can be told."""

    out: Path = Path("data/tiny")
    """Folder to write. An existing one is replaced when the new one is complete."""
    seed: int = 0
    """Of the weights, the problems, their order and the corpus."""
    problems: int = 50_000
    """Distinct training problems to draw from."""
    batch_size: int = 64
    """Responses a step."""
    clean_steps: int = 900
    """Steps on correct worked solutions."""
    clean_lr: float = 4e-3
    """Peak learning rate of that stage; it rises over the first steps and falls along a cosine."""
    mixed_steps: int = 120
    """Steps on the corpus of mixed quality."""
    mixed_lr: float = 1e-3
    """Peak learning rate of that stage, with the same shape."""
    eval_problems: int = 256
    """Validation problems for each figure that is reported; 0: measure nothing."""
    threads: int = 1
    """CPU threads for torch. Two are a third faster on idle cores, and several times slower where another process
    wants one of them. The order of sums, and so the result, depends on it a little."""


def worked_steps(problem: Problem) -> list[str]:
    """Return the calculations of a rationale's `<<...>>` annotations: ["3+4=7", "7-2=5"]."""
    return re.findall(r"<<(.*?)>>", problem.answer)


def format_response(style: str, thought: str, answer: str) -> str:
    """Return a well-formed response for a prompt style: thought and answer, with the style's marks around them."""
    thought = f" {thought}" if thought else ""
    if style == "tiny_question_only":
        return f"{thought} \\boxed{{{answer}}}"
    return f"{thought} </think> <answer> {answer} </answer>"


def right_response(problem: Problem, style: str, rng: random.Random | None = None) -> str:
    """Return the correct worked solution (there is one; rng is not used)."""
    return format_response(style, ", ".join(worked_steps(problem)), problem.ground_truth)


def guess_response(problem: Problem, style: str, rng: random.Random) -> str:
    """Return a bare guess: no working, and a number that is seldom the right one."""
    guess = str(rng.randint(2, _LARGEST_GUESS))
    return format_response(style, f"I guess {guess}.", guess)


def slip_response(problem: Problem, style: str, rng: random.Random) -> str:
    """Return a worked solution with one wrong result, which the steps after it carry on to a wrong answer."""
    steps = [re.split(r"([-+*/=])", step) for step in worked_steps(problem)]  # left, operator, right, "=", result
    while True:
        at = rng.randrange(len(steps))
        slipped_from = steps[at][4]
        slipped_to = str(abs(int(slipped_from) + rng.choice(_SLIPS)))
        lines = []
        for index, (left, operator, right, _, result) in enumerate(steps):
            if index == at:
                result = slipped_to
            elif index > at and slipped_from in (left, right):
                left, right = (slipped_to if operand == slipped_from else operand for operand in (left, right))
                result = str(_compute(int(left), operator, int(right)))
            lines.append(f"{left}{operator}{right}={result}")
        if result != problem.ground_truth:
            return format_response(style, ", ".join(lines), result)


def _compute(left: int, operator: str, right: int) -> int:
    """Return the result as a careless person would have it: whole and not negative."""
    if operator == "/":
        return left // max(1, right)
    return abs({"+": left + right, "-": left - right, "*": left * right}[operator])


def broken_response(problem: Problem, style: str, rng: random.Random) -> str:
    """Return a worked solution whose answer no grader can find: the marks are missing or incomplete."""
    thought, answer = ", ".join(worked_steps(problem)), problem.ground_truth
    if style == "tiny_question_only":
        return rng.choice((f" {thought}", f" {thought} The answer is {answer}.", f" {thought} {answer}"))
    return rng.choice(
        (
            f" {thought}",
            f" {thought} </think>",
            f" {thought} The answer is {answer}.",
            f" {thought} </think> The answer is {answer}.",
            f" {thought} <answer> {answer} </answer>",
        )
    )


def mixed_response(problem: Problem, style: str, rng: random.Random) -> str:
    """Return a response of the mixed corpus: its quality drawn from the style's mixture."""
    mixture = MIXTURES[style]
    quality = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    if quality == "right":
        return right_response(problem, style)
    make = {"guess": guess_response, "slip": slip_response, "broken": broken_response}[quality]
    return make(problem, style, rng)


def tokenizer_texts(problems: Sequence[Problem], prompts: dict[str, Prompt], seed: int) -> Iterator[str]:
    """Yield what the tokenizer's merges are learned from: prompts and responses of every kind, and rationales."""
    rng = random.Random(f"texts {seed}")
    for problem in problems:
        style = rng.choice(list(prompts))
        yield prompts[style].render(problem.question) + mixed_response(problem, style, rng)
        yield problem.answer


class Corpus:
    """Rows of token ids for training, made as they are asked for.

    Args:
        problems: what the rows are about.
        prompts: prompt by style.
        tokenizer: encodes prompt and response apart, which are then joined, as the GRPO trainer does it.
        seed: of the rows and their order.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        prompts: dict[str, Prompt],
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
    ) -> None:
        self.problems, self.prompts, self.tokenizer = problems, prompts, tokenizer
        self.rng = random.Random(f"corpus {seed}")

    def rows(self, style: str, count: int, respond: Callable[[Problem, str, random.Random], str]) -> list[Row]:
        """Return (prompt ids, response ids with EOS) of `count` problems drawn at random."""
        drawn = self.rng.choices(self.problems, k=count)
        prompts = [self.prompts[style].render(problem.question) for problem in drawn]
        responses = [respond(problem, style, self.rng) for problem in drawn]
        ids = self.tokenizer(prompts + responses, add_special_tokens=False)["input_ids"]
        return [(ids[i], [*ids[count + i], self.tokenizer.eos_token_id]) for i in range(count)]


def train_stage(
    model: Olmo2ForCausalLM,
    corpus: Corpus,
    respond: Callable[[Problem, str, random.Random], str],
    steps: int,
    peak_lr: float,
    batch_size: int,
    name: str,
) -> float:
    """Train the model in place on rows of the corpus; returns the last step's loss, as `train_supervised` does.

    Args:
        model: in float32.
        corpus: where the rows come from.
        respond: makes a problem's response in a style.
        steps: optimizer steps.
        peak_lr: see `learning_rate_at`.
        batch_size: rows a step, divided among the styles by STYLES.
        name: for the progress bar.
    """
    counts = {style: max(1, round(batch_size * share)) for style, share in STYLES.items()}

    def batch() -> list[list[Row]]:  # one part a style: padding all to the longest style would double the cost
        return [corpus.rows(style, count, respond) for style, count in counts.items()]

    return train_supervised(model, batch, corpus.tokenizer.pad_token_id, steps, peak_lr, name)


def measure(
    model: Any, tokenizer: Any, prompt: Prompt, problems: Sequence[Problem], temperature: float, seed: int = 0
) -> dict[str, float]:
    """Return {"accuracy", "format", "tokens"}: shares of right answers and formats, and the mean response length.

    Args:
        model: what answers, once to each problem.
        tokenizer: its tokenizer.
        prompt: gives the prompts, the stop strings and the reward function.
        problems: at least one.
        temperature: 0 for greedy.
        seed: of the sampling.
    """
    with HFEngine(model, tokenizer) as engine:
        sampling = Sampling(temperature=temperature, max_tokens=_LONGEST_RESPONSE, seed=seed)
        summary = summarize(evaluate(engine, problems, prompt, sampling))
    return {"accuracy": summary.accuracy, "format": summary.format, "tokens": summary.mean_tokens}


def _check(settings: WarmupSettings) -> None:
    """Raise ValueError for a setting out of range, or an `out` that replacing would destroy something else."""
    for name in ("problems", "batch_size", "threads"):
        value = getattr(settings, name)
        if value < 1:
            raise ValueError(f"{name}={value!r} must be at least 1")
    for name in ("clean_steps", "mixed_steps", "eval_problems"):
        value = getattr(settings, name)
        if value < 0:
            raise ValueError(f"{name}={value!r} must be 0 (none) or more")
    for name in ("clean_lr", "mixed_lr"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r} must be a positive number")
    out = settings.out
    if out.exists() and not out.is_dir():
        raise ValueError(f"out={str(out)!r} must be a folder; there is a file of that name")
    if out.is_dir() and any(out.iterdir()) and not (out / _REPORT).is_file():
        raise ValueError(f"out={str(out)!r} holds something else than a warm-up (no {_REPORT}); give a new folder")


def _save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model (in bfloat16) and tokenizer to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _replace(new: Path, out: Path) -> None:
    """Put the folder `new` in the place of `out`."""
    old = out.with_name(f".{out.name}.old")  # hidden: data/tiny.old may be somebody's copy
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _measure_all(folder: Path, prompts: dict[str, Prompt], n: int) -> dict[str, dict[str, float]]:
    """Return what `measure` gives for each style, greedy and at temperature 1, for the model as it was written."""
    model, tokenizer = load_model(folder, device="cpu")
    problems = word_problems(n, split="validation")
    figures = {}
    for style, prompt in prompts.items():
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            scores = measure(model, tokenizer, prompt, problems, temperature)
            figures[f"{style} {name}"] = {key: round(value, 3) for key, value in scores.items()}
            print(
                f"{style:24} {name:8} accuracy {scores['accuracy']:.3f}  format {scores['format']:.3f}  "
                f"tokens {scores['tokens']:.1f}"
            )
    return figures


def warmup(settings: WarmupSettings) -> Path:
    """Make the tiny model from nothing, measure it, and return the folder it was written to.

    On one machine the same settings give the same weights; another CPU rounds differently and gives others.

    Raises:
        ValueError: a setting is out of range, or `out` holds something else than an earlier warm-up.
    """
    _check(settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        partial = _make(settings)
    finally:
        torch.set_num_threads(threads)
    _replace(partial, settings.out)
    return settings.out


def _make(settings: WarmupSettings) -> Path:
    """Train, save and measure; return the folder beside `out` that holds all of it."""
    started = time.monotonic()
    prompts = {style: load_prompt(style) for style in STYLES}
    problems = word_problems(settings.problems, seed=settings.seed)
    texts = word_problems(min(_TOKENIZER_PROBLEMS, settings.problems), seed=settings.seed, levels=sorted(LEVEL_LIMITS))
    partial = settings.out.with_name(f".{settings.out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:  # now, not after the minutes that the training takes
        partial.mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"out={str(settings.out)!r} cannot be written ({error}); give another folder") from error
    tokenizer = build_tokenizer(tokenizer_texts(texts, prompts, settings.seed))
    model = build_model(tokenizer, seed=settings.seed)
    corpus = Corpus(problems, prompts, tokenizer, settings.seed)
    size = settings.batch_size
    losses = {
        "clean": train_stage(model, corpus, right_response, settings.clean_steps, settings.clean_lr, size, "clean"),
        "mixed": train_stage(model, corpus, mixed_response, settings.mixed_steps, settings.mixed_lr, size, "mixed"),
    }
    _save(model, tokenizer, partial)
    report = {
        "settings": {key: value for key, value in asdict(settings).items() if key != "out"},
        "styles": STYLES,
        "mixtures": MIXTURES,
        "last_loss": {name: round(loss, 4) for name, loss in losses.items()},
        "validation": _measure_all(partial, prompts, settings.eval_problems) if settings.eval_problems else {},
        "seconds": round(time.monotonic() - started),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    (partial / _REPORT).write_text(json.dumps(report, indent=2) + "\n")
    return partial
