"""The `grpo` command (also `python -m grpo`).

    grpo demo                      a tiny OLMo 2 learns word problems, on a CPU
    grpo train --preset NAME       train: tiny, smollm2 or olmo2-1b, every setting an option
    grpo plan --preset NAME        the memory and time that such a run needs, and on which GPU it fits
    grpo sweep FILE                runs of several settings and seeds, from a small file
    grpo plot FOLDER               figures, tables and paired differences of a sweep
    grpo eval                      prompt a model with a dataset and count right answers
    grpo baselines                 prompt a model with several prompts and count by category
    grpo check FILE                say what is wrong in your own core functions; --list: the course's exercises
    grpo data fetch gsm8k          download GSM8K, checked by sha256
    grpo sft                       a short supervised warm-up of a pretrained model
    grpo warmup                    make the tiny model again from nothing

`grpo COMMAND --help` lists a command's options.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro
from tqdm.auto import tqdm

from grpo.advantages import check_choice
from grpo.baselines import BaselineSettings, baselines
from grpo.checks.command import CheckSettings, ChecksFailed, check
from grpo.compare import PlotSettings, plot
from grpo.config import ENGINES, PRESETS, TrainSettings, preset
from grpo.data import FetchError, fetch_gsm8k
from grpo.demo import DemoSettings, demo
from grpo.evaluation import check_prompts_fit, evaluate, summarize
from grpo.models import load_model, resolve_device
from grpo.plan import PlanSettings, plan, show
from grpo.prompts import load_prompt
from grpo.rollouts import EngineOptions, Sampling, check_engine, open_engine
from grpo.runs import RunDir, to_line
from grpo.supervised import SFTSettings, sft
from grpo.sweep import SweepSettings, sweep
from grpo.tasks import load_test_problems
from grpo.trainer import TrainingStopped, train
from grpo.warmup import WarmupSettings, warmup


@dataclass(frozen=True)
class EvalSettings:
    """What `grpo eval` can be told."""

    model: str = "tiny"
    """A preset's name (tiny, smollm2, olmo2-1b), a folder (a checkpoint of a run, too), or a hub id."""
    data: str = "words"
    """words (the embedded word problems, validation), gsm8k (its test file), or a .jsonl file in GSM8K's format."""
    data_dir: str | None = None
    """Folder with GSM8K's train.jsonl and test.jsonl; default: $GRPO_DATA_DIR, else data/gsm8k."""
    prompt: str | None = None
    """Prompt template; default: tiny_r1_zero for the tiny model, a checkpoint's own, r1_zero for any other."""
    engine: str = "hf"
    """Rollout engine: hf, vllm, or vllm-server (vLLM is an extra to install)."""
    engine_url: str = ""
    """vllm-server: attach to the server at this URL; it gets the model's weights. Default: start one here."""
    engine_folder: str = ""
    """vllm-server: folder that this machine and the server's both see, for weights by file."""
    n: int | None = None
    """Questions; default: 256 word problems, or all of a file."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Nucleus sampling."""
    max_new_tokens: int | None = None
    """Longest response, in tokens; default: 80 for the tiny model, a checkpoint's own, 512 for any other."""
    seed: int = 0
    """Of the samples."""
    strict: bool = False
    """Grade by the narrow rule, close to the course's published grader."""
    max_batch_tokens: int = 65_536
    """Bound on rows x (prompt + max_new_tokens) that are generated at once."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    dtype: str = "float32"
    """float32 or bfloat16."""
    out: str = ""
    """JSONL to write; default: runs/eval-<model>-<data>-<prompt>-<time>.jsonl."""


def evaluation_defaults(model: str) -> tuple[str, int]:
    """Prompt and longest response: for a checkpoint of a run those that the run trained with."""
    folder = Path(model).absolute()
    run = RunDir(folder.parent.parent)
    config = run.config if folder.parent.name == "checkpoints" and run.config_file.is_file() else {}
    if {"prompt", "max_new_tokens"} <= set(config):
        return config["prompt"], config["max_new_tokens"]
    return ("tiny_r1_zero", 80) if model == "tiny" else ("r1_zero", 512)


def run_eval(settings: EvalSettings) -> None:
    """Evaluate, write a JSONL of questions, responses and verdicts, print the counts and, last, a line of JSON."""
    check_choice("engine", settings.engine, ENGINES)
    options = EngineOptions(engine_url=settings.engine_url, engine_folder=settings.engine_folder)
    check_engine(settings.engine, options, resolve_device(settings.device))
    if settings.dtype not in {"float32", "bfloat16"}:
        raise ValueError(f"dtype={settings.dtype!r} must be float32 or bfloat16")
    for name in ("n", "max_new_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value!r} must be at least 1")
    default_prompt, default_tokens = evaluation_defaults(settings.model)
    prompt = load_prompt(settings.prompt or default_prompt)
    sampling = Sampling(
        1,
        settings.temperature,
        settings.top_p,
        default_tokens if settings.max_new_tokens is None else settings.max_new_tokens,
        prompt.stop,
        settings.seed,
    )
    problems = load_test_problems(settings.data, settings.n, settings.data_dir)
    data_name = Path(settings.data).stem
    name = f"eval-{Path(settings.model).name}-{data_name}-{prompt.name}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    out = Path(settings.out or Path("runs") / name)
    if out.exists():
        raise ValueError(f"out={str(out)!r} exists; give a new file, or move it away")
    model, tokenizer = load_model(settings.model, device=settings.device, dtype=getattr(torch, settings.dtype))
    check_prompts_fit(model, tokenizer, prompt, problems, sampling.max_tokens)
    dtype: Any = settings.dtype

    def reward_fn(response: str, ground_truth: str) -> dict[str, float]:
        return prompt.reward_fn(response, ground_truth, strict=settings.strict)

    # The engine first: one that does not start leaves no empty file behind.
    with open_engine(
        settings.engine, model, tokenizer, max_batch_tokens=settings.max_batch_tokens, dtype=dtype, options=options
    ) as engine:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            file = out.open("w", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"out={str(out)!r} cannot be written ({error}); give another file") from error
        start = time.perf_counter()
        with file, tqdm(total=len(problems), desc="eval", dynamic_ncols=True) as bar:

            def write(rows: list[dict]) -> None:
                file.writelines(map(to_line, rows))
                file.flush()

            records = evaluate(engine, problems, prompt, sampling, reward_fn=reward_fn, bar=bar, sink=write)
    seconds = time.perf_counter() - start
    summary = summarize(records)
    print(f"format right, answer right  {summary.format_and_right:6d}")
    print(f"format right, answer wrong  {summary.format_only:6d}")
    print(f"format wrong                {summary.neither:6d}")
    low, high = summary.accuracy_low, summary.accuracy_high
    print(f"accuracy {summary.accuracy:.4f}, 95% interval [{low:.4f}, {high:.4f}]; cut off {summary.cut_off:.3f}")
    print(f"responses: {out}")
    line = {
        "model": settings.model,
        "engine": settings.engine,
        "dataset": settings.data,
        "prompt": prompt.name,
        "n": summary.n,
        "format_and_right": summary.format_and_right,
        "format_only": summary.format_only,
        "neither": summary.neither,
        "mean_tokens": round(summary.mean_tokens, 2),
        "tokens_per_second": round(summary.mean_tokens * summary.n / seconds, 1),
    }
    print(json.dumps(line))


@dataclass(frozen=True)
class FetchSettings:
    """What `grpo data fetch` can be told."""

    dataset: tyro.conf.Positional[str] = "gsm8k"
    """Which one: gsm8k."""
    target: str | None = None
    """Folder to write; default: data/gsm8k."""


def run_data(arguments: Sequence[str]) -> None:
    """grpo data fetch gsm8k."""
    if not arguments or arguments[0] != "fetch":
        if arguments and arguments[0] in {"-h", "--help"}:
            print("usage: grpo data fetch gsm8k [--target FOLDER]")
            return
        raise ValueError(f"grpo data {' '.join(arguments)}: expected `grpo data fetch gsm8k`")
    settings = tyro.cli(FetchSettings, args=arguments[1:], prog="grpo data fetch")
    if settings.dataset != "gsm8k":
        raise ValueError(f"dataset={settings.dataset!r} is unknown; choose one of 'gsm8k'")
    print(fetch_gsm8k(settings.target))


@dataclass(frozen=True)
class TrainOptions:
    """What `grpo train` can be told."""

    settings: Annotated[TrainSettings, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on from the newest checkpoint of the run directory."""


