"""The widgets of the lecture half: RewardLab, BaselineLab, RatioLab. They need the extra "lab" (ipywidgets).

Each is a shell: what it computes is in `toyrl.labs` and `toyrl.training_lab`, what it draws in the functions here.

    >>> lab = BaselineLab()                      # the last line of a cell shows it
    >>> lab.set(p=0.8, baseline=0.8)             # as by hand
    >>> lab.data.numbers["variance"] > lab.data.numbers["variance_without"]
    True
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpo.intervals import describe, mean_interval
from grpo.panel import Panel, choice, number, slider, widgets
from toyrl.bandits import bernoulli_variance
from toyrl.labs import TOKENS, Baselines, Drift, compute_baselines, compute_drift
from toyrl.plots import COLOURS, LINES, MARKERS
from toyrl.settings import DELTAS, LOSSES
from toyrl.sorting import REWARDS
from toyrl.training_lab import Training, compute_training

SHOWN = 3
"""Greedy responses shown a prompt."""
METHOD_NAMES = {
    "none": "none: A",
    "noclip": "noclip: A w",
    "grpo": "clip: A w, where min() allows",
    "gspo": "gspo: A s, one s for all",
    "cispo": "cispo: A min(w, 1 + upper)",
}


# ---- reward and delta lab ------------------------------------------------------------------------------------


def name_training(run: Training) -> str:
    """The settings of a run in a line."""
    s = run.settings
    clip = f" {s.cliprange:g}" if s.loss in ("clipped", "gspo", "cispo") else ""
    bonus = f", entropy bonus {s.entropy_weight(0.0):g} to 0" if callable(s.entropy_weight) else ""
    penalty = f", KL {s.kl_weight:g}" if s.kl_weight else ""
    named = f"{s.reward}, {s.delta}, {s.loss}{clip}".replace("_", " ")
    return (
        f"{named}; {s.inner_steps} inner steps, scale {s.scale:g}{bonus}{penalty}; {len(run.curves['p_sorted'])} seeds"
    )


def describe_training(run: Training, pinned: Training | None = None) -> str:
    """Where the run ended, and the difference to a pinned one, paired by seed, in lines."""
    p, reward = (run.curves[name][:, -1] for name in ("p_sorted", "expected_reward"))
    lines = [
        f"now     {name_training(run)}",
        f"        ends with probability of the sorted response {describe(p)}, "
        f"expected reward {describe(reward)} of {run.most:g}",
    ]
    if pinned is not None:
        before = pinned.curves["p_sorted"][:, -1]
        common = min(len(p), len(before))
        mean, half = mean_interval((p[:common] - before[:common]).double())
        verdict = "no difference seen" if mean.abs() <= half else "higher" if mean > 0 else "lower"
        lines += [
            f"pinned  {name_training(pinned)}",
            f"        ends with probability of the sorted response {describe(before)}",
            f"now - pinned, paired over {common} seeds: {mean:+.2f} ± {half:.2f}, {verdict}",
        ]
    return "\n".join(lines)


def draw_training(run: Training, pinned: Training | None = None) -> Figure:
    """Both exact curves with 95% intervals, a pinned run dashed beside them, and the greedy responses at the end."""
    figure = Figure(figsize=(11, 3.7), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(4, 4, 2.6))
    runs = {"now": run} | ({} if pinned is None else {"pinned": pinned})
    for axes, column, label in (
        (left, "p_sorted", "probability of the sorted response"),
        (middle, "expected_reward", "expected reward, exact"),
    ):
        for k, (name, one) in enumerate(runs.items()):
            if column == "p_sorted" or one.settings.reward == run.settings.reward:  # rewards have different scales
                _draw_band(axes, one.steps, one.curves[column], k, name)
        axes.set(xlabel="optimizer steps", ylabel=label)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False)
    left.set_ylim(0, 1.02)
    middle.axhline(run.most, color="grey", linewidth=1, linestyle=":")
    middle.annotate("the most", (0, run.most), (0, 2), textcoords="offset points", va="bottom")
    right.axis("off")
    right.text(0, 1, _greedy_lines(run), family="monospace", fontsize=8, va="top", transform=right.transAxes)
    right.set_title("greedy responses now, by seeds", fontsize=9, loc="left")
    titles = [f"{name}: {name_training(one)}" for name, one in runs.items()]
    figure.suptitle("\n".join(titles), fontsize=9)
    return figure


def _draw_band(axes: Axes, steps: list[int], values: torch.Tensor, k: int, name: str) -> None:
    mean, half = (part.numpy() for part in mean_interval(values.double()))
    axes.fill_between(steps, mean - half, mean + half, color=COLOURS[k], alpha=0.25, linewidth=0)
    label = f"{name}: mean, 95% interval"
    axes.plot(
        steps, mean, color=COLOURS[k], linestyle=LINES[k], marker=MARKERS[k], markevery=0.2, linewidth=2, label=label
    )


def _greedy_lines(run: Training) -> str:
    lines = []
    for prompt, responses in run.greedy:
        total = sum(count for _, count in responses)
        lines.append(f"prompt {_spaced(prompt)}")
        for response, count in responses[:SHOWN]:
            lines.append(f"  {'✓' if response == sorted(prompt) else '✗'} {_spaced(response)}  {count:2} of {total}")
        others = total - sum(count for _, count in responses[:SHOWN])
        lines.append(f"    others {others:2} of {total}" if others else "")
    return "\n".join(lines)


def _spaced(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


class RewardLab(Panel):
    """Choose reward, delta, loss and the rest; see what 32 seeds learn. Pin a setting to compare the next ones with it."""

    pinned: Training | None = None

    def __init__(self) -> None:
        self.progress = widgets.FloatProgress(0.0, max=1.0, description="training")
        pin, unpin = widgets.Button(description="Pin this setting"), widgets.Button(description="Take the pin out")
        pin.on_click(lambda _: self.pin())
        unpin.on_click(lambda _: self.unpin())
        super().__init__(
            {
                "reward": choice("reward", [(name.replace("_", " "), name) for name in REWARDS], "positions_right"),
                "delta": choice("delta", [(name.replace("_", " "), name) for name in DELTAS], "centered"),
                "loss": choice("loss", LOSSES),
                "cliprange": number("clip range", 0.2),
                "inner_steps": slider("inner steps", 10, 1, 20, 1, continuous=False),
                "scale": slider("initial scale", 1.0, 0.1, 1.5, 0.1, continuous=False),
                "entropy_weight": number("entropy bonus, to 0", 0.0),
                "kl_weight": number("KL penalty", 0.0),
                "seeds": slider("seeds", 32, 2, 64, 1, continuous=False),
            },
            [pin, unpin, self.progress],
        )

    def compute(self, **values: Any) -> Training:
        """Train; see `toyrl.training_lab.compute_training`."""
        self.progress.value = 0.0
        run = compute_training(**values, on_progress=self._report)
        self.progress.value = 1.0
        return run

    def draw(self, data: Training) -> Figure:
        """See `draw_training`."""
        return draw_training(data, self.pinned)

    def describe(self, data: Training) -> str:
        """See `describe_training`."""
        return describe_training(data, self.pinned)

    def pin(self) -> None:
        """Keep what is shown now, to compare later settings with."""
        self.pinned = self.data
        self.redraw()

    def unpin(self) -> None:
        """Forget the pinned setting."""
        self.pinned = None
        self.redraw()

    def _report(self, done: float) -> None:
        if done >= self.progress.value + 0.05:  # each report is a message to the browser
            self.progress.value = done


# ---- baseline lab --------------------------------------------------------------------------------------------


def describe_baselines(data: Baselines) -> str:
    """The variances of the chosen and of the named baselines, and the two-state example, in lines."""
    n = data.numbers
    plain, with_baselines = (data.states.standard_deviation(which) for which in (False, True))
    return "\n".join(
        [
            f"p = {data.p:g}, b = {data.baseline:g}, mean of {data.samples} samples: variance {n['variance']:.5f}, "
            f"simulated {n['simulated_variance']:.5f}",
            f"no baseline {n['variance_without']:.5f} | b = p, the mean {n['variance_mean']:.5f} | "
            f"b = {n['best_baseline']:.2f}, the best {0:.5f}",
            f"exact gradient {n['gradient']:.4f}, mean of the simulated estimates {n['simulated_mean']:.4f}: "
            "a baseline does not move it",
            f"two states: standard deviation of what multiplies the score {plain:.2f} without, "
            f"{with_baselines:.2f} with baselines",
        ]
    )


def draw_baselines(data: Baselines) -> Figure:
    """The variance against the baseline, the simulated estimates, and the two states."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _draw_parabola(left, data)
    values, counts = data.estimates.round(decimals=6).unique(return_counts=True)
    apart = values.diff().min().item() if len(values) > 1 else 0.0
    middle.bar(values, counts, width=max(0.8 * apart, 0.01), color=COLOURS[4], edgecolor="black", linewidth=0.5)
    middle.axvline(data.numbers["gradient"], color="black", linewidth=2, label="exact gradient p (1 - p)")
    middle.axvline(data.numbers["simulated_mean"], color=COLOURS[1], linewidth=2, linestyle="--", label="their mean")
    middle.set(xlabel="estimate of the gradient", ylabel=f"of {len(data.estimates):,} estimates")
    middle.set_xlim(min(-0.3, values.min().item() - 0.02), max(0.7, values.max().item() + 0.02))
    middle.set_ylim(0, 1.35 * counts.max().item())
    middle.set_title(f"estimates, each the mean of {data.samples} samples", fontsize=10)
    middle.legend(frameon=False, fontsize=8, loc="upper right")
    _draw_states(right, data)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_parabola(axes: Axes, data: Baselines) -> None:
    p, b, n = data.p, data.baseline, data.samples
    grid = torch.linspace(min(-0.3, b), max(1.3, b), 201, dtype=torch.float64)
    axes.plot(grid, bernoulli_variance(p, grid, n), color=COLOURS[0], label="closed form")
    for place, marker, label in (
        (0.0, "^", "none, b = 0"),
        (p, "o", "the mean, b = p"),
        (1 - p, "*", "the best, b = 1 - p"),
    ):
        axes.plot(
            place,
            bernoulli_variance(p, place, n),
            marker,
            color=COLOURS[0],
            markersize=11 if marker == "*" else 7,
            label=label,
        )
    axes.plot(
        b,
        data.numbers["variance"],
        "D",
        color=COLOURS[1],
        markersize=12,
        markerfacecolor="none",
        label=f"chosen, b = {b:g}",
    )
    axes.plot(
        b, data.numbers["simulated_variance"], "x", color="black", markersize=9, markeredgewidth=2, label="simulated"
    )
    axes.set(xlabel="baseline b", ylabel=f"variance, mean of {n} samples")
    axes.set_title(f"p = {p:g}", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="best" if p == 0.5 else "upper left" if p > 0.5 else "upper right")


