"""Reading the recorded rollouts of a run, group by group: what the rollout reader shows, as plain data and HTML."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo.grading import question_only_reward_fn, r1_zero_reward_fn
from grpo.grading_steps import GradingStep, grading_steps
from grpo.prompts import load_prompt
from grpo.runs import RunDir

SHADES = ("advantage", "entropy")


@dataclass(frozen=True)
class ReadRollout:
    """One recorded response."""

    pieces: list[str]
    """Its tokens as text; without a tokenizer its words. Joined they are the response."""
    entropy: list[float] | None
    """Nats a token, where the run recorded them."""
    reward: float
    advantage: float
    finish_reason: str
    steps: list[GradingStep] | None
    """The steps of the grader; None where the run was paid by a reward function of one's own."""


@dataclass(frozen=True)
class Page:
    """The recorded rollouts of one question in one step."""

    number: int
    pages: int
    step: int
    question: str
    ground_truth: str
    prompt: str | None
    """The question in its template; None where the template's file is not at hand."""
    rollouts: list[ReadRollout]


def read_page(run_dir: str | Path, number: int = 1, tokenizer: Any = None) -> Page:
    """Read the rollouts of one question from a run directory: page `number`, of 1 to the number of groups recorded.

    tokenizer: the run's (`load_model(name)[1]`); without it a response is shown word by word. A row may hold
    "token_entropy", one number a token of "token_ids".
    Raises FileNotFoundError where there are no recorded rollouts, ValueError for a page that is not there.
    """
    run = RunDir(run_dir)
    if not (run.file("rollouts").is_file() and run.config_file.is_file()):
        raise FileNotFoundError(
            f"run_dir={str(run_dir)!r} holds no config.json and rollouts.jsonl; give the directory of a run"
        )
    groups = [list(rows) for _, rows in groupby(run.read("rollouts"), key=lambda row: (row["step"], row["question"]))]
    if not 1 <= number <= len(groups):
        raise ValueError(
            f"page={number}: there are pages 1 to {len(groups)}" if groups else f"{run_dir}: no rollouts yet"
        )
    reward_fn = _reward_fn(run)
    rows = groups[number - 1]
    return Page(
        number,
        len(groups),
        rows[0]["step"],
        rows[0]["question"],
        rows[0]["ground_truth"],
        _prompt(run, rows[0]["question"]),
        [_read(row, tokenizer, reward_fn) for row in rows],
    )


def _prompt(run: RunDir, question: str) -> str | None:
    try:
        return load_prompt(run.config["prompt"]).render(question)
    except (KeyError, ValueError, OSError):  # a template of one's own, which stayed where the run was made
        return None


def _reward_fn(run: RunDir) -> Callable[..., Any] | None:
    """The run's reward function, where it is one whose steps are known."""
    module, _, name = str(run.config.get("reward_fn")).rpartition(".")
    function = getattr(import_module(module), name, None) if module == "grpo.grading" else None
    return function if function in (r1_zero_reward_fn, question_only_reward_fn) else None


def _read(row: dict[str, Any], tokenizer: Any, reward_fn: Callable[..., Any] | None) -> ReadRollout:
    return ReadRollout(
        split_tokens(row["token_ids"], tokenizer) if tokenizer else re.findall(r"\s*\S+|\s+$", row["response"]),
        row.get("token_entropy") if tokenizer else None,  # words are not tokens
        row["reward"],
        row["advantage"],
        row["finish_reason"],
        grading_steps(row["response"], row["ground_truth"], reward_fn) if reward_fn else None,
    )


def split_tokens(token_ids: list[int], tokenizer: Any) -> list[str]:
    """The text that each token adds; joined, they are the text of all. A token that ends inside a character adds "".

    Tokens of a byte-level tokenizer may hold part of a character, which only the next ones complete.
    """
    pieces, done = [], ""
    for end in range(1, len(token_ids) + 1):
        text = tokenizer.decode(token_ids[:end])
        if end < len(token_ids) and text.endswith("\ufffd"):
            pieces.append("")
            continue
        pieces.append(text[len(done) :])
        done = text
    return pieces


# ---- HTML ----------------------------------------------------------------------------------------------------

_EDGE = "border-left:1px solid #999999"
_UP, _DOWN, _PLAIN = "0,114,178", "213,94,0", "90,90,90"


