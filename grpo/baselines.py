"""Prompting baselines: what a model does with each prompt before any training. `grpo baselines` runs and reports them.

Each prompt gets one response to each question. The folder that is written holds

    settings.json        what was asked for
    <prompt>.jsonl       a line a question: its number in the task's file, response, length, both verdicts
    summary.json         counts of each prompt, by the normal rule and by the strict one
    categories.png       the counts as a figure

A run that was stopped goes on where it was, with the same samples, when the command is given again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from grpo.advantages import check_choice
from grpo.config import ENGINES
from grpo.data import Problem
from grpo.evaluation import QUESTIONS_AT_ONCE, Summary, check_prompts_fit, evaluate, summarize
from grpo.models import load_model, resolve_device
from grpo.plots import COLOURS
from grpo.prompts import Prompt, load_prompt
from grpo.rollouts import EngineOptions, Sampling, check_engine, open_engine
from grpo.runs import read_jsonl, to_line, write_atomically
from grpo.tasks import load_test_problems

PROMPTS = ("question_only", "r1_zero", "r1_zero_three_shot_gsm8k")
RULES = ("normal", "strict")
CATEGORIES = {
    "format_and_right": "format right, answer right",
    "format_only": "format right, answer wrong",
    "neither": "format wrong",
}
_VERDICT = ("reward", "format_reward", "answer_reward")
# What may change between a run and its continuation without changing a response.
_MAY_DIFFER = ("out", "data_dir", "examples")


@dataclass(frozen=True)
class BaselineSettings:
    """Everything that `grpo baselines` can be told."""

    model: str = "olmo2-1b"
    """A preset's name (tiny, smollm2, olmo2-1b), a folder, or a hub id."""
    prompts: tuple[str, ...] = PROMPTS
    """Prompt templates, by name or as .prompt files."""
    data: str = "gsm8k"
    """gsm8k (its test file), words (the embedded word problems, validation), or a .jsonl file in GSM8K's format."""
    data_dir: str | None = None
    """Folder with GSM8K's test.jsonl; default: $GRPO_DATA_DIR, else data/gsm8k."""
    n: int | None = None
    """The first n questions; default: 256 word problems, or all of a file."""
    engine: str = "hf"
    """Rollout engine: hf, or vllm (an extra to install)."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Nucleus sampling."""
    max_new_tokens: int = 512
    """Longest response, in tokens."""
    seed: int = 0
    """Of the samples."""
    max_batch_tokens: int = 65_536
    """Bound on rows x (prompt + max_new_tokens) that engine hf generates at once."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    dtype: str = "float32"
    """float32 or bfloat16."""
    examples: int = 2
    """Responses of each category to print."""
    out: str = ""
    """Folder to write; default: runs/baselines-<model>-<data>."""

    def __post_init__(self) -> None:
        if not self.prompts or len(set(self.prompts)) < len(self.prompts):
            raise ValueError(f"prompts={self.prompts!r} must name at least one prompt, and each once")
        if self.n is not None and self.n < 1:
            raise ValueError(f"n={self.n!r} must be at least 1")
        if self.examples < 0:
            raise ValueError(f"examples={self.examples!r} must be at least 0")
        if self.dtype not in {"float32", "bfloat16"}:
            raise ValueError(f"dtype={self.dtype!r} must be float32 or bfloat16")
        self.sampling()

    def sampling(self) -> Sampling:
        """How responses are sampled; the stop strings are each prompt's own."""
        return Sampling(1, self.temperature, self.top_p, self.max_new_tokens, (), self.seed)

    def folder(self) -> Path:
        """Where the responses are written."""
        return Path(self.out or f"runs/baselines-{Path(self.model).name}-{Path(self.data).stem}")


