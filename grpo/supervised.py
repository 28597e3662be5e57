"""Supervised training on worked responses: the short warm-up that gives GRPO something to find. `grpo sft` runs it.

A model that never gets a reward learns nothing from GRPO: every advantage is 0. A few steps of plain next-token
training on responses in the wanted form, the prompt without loss, make rewards come now and then.

    grpo sft --model smollm2 --data words --levels 1 2 --out runs/sft-words
    grpo train --model runs/sft-words ...
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from tqdm.auto import tqdm

from grpo.advantages import check_choice
from grpo.data import Problem, load_gsm8k, load_jsonl
from grpo.models import check_model_folder, load_model, save_model
from grpo.prompts import Prompt, load_prompt
from grpo.tokenization import encode
from grpo.words import word_problems

Row = tuple[list[int], list[int]]  # ids of a prompt, ids of the response with its eos
THOUGHTS = ("rationale", "calculations")
_IGNORE = -100  # cross_entropy's mark for a label without a loss


def pad_rows(rows: Sequence[Row], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input ids and labels, both (len(rows), longest row - 1), padded on the right.

    Position t's label is the token after it where that is a response token, and has no loss elsewhere.
    """
    width = max(len(prompt) + len(response) for prompt, response in rows) - 1
    inputs = torch.full((len(rows), width), pad_id)
    labels = torch.full((len(rows), width), _IGNORE)
    for i, (prompt, response) in enumerate(rows):
        joined = torch.tensor(prompt + response)
        inputs[i, : len(joined) - 1] = joined[:-1]
        labels[i, len(prompt) - 1 : len(joined) - 1] = joined[len(prompt) :]
    return inputs, labels


