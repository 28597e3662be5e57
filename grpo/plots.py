"""Figures from run directories. Colours from Okabe and Ito (2008), told apart by every kind of colour vision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from grpo.runs import RunDir

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

# (title, y label, (metric, kind of row, legend) ...)
PANELS: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Reward",
        "mean over responses",
        (
            ("accuracy", "validation", "validation, answer right"),
            ("answer_reward", "train", "training, answer right"),
            ("format_reward", "train", "training, format right"),
        ),
    ),
    (
        "Response length",
        "tokens",
        (("response_length_mean", "train", "mean"), ("response_length_max", "train", "longest")),
    ),
    ("Token entropy", "nats", (("token_entropy", "train", "rows with an advantage"),)),
    ("Groups without signal", "share of groups", (("zero_spread", "train", "all rewards equal"),)),
    ("Gradient norm", "before clipping", (("grad_norm", "train", "gradient norm"),)),
    ("Loss (no measure of progress)", "loss", (("loss", "train", "policy-gradient loss"),)),
)


def series(rows: list[dict[str, Any]], metric: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a metric, rows without a value left out."""
    kept = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    return [step for step, _ in kept], [value for _, value in kept]


def plot_run(path: str | Path) -> Path:
    """Draw the curves of one run to figures/metrics.png in its directory; returns that path.

    Validation accuracy comes with its 95% Wilson interval over questions: what one run's sampling error is, not what
    other seeds would give.
    """
    run = RunDir(path)
    rows = {kind: run.read("metrics", kind) for kind in ("train", "validation")}
    figure = Figure(figsize=(11, 6), layout="constrained")
    for axes, (title, label, curves) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for colour, (metric, kind, legend) in zip(COLOURS, curves, strict=False):
            steps, values = series(rows[kind], metric)
            marker = "o" if kind == "validation" else None
            axes.plot(steps, values, color=colour, label=legend, marker=marker, markersize=4, linewidth=1.5)
            if metric == "accuracy":
                low, high = series(rows[kind], "accuracy_low")[1], series(rows[kind], "accuracy_high")[1]
                axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0, label="its 95% interval")
        axes.set(title=title, xlabel="rollout step", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        if label.startswith(("mean over", "share")):
            axes.set_ylim(-0.02, 1.02)
    figure.suptitle(run.path.name)
    target = run.path / "figures" / "metrics.png"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=110)
    return target