def load_baselines(folder: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Recorded responses, by the prompt's name, in the order in which the prompts were asked.

    Record: number (of the question in the task's file, from 0), ground_truth, response, tokens, finish_reason, and the
    verdicts reward, format_reward, answer_reward, by the normal rule and, as strict_reward and so on, by the strict one.
    Raises FileNotFoundError when the folder holds none.
    """
    folder = Path(folder)
    if not (folder / "settings.json").is_file():
        raise FileNotFoundError(f"no baselines in {str(folder)!r}: `grpo baselines --out` writes such a folder")
    names = [Path(name).stem for name in json.loads((folder / "settings.json").read_text())["prompts"]]
    return {name: read_jsonl(folder / f"{name}.jsonl") for name in names if (folder / f"{name}.jsonl").is_file()}


def by_rule(records: Sequence[Mapping[str, Any]], rule: str) -> list[dict[str, Any]]:
    """The records with the verdicts of one rule, "normal" or "strict", as reward, format_reward and answer_reward."""
    before = {"normal": "", "strict": "strict_"}[rule]
    return [{**record, **{name: record[before + name] for name in _VERDICT}} for record in records]


def category(record: Mapping[str, Any]) -> str:
    """The assignment's category of a response: a key of CATEGORIES."""
    if record["format_reward"] != 1:
        return "neither"
    return "format_and_right" if record["answer_reward"] == 1 else "format_only"


def baseline_table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Summary]]:
    """Counts of each prompt by each rule: table[prompt][rule]."""
    return {
        name: {rule: summarize(by_rule(records, rule)) for rule in RULES} for name, records in runs.items() if records
    }


def format_table(table: Mapping[str, Mapping[str, Summary]]) -> str:
    """The counts as text, a row for each prompt and rule."""
    head = (
        f"{'prompt':26}{'rule':8}{'right':>7}{'wrong':>7}{'no format':>11}   accuracy [95% interval]   tokens  cut off"
    )
    lines = [head]
    for name, rules in table.items():
        for rule, s in rules.items():
            accuracy = f"{s.accuracy:.4f} [{s.accuracy_low:.4f}, {s.accuracy_high:.4f}]"
            lines.append(
                f"{name:26}{rule:8}{s.format_and_right:7}{s.format_only:7}{s.neither:11}   {accuracy:25}"
                f"{s.mean_tokens:7.1f}{s.cut_off:9.3f}"
            )
    return "\n".join(lines)


def plot_categories(table: Mapping[str, Mapping[str, Summary]], title: str = "") -> Figure:
    """Share of responses in each category, a bar for each prompt and rule."""
    rows = [(f"{name}\n{rule}", s) for name, rules in table.items() for rule, s in rules.items()]
    figure = Figure(figsize=(8, 1.2 + 0.55 * len(rows)), layout="constrained")
    axes = figure.subplots()
    left = [0.0] * len(rows)
    colours = (COLOURS[0], COLOURS[1], "0.85")
    for (key, label), colour, hatch in zip(CATEGORIES.items(), colours, ("", "//", ""), strict=True):
        shares = [100 * getattr(s, key) / s.n for _, s in rows]
        axes.barh(range(len(rows)), shares, left=left, color=colour, hatch=hatch, edgecolor="white", label=label)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for row, (_, s) in enumerate(rows):
        counts = f"{s.format_and_right} / {s.format_only} / {s.neither}"
        axes.text(101, row, counts, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of responses, % (counts on the right)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9, title=title or None)
    return figure


def show_examples(name: str, records: Sequence[Mapping[str, Any]], problems: Sequence[Problem], count: int) -> str:
    """The first `count` responses of each category, with their questions, as text."""
    lines = []
    for key, label in CATEGORIES.items():
        chosen = [record for record in records if category(record) == key][:count]
        lines.append(f"{name}: {label}" + ("" if chosen else ": none"))
        for record in chosen:
            question = problems[record["number"]].question
            lines += [f"  question {record['number']}: {question}", f"  right answer: {record['ground_truth']}"]
            lines += [f"  response: {record['response'].strip()[:600]!r}", ""]
    return "\n".join(lines)


def _start(settings: BaselineSettings) -> Path:
    """Make the folder, or see that the run in it is this one. Raises ValueError when it is another one."""
    folder, file = settings.folder(), settings.folder() / "settings.json"
    now = json.loads(json.dumps(asdict(settings)))
    if file.is_file():
        before = json.loads(file.read_text())
        differing = [
            f"{k}: {before.get(k)!r} there, {now.get(k)!r} now"
            for k in sorted({*before, *now} - set(_MAY_DIFFER))
            if before.get(k) != now.get(k)
        ]
        if differing:
            raise ValueError(
                f"out={str(folder)!r} holds baselines of other settings ({'; '.join(differing)}); give another folder"
            )
        return folder
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ValueError(f"out={str(folder)!r} is not empty and holds no baselines; give a new or empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={str(folder)!r} cannot be made ({error}); give another folder") from error
    write_atomically(file, json.dumps({k: v for k, v in now.items() if k not in _MAY_DIFFER}, indent=2) + "\n")
    return folder


