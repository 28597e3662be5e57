"""What the README tells people to run, run: its scripts, in fewer steps; its options, known to the command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpo.checks.command import CheckSettings
from grpo.compare import PlotSettings
from grpo.config import TrainSettings
from grpo.plan import PlanSettings
from grpo.sweep import SweepSettings

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_own_reward_script(capsys):
    script = SCRIPTS[0]
    lines = script.strip().splitlines()
    assert len([line for line in lines if line.strip()]) <= 30
    imports = [line for line in lines if "import" in line]
    assert [line.split()[:2] for line in imports] == [["import", "torch"], ["from", "grpo"]]
    assert "range(20)" in script
    space: dict = {}
    exec("from grpo import load_model\nbefore = load_model('tiny')[0]", space)
    exec(script.replace("range(20)", "range(2)"), space)
    assert capsys.readouterr().out.startswith("step  0  reward 0.")
    moved = [not b.equal(a) for b, a in zip(space["before"].parameters(), space["model"].parameters(), strict=True)]
    assert all(moved)
    response = " x </think> <answer> 7 </answer>"
    assert space["short_and_right"](response, "7")["reward"] == pytest.approx(1 - len(response) / 1000)
    assert space["short_and_right"](response, "8")["reward"] == 0


def test_the_train_script(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(SCRIPTS[1].replace("steps=5, validate_every=5", "steps=1, validation_questions=16"), {})
    assert 0 <= float(capsys.readouterr().out.strip()) <= 1
    assert (tmp_path / "runs" / "mine" / "metrics.jsonl").is_file()


def test_options_exist():
    commands = (TrainSettings, PlanSettings, SweepSettings, PlotSettings, CheckSettings)
    fields = {name.replace("_", "-") for command in commands for name in command.__dataclass_fields__}
    fields |= {"preset", "resume", "help", "model", "data", "prompt", "data-dir", "strict", "torch-backend"}
    fields |= {"logprobs-mode", "weight-transfer-config", "no-enable-chunked-prefill"}  # of vllm serve
    mentioned = set(re.findall(r"--([a-z][a-z-]+)", README))
    assert mentioned
    assert mentioned <= fields
