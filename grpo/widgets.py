"""The widgets of the language-model half: GroupLab, RolloutReader, RunComparer. They need the extra "lab" (ipywidgets).

Each is a shell on plain functions: `grpo.group_lab`, `grpo.reader`, `grpo.compare`.

    >>> lab = GroupLab()                         # the last line of a cell shows it
    >>> lab.set(rewards="1 0 0 0")               # as by hand
    >>> [round(a, 2) for a in lab.data.rows[1].advantages]
    [1.5, -0.5, -0.5, -0.5]
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo.compare import METRICS, Comparison, compare, figure, load_cells, table
from grpo.group_lab import Group, GroupRow, compute_group, parse_rewards
from grpo.panel import Panel, choice, text, widgets
from grpo.plots import COLOURS
from grpo.reader import SHADES, Page, page_html, page_text, read_page
from grpo.runs import RunDir

CROWDED = 10
"""From more bars than this on, the values at them are written upright."""
MOST_ROWS = 10
"""Of the list of cells; of more it shows a part at a time."""

# ---- group lab -----------------------------------------------------------------------------------------------


def describe_group(group: Group) -> str:
    """A table: rewards, and the advantages of each formula, in lines."""
    std = "none (one reward)" if group.std is None else f"{group.std:.3g}"
    lines = [
        f"rewards: {' '.join(f'{r:g}' for r in group.rewards)};  mean μ {group.mean:.3g}, standard deviation s {std}"
    ]
    for row in group.rows:
        values = "" if row.advantages is None else " ".join(f"{a:+.2f}" if a else "0" for a in row.advantages)
        lines.append(f"{', '.join(row.names):20} {row.formula:23} {values}{f'  ({row.note})' if row.note else ''}")
    return "\n".join(lines)


def draw_group(group: Group) -> Figure:
    """The rewards, and the advantages of each formula: bars up, hatched bars down, values written at them."""
    drawn = Figure(figsize=(11, 5.2))
    drawn.subplots_adjust(left=0.05, right=0.99, top=0.94, bottom=0.09, hspace=0.42, wspace=0.17)
    panels = drawn.subplots(2, 3).flatten()
    _draw_bars(panels[0], group.rewards, "0.8")
    std = "" if group.std is None else f", s = {group.std:.3g}"
    panels[0].set_title(f"rewards r: μ = {group.mean:.3g}{std}", fontsize=10)
    for k, row in enumerate(group.rows):
        _draw_row(panels[k + 1], row, COLOURS[k])
    return drawn


def _draw_row(axes: Axes, row: GroupRow, colour: str) -> None:
    axes.set_title(f"{', '.join(row.names)}: {row.formula}", fontsize=10)
    if row.advantages is None:
        axes.set(xticks=[], yticks=[])
        why = textwrap.fill(row.note, 40)
        axes.text(0.5, 0.5, why, ha="center", va="center", fontsize=9, transform=axes.transAxes)
        return
    _draw_bars(axes, row.advantages, colour)
    axes.text(0.5, 0.98, row.note, ha="center", va="top", style="italic", fontsize=9, transform=axes.transAxes)


def _draw_bars(axes: Axes, values: list[float], colour: str) -> None:
    places, crowded = range(1, len(values) + 1), len(values) > CROWDED
    for bar, value in zip(axes.bar(places, values, color=colour, edgecolor="black"), values, strict=True):
        bar.set_hatch("///" if value < 0 else "")
        bar.set_alpha(0.55 if value < 0 else 1.0)
    for place, value in zip(places, values, strict=True):
        up = value >= 0
        label = f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"
        axes.annotate(
            label, (place, value), (0, 2 if up else -2), textcoords="offset points", ha="center",
            va="bottom" if up else "top", fontsize=8, rotation=90 if crowded else 0,
        )  # fmt: skip
    axes.axhline(0, color="black", linewidth=1)
    low, high = min(0.0, *values), max(0.0, *values)
    room = (high - low) or 1.0
    axes.set_ylim(low - (0.35 if crowded else 0.2) * room, high + 0.4 * room)
    axes.set_xticks(places)
    axes.tick_params("x", labelsize=8)
    axes.set_xlabel("response")
    axes.spines[["top", "right"]].set_visible(False)


class GroupLab(Panel):
    """Type the rewards of a group, or click responses right and wrong; see what every estimator makes of it."""

    def __init__(self, rewards: str = "1 0 0 1 0 0 0 0") -> None:
        self.buttons = widgets.Box(layout={"flex_flow": "row wrap", "width": "100%"})
        super().__init__({"rewards": text("rewards", rewards)}, [self.buttons])

    def compute(self, rewards: str) -> Group:
        """See `grpo.group_lab.compute_group`."""
        return compute_group(parse_rewards(rewards))

    def draw(self, data: Group) -> Figure:
        """See `draw_group`."""
        return draw_group(data)

    def describe(self, data: Group) -> str:
        """See `describe_group`."""
        return describe_group(data)

    def refresh(self) -> None:
        """As any panel, and a button a response: the rewards that are shown."""
        super().refresh()
        rewards = self.data.rewards if hasattr(self, "data") else []
        if len(self.buttons.children) != len(rewards):
            self.buttons.children = [self._button(number) for number in range(len(rewards))]
        for number, (button, reward) in enumerate(zip(self.buttons.children, rewards, strict=True), start=1):
            button.description = f"{number}: {({1.0: 'right ✓', 0.0: 'wrong ✗'}).get(reward, f'{reward:g}')}"

    def flip(self, number: int) -> None:
        """Make a response (0 is the first) wrong if it is paid anything, else right."""
        rewards = list(self.data.rewards)
        rewards[number] = 0.0 if rewards[number] else 1.0
        self.controls["rewards"].value = " ".join(f"{r:g}" for r in rewards)

    def _button(self, number: int) -> Any:
        button = widgets.Button(layout={"width": "8em"}, tooltip="turn it round")
        button.on_click(lambda _: self.flip(number))
        return button


# ---- rollout reader ------------------------------------------------------------------------------------------


class RolloutReader(Panel):
    """Page through the recorded rollouts of a run: question, responses, shaded tokens, grade and why.

    run_dir: the directory of a run. tokenizer: the run's, to show tokens; without it words are shown.
    """

    def __init__(self, run_dir: str | Path, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer
        back, on = widgets.Button(description="◀ back"), widgets.Button(description="on ▶")
        back.on_click(lambda _: self.turn(-1))
        on.on_click(lambda _: self.turn(1))
        super().__init__(
            {
                "run_dir": text("run directory", str(run_dir)),
                "page": widgets.IntText(1, description="page", continuous_update=False),
                "shade": choice("shade tokens by", SHADES),
            },
            [back, on],
        )

    def compute(self, run_dir: str, page: int, shade: str) -> tuple[Page, str]:
        """The page, and what to shade by; see `grpo.reader.read_page`."""
        return read_page(run_dir, page, self.tokenizer), shade

    def draw(self, data: tuple[Page, str]) -> str:
        """See `grpo.reader.page_html`."""
        return page_html(*data)

    def describe(self, data: tuple[Page, str]) -> str:
        """See `grpo.reader.page_text`."""
        return page_text(data[0])

    def turn(self, pages: int) -> None:
        """Go so many pages on, or back, stopping at the first and the last."""
        page = self.data[0]
        self.controls["page"].value = min(max(page.number + pages, 1), page.pages)


# ---- run comparer --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """What `compute_comparison` returns."""

    name: str
    """Of the sweep's folder."""
    cells: Mapping[str, Mapping[int, RunDir]]
    metric: str
    reference: str
    rows: list[Comparison]