def sign(advantage: float) -> str:
    """The advantage with an arrow, so that its sign needs no colour."""
    arrow = "▲" if advantage > 0 else "▼" if advantage < 0 else "○"
    return f"{arrow} {advantage:+.2f}" if advantage else f"{arrow} 0"


def page_html(page: Page, shade: str = "advantage") -> str:
    """Show a page: question, then each response with its advantage, shaded tokens, and the steps of the grader.

    shade: "advantage" (blue and underlined: pushed up; orange and dotted: pushed down; plain: left alone) or "entropy" (the
    darker, the less decided the model was). Raises ValueError for another, and for entropies that were not recorded.
    """
    if shade not in SHADES:
        raise ValueError(f"shade={shade!r} is unknown; choose one of {', '.join(SHADES)}")
    if shade == "entropy" and any(rollout.entropy is None for rollout in page.rollouts):
        raise ValueError(
            "shade='entropy': this run did not record the entropy of its tokens (token_entropy), "
            "or no tokenizer was given to tell the tokens apart"
        )
    blocks = [_rollout_html(n, rollout, shade) for n, rollout in enumerate(page.rollouts, start=1)]
    if page.prompt is not None:
        blocks.insert(0, f"<details><summary>The prompt</summary>{_mono(html.escape(page.prompt))}</details>")
    return (
        f"<div><b>Step {page.step}</b> (page {page.number} of {page.pages})<br>"
        f"<b>Question:</b> {html.escape(page.question)} <b>Right answer:</b> {html.escape(page.ground_truth)}</div>"
        + "".join(blocks)
        + f"<div style='margin-top:8px'><small>{_LEGENDS[shade]}</small></div>"
    )


_LEGENDS = {
    "advantage": "Solid underline, blue: pushed up. Dotted underline, orange: pushed down. Plain: left alone. "
    "The stronger the shade, the larger the advantage.",
    "entropy": "The darker a token, the larger the entropy of what it was sampled from; point at it to read it, in nats.",
}


def _rollout_html(number: int, rollout: ReadRollout, shade: str) -> str:
    spans = []
    for t, piece in enumerate(rollout.pieces):
        text = html.escape(piece).replace("\n", "⏎\n")
        if shade == "entropy":
            value = (rollout.entropy or [])[t] if t < len(rollout.entropy or []) else 0.0
            style = f"{_EDGE};background:rgba({_PLAIN},{0.6 * (1 - math.exp(-value)):.2f})"
            spans.append(f'<span style="{style}" title="{value:.2f} nats">{text}</span>')
        else:
            spans.append(f'<span style="{_advantage_style(rollout.advantage)}">{text}</span>')
    if rollout.steps is None:
        why = "paid by a reward function of its own"
    elif rollout.steps[-1].passed:
        why = f"✓ every step passed: {html.escape(rollout.steps[-1].detail)}"
    else:
        why = f"✗ {html.escape(str(rollout.steps[-1]))}"
    ended = "" if rollout.finish_reason == "stop" else f" · ended by {html.escape(rollout.finish_reason)}"
    head = f"<b>{number}.</b> reward {rollout.reward:g} · advantage <b>{sign(rollout.advantage)}</b> · {why}{ended}"
    return f'<div style="margin-top:8px">{head}{_mono("".join(spans))}</div>'


def _mono(content: str) -> str:
    return f'<div style="font-family:monospace;white-space:pre-wrap;margin-left:1.5em">{content}</div>'


def _advantage_style(advantage: float) -> str:
    if advantage == 0:
        return _EDGE
    colour, line = (_UP, "solid") if advantage > 0 else (_DOWN, "dotted")
    strength = 0.1 + 0.3 * min(abs(advantage) / 2, 1)
    return f"{_EDGE};background:rgba({colour},{strength:.2f});border-bottom:2px {line} rgb({colour})"


def page_text(page: Page) -> str:
    """The page in lines of plain text."""
    lines = [f"step {page.step}, page {page.number} of {page.pages}: {page.question} ({page.ground_truth})"]
    for number, rollout in enumerate(page.rollouts, start=1):
        why = "" if rollout.steps is None else f"  [{rollout.steps[-1]}]"
        lines.append(
            f"{number}. {sign(rollout.advantage):8} reward {rollout.reward:g} {''.join(rollout.pieces)!r}{why}"
        )
    return "\n".join(lines)
