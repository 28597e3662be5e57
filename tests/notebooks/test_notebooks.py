"""The notebooks as documents: outputs committed, aims first, small cells; and every folded solution passes its check."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONGEST_CELL = 25


def cells(path: Path, kind: str) -> list[dict]:
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == kind]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def exercises(path: Path) -> list[tuple[str, str, str]]:
    """(setup, solution, check) of every exercise: what stands before it, the folded code, the cell that checks it."""
    found, setup, check = [], [], None
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code" and "check" in tags:
            check = source(cell)
        elif cell["cell_type"] == "code" and "exercise" not in tags:
            setup.append(source(cell))
        elif cell["cell_type"] == "markdown" and check is not None:
            solution = re.search(r"<summary>Solution</summary>.*?```python\n(.*?)```", source(cell), re.DOTALL)
            if solution:
                found.append(("\n".join(setup), solution.group(1), check))
                check = None
    return found


def definitions(code: str) -> str:
    """Imports, functions and constants of some code: what a solution may use, without running the notebook again."""
    kept = []
    for node in ast.parse(code).body:
        is_constant = isinstance(node, ast.Assign) and not any(
            isinstance(n, (ast.Call, ast.Name)) for n in ast.walk(node.value)
        )
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)) or is_constant:
            kept.append(ast.unparse(node))
    return "\n".join(kept)


EXERCISES = [
    pytest.param(*exercise, id=f"{path.stem}-{number}")
    for path in NOTEBOOKS
    for number, exercise in enumerate(exercises(path), start=1)
]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_the_rules(path):
    text = path.read_text(encoding="utf-8")
    code, prose = cells(path, "code"), cells(path, "markdown")
    assert any(cell["outputs"] for cell in code), "committed without outputs: nbval would compare nothing"
    assert not [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
    assert not [o for cell in code for o in cell["outputs"] if o.get("name") == "stderr"], "warnings in the outputs"
    assert all(len(source(cell).splitlines()) <= LONGEST_CELL for cell in code)
    opening = source(prose[0])
    assert opening.startswith("# ")
    for word in ("learn", "need", "minute"):
        assert word in opening.lower() or (word == "minute" and "second" in opening.lower()), (
            f"{word!r} in the first cell"
        )
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run it from top to bottom"
    assert code[0]["metadata"].get("tags") == ["setup"], (
        "the cell that installs the project where it is missing comes first"
    )
    assert source(code[0]) == source(cells(NOTEBOOKS[0], "code")[0])
    assert "widget-view+json" not in text, "a live view: run tests/notebooks/strip_widgets.py on it"
    assert not re.search(r"(?<![\w.])/(?:work|root|home|tmp)/", text), "a path of one machine"
    assert len(text) < 2_000_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_exercises_are_there_and_not_done(path):
    checks = [cell for cell in cells(path, "code") if "check" in cell["metadata"].get("tags", [])]
    assert checks
    assert len(exercises(path)) == len(checks), "every check is followed by a folded solution"
    for cell in checks:
        printed = "".join("".join(o.get("text", "")) for o in cell["outputs"])
        assert printed
        assert not printed.startswith("Right"), "the stub must not be the solution"


@pytest.mark.parametrize(("setup", "solution", "check"), EXERCISES)
def test_a_solution_passes_its_check(setup, solution, check, capsys):
    space: dict = {}
    exec(definitions(setup), space)
    exec(solution, space)
    exec(check, space)
    assert capsys.readouterr().out.startswith("Right")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_closes_with_a_summary_reading_and_the_next_one(path):
    prose = [source(cell) for cell in cells(path, "markdown")]
    end = "\n".join(prose[-3:])
    assert re.search("^## Summary$", end, re.MULTILINE), "no summary"
    assert re.search(r"^\*\*Reading\.\*\*", end, re.MULTILINE), "nothing to read"
    assert re.search(r"(19|20)\d\d", end), "reading without years"
    after = NOTEBOOKS[NOTEBOOKS.index(path) + 1 :]
    assert not after or f"({after[0].name})" in prose[-1], "no link to the next notebook"


def test_links_between_notebooks_lead_somewhere():
    for path in NOTEBOOKS:
        for cell in cells(path, "markdown"):
            for target in re.findall(r"\]\(([^)#\s]+)\)", source(cell)):
                if "://" not in target:
                    assert (path.parent / target).exists(), f"{path.name}: {target}"