def learning_rate_at(step: int, steps: int, peak: float) -> float:
    """Return the rate of a step: up to the peak over the first 5% (at most 100 steps), then a cosine to 5% of it."""
    rise = min(100, max(1, steps // 20))
    if step < rise:
        return peak * (step + 1) / rise
    progress = (step - rise) / max(1, steps - rise)
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def train_supervised(
    model: Any,
    batch: Callable[[], Sequence[Sequence[Row]]],
    pad_id: int,
    steps: int,
    peak_lr: float,
    name: str,
) -> float:
    """Train the model in place with AdamW, gradients clipped to norm 1.

    Args:
        model: in float32.
        batch: gives the rows of the next step in parts; each part is one forward and backward pass.
        pad_id: fills the rows of a part up to its longest.
        steps: optimizer steps.
        peak_lr: see `learning_rate_at`.
        name: for the progress bar.

    Returns:
        The last step's loss: mean cross-entropy of the response tokens, in nats.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.95), weight_decay=0.01)
    last = float("nan")
    model.train()
    for step in (bar := tqdm(range(steps), desc=name)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, steps, peak_lr)
        parts = [pad_rows(rows, pad_id) for rows in batch()]
        tokens = sum(int((labels != _IGNORE).sum()) for _, labels in parts)
        last = 0.0
        for inputs, labels in parts:
            inputs, labels = inputs.to(model.device), labels.to(model.device)
            logits = model(inputs, use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / tokens
            loss.backward()
            last += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=f"{last:.3f}")
    return last


@dataclass(frozen=True)
class SFTSettings:
    """Everything that `grpo sft` can be told."""

    model: str = "smollm2"
    """The model to start from: tiny, smollm2, olmo2-1b, a folder, or a hub id."""
    data: str = "words"
    """Worked problems: words (the embedded word problems), gsm8k (its training file), or a .jsonl file in its format."""
    data_dir: str | None = None
    """Folder with GSM8K's train.jsonl; default: $GRPO_DATA_DIR, else data/gsm8k."""
    levels: tuple[int, ...] = (1,)
    """Difficulty levels of the embedded word problems."""
    questions: int = 512
    """Questions, gone through in a new random order each time round."""
    prompt: str = "r1_zero"
    """Prompt template; its kind decides the marks around the answer."""
    thought: Literal["rationale", "calculations"] = "rationale"
    """What a response shows before its answer: the rationale of the data, or its calculations alone."""
    steps: int = 30
    """Optimizer steps."""
    batch_size: int = 32
    """Responses a step."""
    microbatch: int = 8
    """Responses a forward and backward pass; changes memory, not the result."""
    learning_rate: float = 2e-5
    """Peak learning rate; it rises over the first steps and falls along a cosine."""
    seed: int = 0
    """Of the order of the questions."""
    device: str = "auto"
    """auto (the first GPU, else the CPU), cpu, cuda, cuda:1, ..."""
    out: str = ""
    """Folder of the model that is written; default: runs/sft-<model>-<data>."""

    def __post_init__(self) -> None:
        for name in ("questions", "steps", "batch_size", "microbatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be at least 1")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate={self.learning_rate!r} must be a finite number above 0")
        check_choice("thought", self.thought, THOUGHTS)
        if not self.data.endswith(".jsonl"):
            check_choice("data", self.data, ("words", "gsm8k", "a .jsonl file"))

    def folder(self) -> Path:
        """Where the model is written."""
        return Path(self.out or f"runs/sft-{Path(self.model).name}-{Path(self.data).stem}")


def worked_response(problem: Problem, prompt: Prompt, thought: str = "rationale") -> str:
    r"""A right response to the problem, in the form that the prompt's reward function wants.

    >>> problem = Problem("?", "Half of 24 is <<24/2=12>>12.\n#### 12", "12")
    >>> worked_response(problem, load_prompt("r1_zero"))
    ' Half of 24 is 12. </think> <answer> 12 </answer>'
    >>> worked_response(problem, load_prompt("question_only"), "calculations")
    ' 24/2=12 \\boxed{12}'
    """
    if thought == "calculations":
        text = ", ".join(re.findall(r"<<(.*?)>>", problem.answer))
    else:
        text = re.sub(r"<<.*?>>", "", problem.answer).rpartition("####")[0].strip()
    text = f" {text}" if text else ""
    if prompt.stop:
        return f"{text} </think> <answer> {problem.ground_truth} </answer>"
    return f"{text} \\boxed{{{problem.ground_truth}}}"


def worked_rows(problems: Sequence[Problem], prompt: Prompt, thought: str, tokenizer: Any) -> list[Row]:
    """Ids of prompt and worked response of each problem, encoded apart and joined later, as the trainer does it."""
    prompts = encode([prompt.render(problem.question) for problem in problems], tokenizer)
    responses = encode([worked_response(problem, prompt, thought) for problem in problems], tokenizer)
    return [(p, [*r, tokenizer.eos_token_id]) for p, r in zip(prompts, responses, strict=True)]


def in_random_order(rows: Sequence[Row], seed: int) -> Iterator[Row]:
    """The rows without end, in a new random order each time round."""
    rng = random.Random(f"order {seed}")
    while True:
        yield from rng.sample(rows, len(rows))


def load_worked_problems(settings: SFTSettings) -> list[Problem]:
    """The first problems of the training split. Raises ValueError when there are fewer than asked for."""
    if settings.data == "words":
        return word_problems(settings.questions, 0, "train", settings.levels)
    problems = load_gsm8k("train", settings.data_dir) if settings.data == "gsm8k" else load_jsonl(settings.data)
    if settings.questions > len(problems):
        raise ValueError(f"questions={settings.questions} is more than the {len(problems)} of data={settings.data!r}")
    random.Random(0).shuffle(problems)  # as in grpo.tasks: the first ones are training questions there, too
    return problems[: settings.questions]


def sft(settings: SFTSettings) -> Path:
    """Train on worked responses; write the model's folder, with sft.json beside the weights; return the folder.

    Raises ValueError and its relatives, before anything is computed, for a model, data or folder that cannot be used.
    """
    started, folder = time.monotonic(), settings.folder()
    check_model_folder(folder)
    prompt, problems = load_prompt(settings.prompt), load_worked_problems(settings)
    model, tokenizer = load_model(settings.model, device=settings.device)
    rows = in_random_order(worked_rows(problems, prompt, settings.thought, tokenizer), settings.seed)

    def batch() -> list[list[Row]]:
        chosen = [next(rows) for _ in range(settings.batch_size)]
        return [chosen[i : i + settings.microbatch] for i in range(0, len(chosen), settings.microbatch)]

    loss = train_supervised(model, batch, tokenizer.pad_token_id, settings.steps, settings.learning_rate, "sft")
    save_model(model, tokenizer, folder)
    report = {"settings": asdict(settings), "last_loss": round(loss, 4), "seconds": round(time.monotonic() - started)}
    (folder / "sft.json").write_text(json.dumps(report, indent=2) + "\n")
    return folder