Options = TypeVar("Options", TrainOptions, PlanSettings)


def with_preset(command: str, options: type[Options], arguments: Sequence[str], does: str) -> Options:
    """Parse the options of a command that starts from a preset, whose settings are the defaults of the options."""
    rest, name = list(arguments), "tiny"
    for i, argument in enumerate(rest):
        if argument == "--preset" or argument.startswith("--preset="):
            given = argument.partition("=")[2] if "=" in argument else (rest[i + 1] if i + 1 < len(rest) else "")
            name, rest[i : i + (1 if "=" in argument else 2)] = given, []
            break
    return tyro.cli(
        options,
        args=rest,
        prog=f"grpo {command} --preset {{{','.join(PRESETS)}}}",
        description=f"{does} the preset {name}, with what the options change.",
        default=options(preset(name)),
    )


def run_train(arguments: Sequence[str]) -> None:
    """grpo train: the preset's settings are the defaults of the options."""
    options = with_preset("train", TrainOptions, arguments, "Train by")
    result = train(options.settings, resume=options.resume)
    line = {"steps": result.step, "seconds": round(result.train_seconds, 1), "run_dir": str(result.run.path)}
    line |= (
        {f"validation_{key}": result.validation[-1][key] for key in ("accuracy", "format")} if result.validation else {}
    )
    print(json.dumps(line))


