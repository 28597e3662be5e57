import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo.cli import main
from grpo.config import preset
from grpo.runs import RunDir
from grpo.sweep import SweepSettings, do_run, is_done, load_sweep, sweep

SMALL = """
preset = "tiny"
seeds = [1, 2]

[shared]
steps = 3
rollout_batch = 16
train_batch = 16
train_questions = 64
validation_questions = 8
max_new_tokens = 24
checkpoint_every = 1

[cells]
grpo = { estimator = "grpo" }
"levels 1, 2" = { levels = [1, 2] }
"""


def write(tmp_path: Path, text: str = SMALL) -> str:
    file = tmp_path / "small.toml"
    file.write_text(text)
    return str(file)


def settings(tmp_path: Path, text: str = SMALL, **more) -> SweepSettings:
    return SweepSettings(write(tmp_path, text), out=str(tmp_path / "out"), **more)


def test_the_file_becomes_settings(tmp_path) -> None:
    runs = load_sweep(settings(tmp_path))
    assert list(runs) == ["grpo", "levels 1, 2"]
    assert list(runs["grpo"]) == [1, 2]
    run = runs["levels 1, 2"][2]
    assert (run.levels, run.steps, run.seed, run.learning_rate) == ((1, 2), 3, 2, preset("tiny").learning_rate)
    assert run.run_dir == str(tmp_path / "out" / "levels 1, 2" / "seed2")
    assert runs["grpo"][1].levels == preset("tiny").levels