def _kept(file: Path) -> list[dict[str, Any]]:
    """Records of an earlier run, cut back to whole calls of the engine, so that what follows is sampled as it was."""
    records = read_jsonl(file) if file.is_file() else []
    return records[: len(records) // QUESTIONS_AT_ONCE * QUESTIONS_AT_ONCE]


def _ask(engine: Any, prompt: Prompt, problems: Sequence[Problem], sampling: Sampling, file: Path) -> tuple[int, float]:
    """Write the responses to one prompt that are still missing; returns (tokens sampled, seconds)."""
    if file.is_file() and len(read_jsonl(file)) == len(problems):
        return 0, 0.0
    kept = _kept(file)
    write_atomically(file, "".join(map(to_line, kept)))
    tokens, number = 0, len(kept)

    def write(records: list[dict[str, Any]]) -> None:
        nonlocal tokens, number
        rows = []
        for record in records:
            strict = prompt.reward_fn(record["response"], record["ground_truth"], strict=True)
            columns = ("ground_truth", "response", "tokens", "finish_reason", *_VERDICT)
            row = {"number": number} | {name: record[name] for name in columns}
            rows.append(row | {f"strict_{name}": strict[name] for name in _VERDICT})
            tokens, number = tokens + record["tokens"], number + 1
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(map(to_line, rows))

    start = time.perf_counter()
    with tqdm(total=len(problems), initial=number, desc=prompt.name, dynamic_ncols=True) as bar:
        later = replace(sampling, seed=sampling.seed + number)
        evaluate(engine, problems[number:], prompt, later, bar=bar, sink=write)
    return tokens, time.perf_counter() - start


def baselines(settings: BaselineSettings) -> dict[str, dict[str, Summary]]:
    """Ask every question with every prompt, write the folder, print counts and examples and, last, a line of JSON.

    Returns the table of `baseline_table`. Raises ValueError and its relatives, before anything is sampled, for settings,
    model, data and folder that do not fit each other.
    """
    check_choice("engine", settings.engine, ENGINES)
    check_engine(settings.engine, EngineOptions(), resolve_device(settings.device))
    prompts = [load_prompt(name) for name in settings.prompts]
    problems = load_test_problems(settings.data, settings.n, settings.data_dir)
    model, tokenizer = load_model(settings.model, device=settings.device, dtype=getattr(torch, settings.dtype))
    for prompt in prompts:
        check_prompts_fit(model, tokenizer, prompt, problems, settings.max_new_tokens)
    folder = _start(settings)
    dtype: Any = settings.dtype
    tokens, seconds = 0, 0.0
    with open_engine(
        settings.engine, model, tokenizer, max_batch_tokens=settings.max_batch_tokens, dtype=dtype
    ) as engine:
        for prompt in prompts:
            asked = _ask(engine, prompt, problems, settings.sampling(), folder / f"{prompt.name}.jsonl")
            tokens, seconds = tokens + asked[0], seconds + asked[1]
    runs = load_baselines(folder)
    table = baseline_table(runs)
    counts = {name: {rule: s.to_json() for rule, s in rules.items()} for name, rules in table.items()}
    write_atomically(folder / "summary.json", json.dumps(counts, indent=2) + "\n")
    plot_categories(table, f"{settings.model}, {len(problems)} questions").savefig(folder / "categories.png", dpi=120)
    for name, records in runs.items():
        print(show_examples(name, records, problems, settings.examples))
    print(format_table(table))
    print(f"responses: {folder}")
    line: dict[str, Any] = {"model": settings.model, "engine": settings.engine, "n": len(problems)}
    line["tokens_per_second"] = round(tokens / seconds, 1) if tokens else None
    rules = {name: {rule: [getattr(s, key) for key in CATEGORIES] for rule, s in table[name].items()} for name in table}
    print(json.dumps(line | {"counts": rules, "out": str(folder)}))
    return table
