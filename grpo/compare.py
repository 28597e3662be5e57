"""Comparing runs: tables with intervals over seeds, paired differences, and figures. `grpo plot FOLDER` writes them.

A sweep's folder holds <cell>/seed<k>/. Means over seeds come with 95% intervals by Student's t; at 4 seeds the normal
interval, 1.96 s / sqrt(n), would cover only about 86%. Two cells are compared by the paired difference over the seeds that
both have: the same seed means the same questions in the same order, so what they share cancels.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from grpo.intervals import mean_interval
from grpo.plots import COLOURS, series
from grpo.runs import RunDir
from grpo.words import LEVEL_LIMITS

LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# metric: (kind of row, label of the axis)
METRICS: dict[str, tuple[str, str]] = {
    "accuracy": ("validation", "validation accuracy"),
    **{f"accuracy_level_{level}": ("validation", f"validation accuracy, level {level}") for level in LEVEL_LIMITS},
    "format": ("validation", "share with the right format, validation"),
    "mean_tokens": ("validation", "mean response length, validation (tokens)"),
    "reward": ("train", "mean training reward"),
    "format_reward": ("train", "mean training format reward"),
    "response_length_mean": ("train", "mean response length, training (tokens)"),
    "loss": ("train", "policy-gradient loss"),
    "grad_norm": ("train", "gradient norm before clipping"),
    "token_entropy": ("train", "token entropy (nats)"),
    "clip_fraction": ("train", "share of tokens clipped"),
    "zero_spread": ("train", "share of groups without signal"),
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    """The mean."""
    half: float
    """Half width of its 95% interval by Student's t; infinite for one seed."""
    n: int
    """Seeds."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half:.3f}" if self.n > 1 else f"{self.mean:.3f} (one seed)"


@dataclass(frozen=True)
class Comparison:
    """A cell's final value, and how it differs from the reference cell."""

    cell: str
    """Its name."""
    final: Estimate
    """Value at the last step."""
    difference: Estimate | None
    """Paired difference to the reference over the seeds that both have; None for the reference itself, or fewer than 2."""

    @property
    def verdict(self) -> str:
        """In words: whether a difference was seen."""
        if self.difference is None:
            return ""
        if abs(self.difference.mean) <= self.difference.half:
            return "no difference seen"
        return "higher" if self.difference.mean > 0 else "lower"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95% interval over seeds. Raises ValueError without any value."""
    if not values:
        raise ValueError("values is empty; an estimate needs at least one seed")
    if len(values) == 1:
        return Estimate(values[0], float("inf"), 1)
    mean, half = mean_interval(torch.tensor(values, dtype=torch.float64))
    return Estimate(mean.item(), half.item(), len(values))


def load_cells(folder: str | Path) -> dict[str, dict[int, RunDir]]:
    """The runs of a sweep's folder that have ended: runs[cell][seed], cells in the order of its sweep.toml.

    Raises FileNotFoundError when there are none.
    """
    folder = Path(folder)
    found: dict[str, dict[int, RunDir]] = {}
    for done in folder.glob("*/seed*/done.json"):
        seed = done.parent.name.removeprefix("seed")
        if seed.lstrip("-").isdecimal():
            found.setdefault(done.parent.parent.name, {})[int(seed)] = RunDir(done.parent)
    if not found:
        raise FileNotFoundError(f"folder={str(folder)!r} holds no run that has ended (<cell>/seed<k>/done.json)")
    order = (
        list(tomllib.loads((folder / "sweep.toml").read_text())["cells"]) if (folder / "sweep.toml").is_file() else []
    )
    names = [name for name in order if name in found] + sorted(set(found) - set(order))
    return {name: dict(sorted(found[name].items())) for name in names}


def _kind(metric: str) -> str:
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is unknown; choose one of {', '.join(METRICS)}")
    return METRICS[metric][0]


def curve(run: RunDir, metric: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a metric of one run."""
    return series(run.read("metrics", _kind(metric)), metric)