def compute_comparison(folder: str | Path, metric: str, cells: tuple[str, ...], reference: str) -> Compared:
    """Compare cells of a sweep with the reference, which joins them if it is not among them; see `grpo.compare.compare`.

    Raises FileNotFoundError for a folder without ended runs; ValueError for a cell that is not there, or none at all.
    """
    found = load_cells(folder)
    missing = [name for name in (*cells, reference) if name not in found]
    if missing:
        raise ValueError(f"cells: no ended run of {missing[0]}; there are {', '.join(found)}")
    if not cells:
        raise ValueError("cells: none is chosen; choose at least one")
    chosen = {name: runs for name, runs in found.items() if name in cells or name == reference}
    return Compared(Path(folder).name, chosen, metric, reference, compare(chosen, metric, reference))


class RunComparer(Panel):
    """Compare the cells of a sweep: curves and final values with intervals over seeds, and paired differences."""

    def __init__(self, folder: str | Path) -> None:
        self._listed: list[str] = []
        super().__init__(
            {
                "folder": text("folder of a sweep", str(folder)),
                "metric": choice("metric", [(label, name) for name, (_, label) in METRICS.items()]),
                "cells": widgets.SelectMultiple(options=[], description="cells"),
                "reference": widgets.Dropdown(options=[], description="compared with"),
            }
        )

    def refresh(self) -> None:
        """As any panel; for another folder its cells are listed first, all of them chosen."""
        self._list_cells()
        super().refresh()

    def _list_cells(self) -> None:
        try:
            names = list(load_cells(self.controls["folder"].value))
        except (ValueError, OSError):
            return  # compute says so
        if names != self._listed:
            self._listed, setting, self._setting = names, self._setting, True
            cells, reference = self.controls["cells"], self.controls["reference"]
            cells.options, cells.value, cells.rows = names, tuple(names), min(len(names), MOST_ROWS)
            reference.options, reference.value = names, names[0]
            self._setting = setting

    def compute(self, folder: str, metric: str, cells: tuple[str, ...], reference: str) -> Compared:
        """See `compute_comparison`."""
        return compute_comparison(folder, metric, cells, reference)

    def draw(self, data: Compared) -> Figure:
        """See `grpo.compare.figure`."""
        return figure(data.cells, data.metric, data.name)

    def describe(self, data: Compared) -> str:
        """See `grpo.compare.table`."""
        return table(data.rows, data.reference)