def _draw_states(axes: Axes, data: Baselines) -> None:
    for row, with_baselines in enumerate((True, False)):
        for k, values in enumerate(data.states.deltas(with_baselines).reshape(2, 2)):
            height = [row + 0.14 * (k - 0.5)] * 2
            axes.plot(
                values, height, MARKERS[k], color=COLOURS[k], markersize=9, label=None if row else f"state {'AB'[k]}"
            )
    plain, less = (data.states.standard_deviation(which) for which in (False, True))
    a, b = data.states.baselines
    axes.set_yticks([0, 1], [f"minus {a:g} in A,\n{b:g} in B", "reward"])
    axes.axvline(0, color="grey", linewidth=1, linestyle=":")
    axes.set(xlabel="what multiplies the score", ylim=(-0.5, 1.5))
    axes.set_title(f"two states: spread {plain:.2f}, then {less:.2f}", fontsize=10)
    axes.legend(frameon=False, loc="center", fontsize=8)


class BaselineLab(Panel):
    """Slide p and b; see the variance of the estimate in closed form and simulated. And the two-state example."""

    def __init__(self) -> None:
        super().__init__(
            {
                "p": slider("p, of action 1", 0.5, 0.02, 0.98, 0.02),
                "baseline": slider("baseline b", 0.0, -1.0, 2.0, 0.05),
                "samples": slider("samples an estimate", 10, 1, 50, 1),
                "baseline_a": slider("two states: b in A", 10.0, 0.0, 12.0, 0.5),
                "baseline_b": slider("two states: b in B", 1.0, 0.0, 12.0, 0.5),
            }
        )

    def compute(self, **values: Any) -> Baselines:
        """See `toyrl.labs.compute_baselines`."""
        return compute_baselines(**values)

    def draw(self, data: Baselines) -> Figure:
        """See `draw_baselines`."""
        return draw_baselines(data)

    def describe(self, data: Baselines) -> str:
        """See `describe_baselines`."""
        return describe_baselines(data)


