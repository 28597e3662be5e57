"""Figures: every function draws on given axes and returns them.

Axes are labelled; colours are ones that colour-blind readers tell apart, and lines and markers differ as well.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from grpo.intervals import mean_interval
from toyrl.bandits import bernoulli_variance

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's palette, the most legible on white first."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
FAINT = 30
"""The largest number of single seeds drawn behind a mean."""


def curves(
    ax: Axes,
    columns: Mapping[str, Tensor],
    x: Sequence[float] | Tensor | None = None,
    xlabel: str = "epoch",
    ylabel: str = "probability of the sorted response",
    singles: bool = True,
) -> Axes:
    """Draw learning curves: the mean over seeds, its 95% interval as a band, and single seeds faint behind it.

    columns: {label: (seeds, points)}. x: (points,), by default 0, 1, ... Points that are NaN are left out.
    """
    for k, (label, values) in enumerate(columns.items()):
        values = values.detach().double()
        keep = ~values.isnan().any(dim=0)
        where = (torch.arange(values.shape[1]) if x is None else torch.as_tensor(x))[keep].numpy()
        values = values[:, keep]
        mean, half = (part.numpy() for part in mean_interval(values))
        colour, line = COLOURS[k % len(COLOURS)], LINES[k % len(LINES)]
        if singles:
            ax.plot(where, values[:FAINT].T.numpy(), color=colour, alpha=0.12, linewidth=0.6)
        ax.fill_between(where, mean - half, mean + half, color=colour, alpha=0.3, linewidth=0)
        ax.plot(where, mean, color=colour, linestyle=line, linewidth=2, label=label)
    return _finish(ax, xlabel, ylabel, legend=len(columns) > 1)


def bars(
    ax: Axes, table: Mapping[str, Mapping[str, Tensor]], ylabel: str = "probability of the sorted response"
) -> Axes:
    """Draw grouped bars with 95% intervals over seeds: {group: {label: (seeds,)}}, for example {reward: {delta: ...}}."""
    labels = list(dict.fromkeys(label for group in table.values() for label in group))
    width = 0.8 / len(labels)
    for k, label in enumerate(labels):
        places, means, halves = [], [], []
        for g, group in enumerate(table.values()):
            if label in group:
                mean, half = mean_interval(group[label].detach().double())
                places.append(g + (k - (len(labels) - 1) / 2) * width)
                means.append(mean.item())
                halves.append(half.item())
        ax.bar(places, means, width * 0.92, yerr=halves, capsize=3, color=COLOURS[k % len(COLOURS)], label=label)
    ax.set_xticks(range(len(table)), [name.replace("_", " ") for name in table])
    return _finish(ax, "", ylabel, legend=len(labels) > 1)


def landscape(
    ax: Axes, rewards: Tensor, positions: tuple[int, int] = (0, 1), mark: Sequence[int] | None = None
) -> Axes:
    """Draw the map of `toyrl.exact.landscape`, (v, v), with its values written in; `mark` frames one (row, column)."""
    image = ax.imshow(rewards.numpy(), cmap="cividis", origin="lower")
    middle = (rewards.max() + rewards.min()).item() / 2
    for i, row in enumerate(rewards.tolist()):
        for j, value in enumerate(row):
            ax.text(j, i, f"{value:g}", ha="center", va="center", color="black" if value > middle else "white")
    if mark is not None:
        row, column = mark
        frame = plt.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=3)
        ax.add_patch(frame)
    ax.set_xticks(range(rewards.shape[1]))
    ax.set_yticks(range(rewards.shape[0]))
    ax.figure.colorbar(image, ax=ax, label="reward", shrink=0.8)
    return _finish(ax, f"token at position {positions[1]}", f"token at position {positions[0]}", legend=False)


def reward_histogram(ax: Axes, distributions: Mapping[str, Mapping[float, float]]) -> Axes:
    """Draw the probability of each reward value: {label: `toyrl.exact.reward_distribution`}."""
    width = 0.8 / len(distributions)
    for k, (label, distribution) in enumerate(distributions.items()):
        places = [value + (k - (len(distributions) - 1) / 2) * width for value in distribution]
        ax.bar(places, list(distribution.values()), width * 0.95, color=COLOURS[k % len(COLOURS)], label=label)
    return _finish(ax, "reward", "probability", legend=len(distributions) > 1)


def token_distributions(ax: Axes, log_probs: Tensor, title: str = "") -> Axes:
    """Draw one prompt's token distributions, log-probs (t, v), as a map of probabilities from 0 to 1."""
    probs = log_probs.detach().exp()
    image = ax.imshow(probs.numpy(), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for t, row in enumerate(probs.tolist()):
        for v, value in enumerate(row):
            ax.text(v, t, f"{value:.2f}", ha="center", va="center", color="black" if value > 0.5 else "white")
    ax.set_xticks(range(probs.shape[1]))
    ax.set_yticks(range(probs.shape[0]))
    ax.set_title(title)
    ax.figure.colorbar(image, ax=ax, label="probability", shrink=0.8)
    return _finish(ax, "token", "response position", legend=False)


def variance_against_baseline(
    ax: Axes, ps: Sequence[float], simulated: Mapping[float, tuple[Sequence[float], Sequence[float]]] | None = None
) -> Axes:
    """Draw the Bernoulli policy's closed-form variance against the baseline, a curve a p; b = p and b* = 1 - p marked.

    simulated: {p: (baselines, variances)}, drawn as crosses on top.
    """
    baselines = torch.linspace(0, 1, 201, dtype=torch.float64)
    for k, p in enumerate(ps):
        colour, line = COLOURS[k % len(COLOURS)], LINES[k % len(LINES)]
        ax.plot(baselines, bernoulli_variance(p, baselines), color=colour, linestyle=line, label=f"p = {p:g}")
        ax.plot(p, bernoulli_variance(p, p), marker="o", color=colour, linestyle="")
        ax.plot(1 - p, 0, marker="*", markersize=11, color=colour, linestyle="")
        if simulated and p in simulated:
            ax.plot(*simulated[p], marker="x", color=colour, linestyle="")
    ax.plot([], [], marker="o", color="grey", linestyle="", label="b = p, the mean")
    ax.plot([], [], marker="*", markersize=11, color="grey", linestyle="", label="b = 1 - p, the best")
    return _finish(ax, "baseline b", "variance of one estimate", legend=True)


def variance_against_p(ax: Axes) -> Axes:
    """Draw the Bernoulli policy's variance against p: without baseline, and with the mean, which is worse above 2/3."""
    p = torch.linspace(0, 1, 201, dtype=torch.float64)
    choices = {"no baseline": torch.zeros_like(p), "b = p, the mean": p, "b = 1 - p, the best": 1 - p}
    for k, (label, baseline) in enumerate(choices.items()):
        ax.plot(p, bernoulli_variance(p, baseline), color=COLOURS[k], linestyle=LINES[k], linewidth=2, label=label)
    ax.axvline(2 / 3, color="grey", linewidth=1, linestyle=":")
    ax.annotate("p = 2/3", (2 / 3, ax.get_ylim()[1] * 0.66), color="dimgrey", textcoords="offset points", xytext=(4, 0))
    return _finish(ax, "probability p of the rewarded action", "variance of one estimate", legend=True)


def points(
    ax: Axes, series: Mapping[str, tuple[Sequence[float], Tensor]], xlabel: str, ylabel: str, log: bool = False
) -> Axes:
    """Draw means with 95% intervals at chosen x: {label: (x, (seeds, points))}; `log` makes both axes logarithmic."""
    for k, (label, (x, values)) in enumerate(series.items()):
        mean, half = (part.numpy() for part in mean_interval(values.detach().double()))
        style = {
            "color": COLOURS[k % len(COLOURS)],
            "marker": MARKERS[k % len(MARKERS)],
            "linestyle": LINES[k % len(LINES)],
        }
        ax.errorbar(x, mean, yerr=half, capsize=3, label=label, **style)  # type: ignore[arg-type]
    if log:
        ax.set_xscale("log")
        ax.set_yscale("log")
    return _finish(ax, xlabel, ylabel, legend=len(series) > 1)


def _finish(ax: Axes, xlabel: str, ylabel: str, legend: bool) -> Axes:
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(frameon=False)
    return ax
