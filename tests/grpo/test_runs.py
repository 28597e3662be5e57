"""Run directories: lines that survive a stop, JSON without NaN, logs cut back to a step."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from grpo.plots import plot_run, series
from grpo.runs import RunDir, RunDirError, read_jsonl, to_line


def test_lines_are_json_and_nan_is_null():
    line = to_line({"a": math.nan, "b": math.inf, "c": 0.1, "d": "é", "e": 3})
    assert line == '{"a": null, "b": null, "c": 0.1, "d": "é", "e": 3}\n'
    assert json.loads(line)["c"] == 0.1


def test_a_last_line_cut_short_is_left_out_and_any_other_is_an_error(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text('{"a": 1}\n{"a": ')
    assert read_jsonl(file) == [{"a": 1}]
    file.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(RunDirError, match=r"x\.jsonl, line 2"):
        read_jsonl(file)


def test_cut_back(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create({"steps": 3})
    run.append("metrics", [{"step": s, "kind": k} for s in range(4) for k in ("train", "validation")])
    run.append("rollouts", [{"step": s} for s in (1, 1, 2, 3)])
    with run.file("metrics").open("a") as file:
        file.write('{"step": 4, "ki')
    run.cut_back(1)
    assert [row["step"] for row in run.read("metrics")] == [0, 0, 1, 1]
    assert [row["step"] for row in run.read("metrics", "train")] == [0, 1]
    assert [row["step"] for row in run.read("rollouts")] == [1, 1]
    assert run.read("timing") == []
    assert not [p for p in run.path.iterdir() if p.suffix == ".tmp"]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(RunDirError, match="holds no run"):
        RunDir(tmp_path / "run").check({})


def test_series_leaves_out_what_was_not_measured():
    rows = [{"step": 1, "x": 0.5}, {"step": 2, "x": None}, {"step": 3}, {"step": 4, "x": 1.5}]
    assert series(rows, "x") == ([1, 4], [0.5, 1.5])


def test_plot_of_a_run_without_rows(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create({})
    assert plot_run(run.path).stat().st_size > 1000


def test_a_response_with_any_character_is_one_line(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create({"steps": 3})
    rows = [{"step": step, "response": "a\u2028b\u2029c\x85d\x0b\x0c\x1c\r\ne"} for step in (1, 2)]
    run.append("rollouts", rows)
    assert run.read("rollouts") == rows
    run.cut_back(1)
    assert run.read("rollouts") == rows[:1]


def test_a_last_line_cut_within_a_character_is_left_out(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_bytes('{"a": 1}\n{"a": "é'.encode()[:-1])
    assert read_jsonl(file) == [{"a": 1}]
    file.write_bytes(b'{"a": 1}\n{"a": "\xc3\n{"a": 3}\n')
    with pytest.raises(RunDirError, match=r"x\.jsonl, line 2"):
        read_jsonl(file)


@pytest.mark.parametrize("text", ['{"steps": ', "[]", ""])
def test_a_config_that_is_none_is_named(tmp_path, text):
    run = RunDir(tmp_path)
    run.config_file.write_text(text)
    with pytest.raises(RunDirError, match=r"config\.json"):
        run.check({"steps": 1}, resume=True)


def test_a_folder_beside_the_checkpoints_is_none_of_them(tmp_path):
    run = RunDir(tmp_path)
    for name in ("step_000002", "step_000010", "step_000002_copy", "step_best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert run.checkpoint_steps() == [2, 10]
    run.drop_checkpoints_after(2)
    assert run.checkpoint_steps() == [2]


def test_a_run_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirError, match=r"run_dir='.*file/run' cannot be written"):
        RunDir(tmp_path / "file" / "run").create({})


def test_two_runs_cannot_write_one_directory(tmp_path):
    first = RunDir(tmp_path / "run")
    first.create({"steps": 3})
    code = f"from grpo.runs import RunDir; RunDir({str(tmp_path / 'run')!r}).create({{'steps': 4}})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "is being written by a run that goes on" in other.stderr
    assert first.config == {"steps": 3}
    first.release()
    RunDir(tmp_path / "run").create({"steps": 3})


def test_a_killed_run_holds_nothing(tmp_path):
    code = f"import os; from grpo.runs import RunDir; RunDir({str(tmp_path / 'run')!r}).create({{}}); os.abort()"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode != 0
    RunDir(tmp_path / "run").create({"steps": 3})