def test_chosen_cells_and_seeds(tmp_path) -> None:
    runs = load_sweep(settings(tmp_path, cells=("grpo",), seeds=(7,)))
    assert {cell: list(seeds) for cell, seeds in runs.items()} == {"grpo": [7]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [1]", "must hold a table of cells"),
        ("seeds = [1]\n[cells]", "must hold a table of cells"),
        (
            "seeds = [1]\nsede = 3\n[cells]\na = {}",
            r"of preset, seeds, shared, cells alone; it holds \['cells', 'sede'",
        ),
        ("[cells]\na = {}", r"seeds=\[\] must name at least one seed"),
        ("seeds = [1, 1]\n[cells]\na = {}", "each once"),
        ("seeds = [1]\n[cells]\na = { lr = 1.0 }", "cell 'a': lr is no setting"),
        ("seeds = [1]\n[cells]\na = { seed = 1 }", "cell 'a': seed is no setting"),
        ("seeds = [1]\n[cells]\na = { learning_rate = -1.0 }", "cell 'a': learning_rate=-1.0 must be"),
        (
            "seeds = [1]\n[cells]\na = { group_size = 3 }",
            "cell 'a': train_batch=256 must be a multiple of group_size=3",
        ),
        ("seeds = [1]\n[shared]\nsteps = 0\n[cells]\na = {}", r"\[shared\]: steps=0 must be"),
        ("seeds = [1]\n[cells]\na = 1e-4", "cell 'a' must be a table"),
        ('seeds = [1]\n[cells]\n"a/b" = {}', "cell 'a/b': the name becomes a folder's"),
        ('preset = "tny"\nseeds = [1]\n[cells]\na = {}', "preset='tny'"),
        ("seeds = [1", "is no TOML file"),
    ],
)
def test_a_file_that_cannot_run_is_named_before_anything_does(tmp_path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(settings(tmp_path, text))
    assert not (tmp_path / "out").exists()


def test_bad_arguments(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such sweep file"):
        load_sweep(SweepSettings(str(tmp_path / "none.toml")))
    with pytest.raises(ValueError, match="has no drgrpo; it has grpo, levels 1, 2"):
        load_sweep(settings(tmp_path, cells=("drgrpo",)))
    with pytest.raises(ValueError, match="jobs=0"):
        settings(tmp_path, jobs=0)
    with pytest.raises(ValueError, match="add --on ray"):
        settings(tmp_path, address="auto")
    with pytest.raises(ValueError, match="on='slurm'"):
        settings(tmp_path, on="slurm")


def one_run(tmp_path: Path, **more) -> dict:
    (run,) = load_sweep(settings(tmp_path, cells=("grpo",), seeds=(1,)))["grpo"].values()
    return run.to_json() | more


def test_a_run_ends_without_checkpoints_and_is_not_done_again(tmp_path) -> None:
    values = one_run(tmp_path)
    assert do_run(values, keep_checkpoints=False) == "done"
    run = RunDir(values["run_dir"])
    assert is_done(run.path)
    assert [row["step"] for row in run.read("metrics", "train")] == [1, 2, 3]
    assert not run.checkpoint_steps()
    before = run.file("metrics").stat().st_mtime_ns
    assert do_run(values, keep_checkpoints=False) == "done"
    assert run.file("metrics").stat().st_mtime_ns == before


def test_a_run_that_diverges_has_ended_and_says_so(tmp_path, monkeypatch) -> None:
    def never_finite(*args, **kwargs):
        raise __import__("grpo.trainer").trainer.TrainingStopped("3 updates in a row had a loss that is not finite")

    monkeypatch.setattr("grpo.sweep.train", never_finite)
    values = one_run(tmp_path)
    Path(values["run_dir"]).mkdir(parents=True)
    assert "not finite" in do_run(values, keep_checkpoints=False)
    assert "not finite" in json.loads((Path(values["run_dir"]) / "done.json").read_text())["stopped"]


def test_an_interrupted_run_is_not_done(tmp_path, monkeypatch) -> None:
    class Early:
        step = 1

    monkeypatch.setattr("grpo.sweep.train", lambda *args, **kwargs: Early)
    values = one_run(tmp_path)
    with pytest.raises(RuntimeError, match="interrupted after step 1 of 3"):
        do_run(values, keep_checkpoints=False)
    assert not is_done(values["run_dir"])


@pytest.mark.slow
def test_a_failed_run_is_reported_with_its_last_lines_and_the_others_end(tmp_path, capsys) -> None:
    text = SMALL.replace('"levels 1, 2" = { levels = [1, 2] }', 'broken = { model = "nothing" }')
    assert main(["sweep", write(tmp_path, text), "--out", str(tmp_path / "out"), "--seeds", "1"]) == 2
    captured = capsys.readouterr()
    assert "1 of 2 runs failed" in captured.err
    assert is_done(tmp_path / "out" / "grpo" / "seed1")
    assert not is_done(tmp_path / "out" / "broken" / "seed1")
    assert "model='nothing'" in (tmp_path / "out" / "broken" / "seed1.log").read_text()
    assert json.loads(captured.out.splitlines()[-1]) == {
        "runs": 2,
        "done_before": 0,
        "failed": 1,
        "out": str(tmp_path / "out"),
    }


def metrics(out: Path, cell: str, seed: int) -> str:
    return (out / cell / f"seed{seed}" / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_killed_and_started_again_gives_the_same_metrics_and_repeats_nothing(tmp_path) -> None:
    long = SMALL.replace("steps = 3", "steps = 8")
    command = [sys.executable, "-m", "grpo", "sweep", write(tmp_path, long), "--cells", "grpo", "--seeds", "1", "2"]
    command += ["--jobs", "1", "--out", str(tmp_path / "cut")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    run = RunDir(tmp_path / "cut" / "grpo" / "seed1")
    deadline = time.monotonic() + 120
    while len(run.checkpoint_steps()) == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = run.checkpoint_steps()[-1]
    assert reached < 8
    # The run's own process has ended with the sweep: nothing is written any more.
    time.sleep(1.0)
    size = run.file("metrics").stat().st_size
    time.sleep(1.5)
    assert run.file("metrics").stat().st_size == size

    subprocess.run(command, check=True, capture_output=True)
    assert json.loads((run.path / "done.json").read_text())["resumed"]
    whole = SweepSettings(command[4], out=str(tmp_path / "whole"), cells=("grpo",), seeds=(1, 2), jobs=1)
    sweep(whole)
    for seed in (1, 2):
        assert metrics(tmp_path / "cut", "grpo", seed) == metrics(tmp_path / "whole", "grpo", seed)
    assert sweep(whole)["done_before"] == 2


@pytest.mark.slow
def test_ray_runs_the_same_file_and_outlives_a_worker(tmp_path) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    long = SMALL.replace("steps = 3", "steps = 40").replace('"levels 1, 2" = { levels = [1, 2] }', "")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
        ray.init(address=cluster.address, log_to_driver=False)
        on_ray = settings(tmp_path, long, on="ray", address=cluster.address)
        out = tmp_path / "out" / "grpo"

        def kill_a_worker() -> None:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                if all(RunDir(out / f"seed{seed}").checkpoint_steps() for seed in (1, 2)):
                    break
                time.sleep(0.05)
            cluster.remove_node(nodes[0], allow_graceful=False)

        import threading

        killer = threading.Thread(target=kill_a_worker)
        killer.start()
        line = sweep(on_ray)
        killer.join()
        assert line == {"runs": 2, "done_before": 0, "failed": 0, "out": str(tmp_path / "out")}
        done = [json.loads((out / f"seed{seed}" / "done.json").read_text()) for seed in (1, 2)]
        assert sorted(row["resumed"] for row in done) == [False, True]
        for seed in (1, 2):
            assert [row["step"] for row in RunDir(out / f"seed{seed}").read("metrics", "train")] == list(range(1, 41))
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_without_ray_the_error_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"grpo-lab\[ray\]"):
        sweep(settings(tmp_path, on="ray"))
    assert not os.path.exists(tmp_path / "out")


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "file", sorted((ROOT / "data" / "experiments").glob("*/*.toml")), ids=lambda f: f"{f.parent.name}/{f.stem}"
)
def test_the_experiment_files_hold_runs_that_can_start(file: Path) -> None:
    runs = load_sweep(SweepSettings(str(file)))
    responses = {cell: run.steps * run.rollout_batch for cell, seeds in runs.items() for run in seeds.values()}
    assert len(set(responses.values())) == 1, "cells must be compared at equal numbers of rollouts"
    assert all(list(seeds) == [42, 43, 44, 45] for seeds in runs.values())
