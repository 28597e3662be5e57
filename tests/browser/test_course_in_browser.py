"""The course in a real browser: notebooks run to the end, widgets answer hands, exercises answer answers.

The short form (`make browser`) runs two notebooks; `make browser ARGS="-m browser"` all of them.
"""

from __future__ import annotations

import re
import time

import nbformat
import pytest
from lab_page import ROOT, THEMES, Notebook, Widget
from nbformat.v4 import new_code_cell, new_notebook

from grpo.runs import RunDir

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
SHORT = ("02_policy_inside", "03_policy_gradient")
NOTEBOOKS = [
    pytest.param(path.name, id=path.stem, marks=() if path.stem in SHORT else pytest.mark.every_notebook)
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
]
READABLE = 4.5
"""Contrast of text to its background that WCAG 2 asks for (level AA)."""


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_to_the_end(opened, name):
    notebook = opened(name)
    committed = [cell for cell in nbformat.read(ROOT / "notebooks" / name, 4).cells if cell.cell_type == "code"]
    assert notebook.run_all(seconds=600) == len(committed)
    outputs = notebook.page.locator(".jp-CodeCell", has=notebook.page.locator(".jp-OutputArea-output"))
    assert outputs.count() == sum(bool(cell.outputs) for cell in committed)
    for cell in notebook.page.locator(".jp-CodeCell", has=notebook.page.locator(".widget-vbox")).all():
        assert Widget(cell).picture()


def test_an_exercise_says_what_is_wrong_and_when_it_is_right(opened):
    notebook = opened("02_policy_inside.ipynb")
    page = notebook.page
    notebook.run_all(seconds=300)
    exercise, check = notebook.cell("def response_log_prob"), notebook.cell("check_response_log_prob(")
    says = check.locator(".jp-OutputArea-output")
    assert says.text_content().startswith("Not done yet")
    folded = page.locator(".jp-MarkdownCell details", has=page.locator("summary", has_text="Solution")).first
    solution = folded.locator("pre")
    assert not solution.is_visible()
    folded.locator("summary").click()
    right = solution.inner_text()
    for code, words in ((right.replace(".sum(dim=-1)", ""), "One number a token"), (right, "Right")):
        notebook.write(exercise, code)
        notebook.run_selected()
        notebook.run_selected()
        says.get_by_text(re.compile(words)).wait_for()


# ---- widgets -------------------------------------------------------------------------------------------------

WIDGETS = {
    "RewardLab": (
        "RewardLab()",
        [
            ("reward", "inclusion and order"),
            ("delta", "normalized"),
            ("loss", "clipped"),
            ("clip range", 0.1),
            ("inner steps", -30),
            ("initial scale", -40),
            ("entropy bonus, to 0", 0.1),
            ("KL penalty", 0.05),
            ("seeds", -40),
            ("Pin this setting", None),
            ("Take the pin out", None),
        ],
        ("clip range", -1, "cliprange"),
    ),
    "BaselineLab": (
        "BaselineLab()",
        [
            ("p, of action 1", 30),
            ("baseline b", 30),
            ("samples an estimate", 30),
            ("two states: b in A", -30),
            ("two states: b in B", 30),
        ],
        None,
    ),
    "RatioLab": (
        "RatioLab()",
        [
            ("advantage A", -60),
            ("all tokens drift", 30),
            ("tokens differ", 30),
            ("clip, lower side", 0.3),
            ("clip, upper side", 0.4),
        ],
        ("clip, lower side", -1, "cliprange"),
    ),
    "GroupLab": (
        "GroupLab('1 0')",
        [("1: right ✓", None), ("2: wrong ✗", None), ("rewards", "1 0 0 0.5")],
        ("rewards", "1 zero", "'zero' is no number"),
    ),
    "RolloutReader": (
        "RolloutReader('../runs/a/seed1', load_model('tiny')[1])",
        [
            ("on ▶", None),
            ("◀ back", None),
            ("page", 3),
            ("shade tokens by", "entropy"),
            ("run directory", "../runs/b/seed1"),
        ],
        ("page", 9, "there are pages 1 to 3"),
    ),
    "RunComparer": (
        "RunComparer('../runs')",
        [
            ("metric", "mean training reward"),
            ("cells", ["a", "b"]),
            ("compared with", "b"),
            ("folder of a sweep", "../others"),
        ],
        ("folder of a sweep", "nowhere", "nowhere"),
    ),
}


