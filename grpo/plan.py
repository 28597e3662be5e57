"""`grpo plan`: does a run fit on a GPU, what to change if not, and how long it will take.

Everything is computed (grpo/needs.py), nothing is loaded and no GPU is looked for. What a run really took is in its
`timing.jsonl`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from grpo.config import TrainSettings
from grpo.footprint import model_shape, model_size
from grpo.needs import GB, GPU, GPUS, Memory, PlanSettings, Prompts, Times, check_plan, memory, prompt_lengths, times

USABLE = 0.92  # assumed: CUDA's context, libraries' work space and gaps between blocks take the rest


def engine_share(options: PlanSettings, gpu: GPU) -> float:
    """Bytes that a vLLM engine takes of its GPU; 0 for the hf engine."""
    return 0.0 if options.settings.engine == "hf" else options.settings.engine_memory * gpu.memory * GB


def engine_tokens(options: PlanSettings, need: Memory, gpu: GPU) -> int:
    """Tokens of key-value cache that a vLLM engine's share holds beside its weights in bfloat16."""
    return int((engine_share(options, gpu) - need.weights / 2) // need.cache_per_token)


def on_trainer(options: PlanSettings, need: Memory, gpu: GPU) -> float:
    """The most bytes on the trainer's GPU at any time."""
    settings = options.settings
    number = int(settings.device.partition(":")[2] or 0)
    apart = settings.engine_url or (settings.engine_gpus and number not in settings.engine_gpus)
    shared = 0.0 if apart else engine_share(options, gpu)
    return max(need.update + (0.0 if settings.engine_sleep else shared), need.rollouts + shared)


def fits(options: PlanSettings, need: Memory, gpu: GPU) -> bool:
    """Whether the trainer, and a vLLM engine with at least one row, find room."""
    engine = options.settings.engine == "hf" or engine_tokens(options, need, gpu) > need.width
    return engine and on_trainer(options, need, gpu) <= USABLE * gpu.memory * GB


def _changes(settings: TrainSettings, need: Memory, longest_prompt: int) -> dict[str, Any]:
    """Settings that could lower the peak, one step further each."""
    changes: dict[str, Any] = {}
    if need.rollouts > need.update and need.rows_in_flight > 1:
        changes["max_batch_tokens"] = need.rows_in_flight // 2 * (longest_prompt + settings.max_new_tokens)
    if need.update >= need.rollouts and settings.microbatches < settings.train_batch:
        changes["microbatches"] = min(2 * settings.microbatches, settings.train_batch)
    if not settings.autocast:
        changes["autocast"] = True
    if settings.kl_coef > 0:
        changes["kl_coef"] = 0.0
    return changes


@dataclass(frozen=True)
class Change:
    """A setting to change for a run to fit."""

    name: str
    before: Any
    after: Any
    saves: float
    """Bytes at the run's peak, after the changes before it."""


def changes_to_fit(options: PlanSettings, longest_prompt: int, gpu: GPU) -> tuple[list[Change], bool]:
    """Settings to change, those that save most first, and whether the run fits with all of them.

    Each is taken as far as it is needed. The peak is that of the larger of update and rollouts, so that the one lowers it
    only until it meets the other.
    """
    start, saved = options.settings, dict[str, float]()
    need = memory(options.settings, longest_prompt)
    while not fits(options, need, gpu):
        best, saving = "", 0.0
        for name, value in _changes(options.settings, need, longest_prompt).items():
            changed = replace(options, settings=replace(options.settings, **{name: value}))
            changed_need = memory(changed.settings, longest_prompt)
            saves = on_trainer(options, need, gpu) - on_trainer(changed, changed_need, gpu)
            if saves > saving:
                best, saving, next_options, next_need = name, saves, changed, changed_need
        if not best:
            break
        saved[best] = saved.get(best, 0.0) + saving
        options, need = next_options, next_need
    names = sorted(saved, key=lambda name: -saved[name])
    changes = [Change(name, getattr(start, name), getattr(options.settings, name), saved[name]) for name in names]
    return changes, fits(options, need, gpu)


@dataclass(frozen=True)
class OnGPU:
    """What a run comes to on one kind of GPU."""

    gpu: GPU
    bytes_needed: float
    """The most on the trainer's GPU."""
    fits: bool
    changes: list[Change]
    """What to change where it does not fit."""
    fits_then: bool
    times: Times


@dataclass(frozen=True)
class Plan:
    """What `plan` returns: sizes in bytes, times in seconds, for each GPU asked about."""

    parameters: int
    prompts: Prompts
    memory: Memory
    gpus: dict[str, OnGPU]


def plan(options: PlanSettings) -> Plan:
    """Compute what a run needs. No weights are loaded, and no GPU is looked for.

    Raises ValueError for options that do not fit each other, and for a prompt and response beyond the model's context.
    """
    check_plan(options)
    prompts = prompt_lengths(options)
    need = memory(options.settings, prompts.longest)
    names = [options.gpu] if options.gpu else list(GPUS)
    gpus = {}
    for name in [] if options.settings.device == "cpu" else names:
        gpu = GPUS[name]
        changes, fits_then = changes_to_fit(options, prompts.longest, gpu)
        gpus[name] = OnGPU(
            gpu,
            on_trainer(options, need, gpu),
            fits(options, need, gpu),
            changes,
            fits_then,
            times(options, prompts, need, gpu),
        )
    return Plan(model_size(model_shape(options.settings.model)).parameters, prompts, need, gpus)


def show(options: PlanSettings, result: Plan) -> str:
    """The plan as text, a line of JSON last."""
    need, settings = result.memory, options.settings
    line = "{:<50} {:>9}".format
    lines = [
        f"{settings.model}: {result.parameters:,} parameters; prompt of at most {result.prompts.longest} tokens "
        f"({result.prompts.source}), response of at most {settings.max_new_tokens}",
        "Computed from sizes, not measured; GB are 10^9 bytes.",
        "",
        line("memory on the trainer's device", "GB"),
    ]
    parts = {
        "master weights, float32": need.weights,
        "AdamW's moments, float32": need.moments,
        "frozen reference": need.reference,
        "gradients": need.gradients,
        "AdamW's temporaries, at its step alone": need.optimizer_step,
        f"microbatch of {need.rows} x {need.width} tokens, at its peak": need.microbatch,
        "  kept for the backward pass": need.kept,
        "  of which one float32 tensor of logits": need.logits,
        f"hf engine, {need.rows_in_flight} rows at once, at its peak": need.generation,
        "  key-value cache": need.cache,
    }
    lines += [line(name, f"{value / GB:.2f}") for name, value in parts.items() if value]
    lines += [line("the most in an update", f"{need.update / GB:.2f}")]
    lines += [line("the most in rollouts", f"{need.rollouts / GB:.2f}")] if need.generation else []
    lines += [f"one token of key-value cache: {need.cache_per_token:,} bytes"]
    lines += _gpu_lines(options, result) if result.gpus else []
    return "\n".join([*lines, json.dumps(_summary(result))])


def _gpu_lines(options: PlanSettings, result: Plan) -> list[str]:
    response = options.response_tokens or options.settings.max_new_tokens
    row = "{:<15} {:>6} {:>7}   {:<8} {:>10} {:>9} {:>8}".format
    lines = ["", row("GPU", "GB", "needed", "fits", "rollouts s", "update s", "run h")]
    for one in result.gpus.values():
        numbers = [f"{one.gpu.memory:.0f}", f"{one.bytes_needed / GB:.1f}"]
        seconds = [f"{one.times.rollouts:.1f}", f"{one.times.update:.1f}", f"{one.times.run / 3600:.1f}"]
        answer = "yes" if one.fits else "changed" if one.fits_then else "no"
        lines.append(row(one.gpu.name, *numbers, answer, *seconds))
    lines += [
        f"fits: in {USABLE:.0%} of the memory; the rest is assumed lost to CUDA and to gaps between blocks.",
        f"Times: responses of {response} tokens, at an assumed {options.mfu:.0%} of the peak FLOP/s and, in decoding,",
        f"{options.bandwidth_share:.0%} of the bandwidth. Launching kernels is not in them; it often bounds the hf engine.",
    ]
    for one in result.gpus.values():
        if not one.fits:
            steps = [f"{c.name} {c.before} -> {c.after} (saves {c.saves / GB:.1f} GB)" for c in one.changes]
            what = ", ".join(steps) or "no setting saves memory"
            lines.append(f"{one.gpu.name}: {what}{'' if one.fits_then else '; it does not fit then either'}")
    return lines


def _summary(result: Plan) -> dict[str, Any]:
    need = result.memory
    return {
        "parameters": result.parameters,
        "update_gb": round(need.update / GB, 3),
        "rollouts_gb": round(need.rollouts / GB, 3),
        "fits": {name: one.fits for name, one in result.gpus.items()},
        "step_seconds": {name: round(one.times.rollouts + one.times.update, 1) for name, one in result.gpus.items()},
    }