def run_plan(arguments: Sequence[str]) -> None:
    """grpo plan: memory and time of the run that `grpo train` with the same options would do."""
    options = with_preset("plan", PlanSettings, arguments, "Predict memory and time of")
    print(show(options, plan(options)))


COMMANDS: dict[str, Callable[[Sequence[str]], object]] = {
    "demo": lambda arguments: demo(tyro.cli(DemoSettings, args=arguments, prog="grpo demo")),
    "train": run_train,
    "plan": run_plan,
    "sweep": lambda arguments: sweep(tyro.cli(SweepSettings, args=arguments, prog="grpo sweep")),
    "plot": lambda arguments: plot(tyro.cli(PlotSettings, args=arguments, prog="grpo plot")),
    "eval": lambda arguments: run_eval(tyro.cli(EvalSettings, args=arguments, prog="grpo eval")),
    "baselines": lambda arguments: baselines(tyro.cli(BaselineSettings, args=arguments, prog="grpo baselines")),
    "check": lambda arguments: check(tyro.cli(CheckSettings, args=arguments, prog="grpo check")),
    "data": run_data,
    "sft": lambda arguments: print(sft(tyro.cli(SFTSettings, args=arguments, prog="grpo sft"))),
    "warmup": lambda arguments: print(warmup(tyro.cli(WarmupSettings, args=arguments, prog="grpo warmup"))),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 for a run that stopped by itself, 2 for bad input, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(__doc__.strip())
        return 0 if arguments else 2
    if arguments[0] not in COMMANDS:
        print(f"grpo: error: {arguments[0]!r} is unknown; choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        COMMANDS[arguments[0]](arguments[1:])
    except ChecksFailed as error:
        print(error)
        return 1
    except TrainingStopped as error:
        print(f"grpo: stopped: {error}", file=sys.stderr)
        return 1
    except (ValueError, TypeError, OSError, ModuleNotFoundError, FetchError, RuntimeError) as error:
        print(f"grpo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "; `grpo train` goes on from its newest checkpoint with --resume" if arguments[0] == "train" else ""
        print(f"\ngrpo: interrupted{again}", file=sys.stderr)
        return 130
    return 0