@pytest.fixture(scope="session")
def runs(lab):
    """Two small sweeps with rollouts, beside the notebooks, for the widgets that read runs."""
    for folder, cells in {"runs": "abc", "others": "xy"}.items():
        for k, cell in enumerate(cells):
            for seed in (1, 2, 3):
                write_run(lab.root / folder / cell / f"seed{seed}", 0.5 + 0.1 * k + 0.05 * seed)
    return lab.root


def write_run(folder, end):
    run = RunDir(folder)
    run.create({"prompt": "tiny_r1_zero", "reward_fn": "grpo.grading.r1_zero_reward_fn", "seed": 1})
    run.append("metrics", [{"kind": "validation", "step": step, "accuracy": end * step / 10} for step in (0, 5, 10)])
    run.append("metrics", [{"kind": "train", "step": step, "reward": end / 2 + step / 50} for step in (1, 5, 10)])
    rows = [
        {
            "step": step,
            "question": f"Ann has {step} books and finds 2. How many are there?",
            "ground_truth": str(step + 2),
            "response": f" </think> <answer> {answer} </answer>",
            "finish_reason": "stop",
            "token_ids": [5, 6, 7, 8],
            "token_entropy": [0.1, 0.9, 0.02, round(end, 3)],
            "reward": float(answer == step + 2),
            "advantage": 0.71 if answer == step + 2 else -0.71,
        }
        for step in (1, 2, 3)
        for answer in (step + 2, step + 5)
    ]
    run.append("rollouts", rows)
    (folder / "done.json").write_text("{}", encoding="utf-8")


IMPORTS = """
from grpo.models import load_model
from grpo.widgets import *
from toyrl.widgets import *

labs = {}
"""
STALE = """[name for name, lab in labs.items()
 if not lab.problem and lab.state != {n: c.value for n, c in lab.controls.items()}]"""


@pytest.fixture(scope="module")
def gallery(lab, runs, new_page):
    """A notebook with all six widgets, run. Its last cell says which of them do not show what their controls say."""
    codes = [IMPORTS, *(f"labs[{name!r}] = {code}\nlabs[{name!r}]" for name, (code, _, _) in WIDGETS.items()), STALE]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = new_notebook(cells=[new_code_cell(code.strip()) for code in codes], metadata=kernel)
    nbformat.write(notebook, lab.root / "notebooks" / "gallery.ipynb")
    notebook = Notebook(new_page(), lab, "gallery.ipynb")
    notebook.run_all(seconds=120)
    yield notebook
    notebook.close()


def answer(widget, shown, before, seconds=60):
    """Wait until `shown()` is another than before; returns after how many seconds it was."""
    start = time.perf_counter()
    while shown() == before:
        assert time.perf_counter() - start < seconds, f"the picture stays; the message line says: {widget.message()!r}"
        time.sleep(0.05)
    return time.perf_counter() - start


@pytest.mark.parametrize("name", WIDGETS)
def test_every_control_changes_the_picture_and_all_is_legible(gallery, name, tmp_path):
    widget = Widget(gallery.cell(f"= {name}("))
    _, moves, wrong = WIDGETS[name]
    assert sorted(widget.labels()) == sorted(label for label, _ in moves)
    for label, value in moves:
        shown = (
            widget.words if label == "compared with" else widget.picture
        )  # it changes the differences, not the curves
        before = shown()
        widget.move(label, value)
        print(f"{name}, {label}: {answer(widget, shown, before):.2f} s")
        assert widget.message() == ""
    gallery.run_until(gallery.cell("name for name"), "[]")
    if wrong:
        label, value, words = wrong
        before = widget.picture()
        widget.move(label, value)
        widget.panel.get_by_text(words).wait_for()
        assert "last setting that worked" in widget.message()
        assert widget.picture() == before
    for theme in reversed(THEMES):  # the last is the first again
        gallery.wear(theme)
        widget.panel.screenshot(path=tmp_path / f"{name}, {theme}.png")
        contrasts = widget.contrasts()
        assert len(contrasts) > len(moves)
        assert not [(text, round(contrast, 2)) for text, contrast in contrasts if contrast < READABLE]
