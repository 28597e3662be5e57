"""The demo in short: what it prints, that its last line is the JSON that others read, and that it trains."""

from __future__ import annotations

import json
import os
import signal

import pytest

from grpo.cli import main
from grpo.data import Problem
from grpo.demo import DemoSettings, demo, one_of_each_level, table
from grpo.trainer import Trainer


def test_demo_prints_a_table_three_questions_and_json(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["demo", "--steps", "2", "--run-dir", str(folder), "--threads", "2"]) == 0
    printed = capsys.readouterr().out
    summary = json.loads(printed.strip().splitlines()[-1])
    assert set(summary) >= {"accuracy_before", "accuracy_after", "format_after", "steps", "seconds", "run_dir"}
    assert summary["steps"] == 2
    assert summary["run_dir"] == str(folder)
    assert summary["accuracy_before"] <= 0.25
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.05  # two steps are worth about 20 points
    assert "accuracy [95% interval]" in printed
    assert printed.count("before: <think>") == printed.count("after:  <think>") == 3
    assert (folder / "figures" / "metrics.png").is_file()


def test_one_of_each_level():
    problems = [Problem(str(i), "#### 1", "1", level) for i, level in enumerate("2132")]
    assert [p.question for p in one_of_each_level(problems)] == ["1", "0", "2"]


def test_table():
    row = {"accuracy": 0.5, "accuracy_low": 0.44, "accuracy_high": 0.56, "format": 0.9, "mean_tokens": 20.0}
    lines = table(row, row | {"accuracy": 0.75}).splitlines()
    assert lines[1].split()[3:] == ["0.500", "[0.44,", "0.56]", "0.750", "[0.44,", "0.56]"]


def test_bad_steps_cost_nothing(tmp_path):
    with pytest.raises(ValueError, match="steps=0"):
        demo(DemoSettings(steps=0, run_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_a_demo_that_was_stopped_says_what_it_shows(tmp_path, capsys, monkeypatch):
    do_step = Trainer.do_step

    def stop_after(self):
        os.kill(os.getpid(), signal.SIGINT)
        return do_step(self)

    monkeypatch.setattr(Trainer, "do_step", stop_after)
    assert demo(DemoSettings(steps=9, run_dir=str(tmp_path / "run")))["steps"] == 1
    assert "stopped after step 1 of 9; the last validation was at step 0" in capsys.readouterr().out