def final_values(runs: Mapping[int, RunDir], metric: str) -> dict[int, float]:
    """The last value of a metric, by seed. For a run that diverged it is that of the last step it reached."""
    curves = {seed: curve(run, metric)[1] for seed, run in runs.items()}
    return {seed: values[-1] for seed, values in curves.items() if values}


def stack(runs: Mapping[int, RunDir], metric: str) -> tuple[list[int], Tensor]:
    """Steps that every seed has, and values: (seeds, steps)."""
    curves = [dict(zip(*curve(run, metric), strict=True)) for run in runs.values()]
    steps = sorted(set.intersection(*(set(one) for one in curves)))
    return steps, torch.tensor([[one[step] for step in steps] for one in curves], dtype=torch.float64)


def compare(
    cells: Mapping[str, Mapping[int, RunDir]], metric: str = "accuracy", reference: str | None = None
) -> list[Comparison]:
    """Each cell's final value, and its paired difference to the reference (default: the first cell).

    Raises ValueError for an unknown metric or reference, and for a cell without any value.
    """
    reference = next(iter(cells)) if reference is None else reference
    if reference not in cells:
        raise ValueError(f"reference={reference!r} is no cell; the cells are {', '.join(cells)}")
    finals = {name: final_values(runs, metric) for name, runs in cells.items()}
    empty = [name for name, values in finals.items() if not values]
    if empty:
        raise ValueError(f"metric={metric!r} was not recorded in {', '.join(empty)}")
    rows = []
    for name, values in finals.items():
        common = sorted(set(values) & set(finals[reference]))
        paired = [values[seed] - finals[reference][seed] for seed in common]
        difference = None if name == reference or len(paired) < 2 else estimate(paired)
        rows.append(Comparison(name, estimate(list(values.values())), difference))
    return rows


def table(rows: Sequence[Comparison], reference: str) -> str:
    """The comparison as text."""
    width = max(len("cell"), *(len(row.cell) for row in rows)) + 2
    lines = [f"{'cell':{width}}{'seeds':>5}  {'final, 95% interval':22}{f'difference to {reference}':28}"]
    for row in rows:
        difference = f"{row.difference.mean:+.3f} ± {row.difference.half:.3f}" if row.difference else ""
        lines.append(f"{row.cell:{width}}{row.final.n:5}  {row.final!s:22}{difference:18}{row.verdict}".rstrip())
    return "\n".join(lines)


def draw_curves(axes: Axes, cells: Mapping[str, Mapping[int, RunDir]], metric: str) -> Axes:
    """Mean over seeds, its 95% interval as a band, the single runs faint, for each cell.

    Against the rollout step; against the number of rollouts where cells sample different numbers of them in a step.
    """
    batches: dict[str, Any] = {name: next(iter(r.values())).config.get("rollout_batch") for name, r in cells.items()}
    by_rollouts = len(set(batches.values())) > 1
    for k, (name, runs) in enumerate(cells.items()):
        colour, line = COLOURS[k % len(COLOURS)], LINES[k % len(LINES)]
        size = batches[name] if by_rollouts else 1
        for run in runs.values():
            x, y = curve(run, metric)
            axes.plot([size * step for step in x], y, color=colour, alpha=0.25, linewidth=0.7)
        steps, values = stack(runs, metric)
        steps = [size * step for step in steps]
        label = f"{name} ({len(runs)} seeds)" if len(runs) > 1 else f"{name} (one seed)"
        axes.plot(steps, values.mean(dim=0), color=colour, linestyle=line, linewidth=2, label=label)
        if len(runs) > 1 and steps:
            mean, half = mean_interval(values)
            axes.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="rollouts" if by_rollouts else "rollout step", ylabel=METRICS[metric][1])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return axes