# ---- importance-ratio lab ------------------------------------------------------------------------------------


def capped(data: Drift, method: str) -> torch.Tensor:
    """Which tokens keep a gradient of less weight than A times their own ratio: CISPO's cap, (tokens,)."""
    full = data.advantage * data.ratio
    return (method == "cispo") & (data.weights[method] - full).abs().gt(1e-9)


def describe_drift(data: Drift) -> str:
    """A table: each token's ratio, and its weight by method, in lines."""
    lines = [
        f"A = {data.advantage:g}; clip {1 - data.cliprange[0]:g} to {1 + data.cliprange[1]:g}; "
        f"sequence ratio s {data.sequence_ratio:.2f}",
        f"{'token':10}{'ratio w':>8}" + "".join(f"{name:>9}" for name in data.weights),
    ]
    for t, (token, _, _) in enumerate(TOKENS):
        row = "".join(
            f"{'masked' if data.masked[name][t] else format(weight[t].item(), '+.2f'):>9}"
            for name, weight in data.weights.items()
        )
        lines.append(f"{token:10}{data.ratio[t].item():8.2f}{row}")
    return "\n".join(lines)


def draw_drift(data: Drift) -> Figure:
    """Draw each token's ratio, and its weight by method: a cross where it is masked, hatching where it is capped."""
    figure = Figure(figsize=(11, 5.2))
    figure.subplots_adjust(left=0.06, right=0.99, top=0.94, bottom=0.2, hspace=0.2, wspace=0.25)
    panels = figure.subplots(2, 3, sharex=True).flatten()
    _draw_ratios(panels[0], data)
    full = data.advantage * data.ratio
    ends = torch.stack([*data.weights.values(), full, torch.zeros_like(full)])
    for k, (method, weights) in enumerate(data.weights.items()):
        axes = panels[k + 1]
        bars = axes.bar(range(len(TOKENS)), weights, color=COLOURS[k], edgecolor="black")
        less, masked = capped(data, method), data.masked[method]
        for bar, is_less in zip(bars, less.tolist(), strict=True):
            bar.set_hatch("///" if is_less else "")
        axes.plot(full, "o", color="black", markerfacecolor="white", markersize=5)
        axes.plot(
            masked.nonzero()[:, 0],
            torch.zeros(int(masked.sum())),
            "x",
            color="black",
            markersize=10,
            markeredgewidth=2.5,
        )
        axes.axhline(0, color="black", linewidth=1)
        axes.set_ylim(1.1 * ends.min().item() - 0.1, 1.1 * ends.max().item() + 0.1)
        counts = [
            f"{n} of {len(TOKENS)} {what}"
            for n, what in ((int(masked.sum()), "masked"), (int(less.sum()), "capped"))
            if n
        ]
        axes.set_title(METHOD_NAMES[method] + "".join(f" ({count})" for count in counts), fontsize=10)
    for axes in panels:
        axes.set_xticks(range(len(TOKENS)), [token for token, _, _ in TOKENS], rotation=45, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (panels[1], panels[3]):
        axes.set_ylabel("weight of grad log π")
    panels[0].set_ylabel("w")
    marks = [
        Line2D([], [], marker="o", color="black", markerfacecolor="white", linestyle="", label="A w, for comparison"),
        Line2D(
            [],
            [],
            marker="x",
            color="black",
            markersize=9,
            markeredgewidth=2.5,
            linestyle="",
            label="masked: no gradient",
        ),
        Patch(facecolor="white", edgecolor="black", hatch="///", label="capped: gradient kept, weight cut"),
    ]
    figure.legend(handles=marks, loc="lower center", ncols=3, frameon=False)
    return figure


def _draw_ratios(axes: Axes, data: Drift) -> None:
    low, high = 1 - data.cliprange[0], 1 + data.cliprange[1]
    axes.bar(range(len(TOKENS)), data.ratio, color="0.75", edgecolor="black")
    axes.axhspan(low, high, color=COLOURS[5], alpha=0.35, linewidth=0, label=f"clip range, {low:g} to {high:g}")
    axes.axhline(1, color="black", linewidth=1)
    axes.axhline(
        data.sequence_ratio, color=COLOURS[1], linestyle="--", label=f"sequence ratio s = {data.sequence_ratio:.2f}"
    )
    axes.set_ylim(0, max(2.2, 1.5 * data.ratio.max().item()))
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.set_title("ratio w = p now / p when sampled", fontsize=10)


class RatioLab(Panel):
    """Let the policy drift from the one that sampled; see what each loss does to each token's weight."""

    def __init__(self) -> None:
        super().__init__(
            {
                "advantage": slider("advantage A", 1.0, -2.0, 2.0, 0.25),
                "drift": slider("all tokens drift", 0.0, -1.5, 1.5, 0.1),
                "spread": slider("tokens differ", 0.5, -1.5, 1.5, 0.1),
                "lower": number("clip, lower side", 0.2),
                "upper": number("clip, upper side", 0.2),
            }
        )

    def compute(self, **values: Any) -> Drift:
        """See `toyrl.labs.compute_drift`."""
        return compute_drift(**values)

    def draw(self, data: Drift) -> Figure:
        """See `draw_drift`."""
        return draw_drift(data)

    def describe(self, data: Drift) -> str:
        """See `describe_drift`."""
        return describe_drift(data)