def varied_number(cells: Mapping[str, Mapping[int, RunDir]]) -> tuple[str, dict[str, float]] | None:
    """The one setting that differs between cells, if it is a number: (name, value by cell); else None."""
    configs = {name: next(iter(runs.values())).config for name, runs in cells.items()}
    ignored = {"run_dir", "seed", "reward_fn"}
    names = set().union(*configs.values()) - ignored
    differing = [n for n in names if len({json.dumps(config.get(n)) for config in configs.values()}) > 1]
    if len(differing) != 1 or len(cells) < 2:
        return None
    values = {cell: config.get(differing[0]) for cell, config in configs.items()}
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values()):
        return None
    return differing[0], {cell: float(value) for cell, value in values.items()}  # type: ignore[arg-type]


def draw_finals(axes: Axes, cells: Mapping[str, Mapping[int, RunDir]], metric: str) -> Axes:
    """The final value of each cell with its interval, single runs as dots: against the varied number, or by name."""
    varied = varied_number(cells)
    names = list(cells)
    places = [varied[1][name] for name in names] if varied else list(range(len(names)))
    for place, name in zip(places, names, strict=True):
        values = list(final_values(cells[name], metric).values())
        final = estimate(values)
        axes.plot([place] * len(values), values, "o", color="0.6", markersize=4, zorder=1)
        half = final.half if final.n > 1 else 0.0
        axes.errorbar(place, final.mean, half, fmt="s", color=COLOURS[0], capsize=4, markersize=6, zorder=2)
    if varied:
        axes.set_xlabel(varied[0].replace("_", " "))
        if min(places) > 0 and max(places) / min(places) >= 10:
            axes.set_xscale("log")
    else:
        axes.set_xticks(places, names, rotation=30 if max(map(len, names)) > 8 else 0, ha="right")
    axes.set_ylabel(f"{METRICS[metric][1]}, last step")
    axes.grid(alpha=0.3)
    return axes


def figure(cells: Mapping[str, Mapping[int, RunDir]], metric: str = "accuracy", title: str = "") -> Figure:
    """Curves on the left, final values on the right."""
    result = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = result.subplots(1, 2)
    draw_curves(left, cells, metric)
    draw_finals(right, cells, metric)
    result.suptitle(title)
    return result


def write_csv(path: Path, cells: Mapping[str, Mapping[int, RunDir]], metric: str) -> None:
    """The data of the figure: a line for each cell, seed and step."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "seed", "step", metric])
        for name, runs in cells.items():
            for seed, run in runs.items():
                writer.writerows([name, seed, step, value] for step, value in zip(*curve(run, metric), strict=True))


@dataclass(frozen=True)
class PlotSettings:
    """What `grpo plot` can be told."""

    folder: tyro.conf.Positional[str]
    """Folder of a sweep."""
    metrics: tuple[str, ...] = ("accuracy",)
    """What to plot; a figure for each."""
    cells: tuple[str, ...] = ()
    """Only these cells, in this order; default: all."""
    reference: str | None = None
    """The cell that others are compared with; default: the first."""
    out: str = ""
    """Folder of the figures; default: figures/ in the sweep's folder."""


def plot(settings: PlotSettings) -> list[Comparison]:
    """Write <metric>.png, .svg and .csv for each metric, print its table; return the last metric's comparison.

    Raises FileNotFoundError and ValueError, before anything is written, for a folder, metric or cell that is not there.
    """
    cells = load_cells(settings.folder)
    missing = [name for name in settings.cells if name not in cells]
    if missing:
        raise ValueError(
            f"cells={list(settings.cells)!r}: no ended run of {', '.join(missing)}; there are {', '.join(cells)}"
        )
    if settings.cells:
        cells = {name: cells[name] for name in settings.cells}
    rows = {metric: compare(cells, metric, settings.reference) for metric in settings.metrics}
    out = Path(settings.out or Path(settings.folder) / "figures")
    out.mkdir(parents=True, exist_ok=True)
    for metric, comparison in rows.items():
        drawn = figure(cells, metric, Path(settings.folder).name)
        drawn.savefig(out / f"{metric}.png", dpi=120)
        drawn.savefig(out / f"{metric}.svg")
        write_csv(out / f"{metric}.csv", cells, metric)
        print(f"{METRICS[metric][1]}\n{table(comparison, settings.reference or next(iter(cells)))}\n")
    print(f"figures: {out}")
    return comparison
