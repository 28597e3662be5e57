"""Sweeps: one file names what varies, `grpo sweep FILE` runs every cell with every seed.

    preset = "tiny"
    seeds = [1, 2, 3, 4]

    [shared]                                # settings of every cell, by the names of `grpo train --help`
    steps = 50

    [cells]                                 # name = { what differs }
    grpo = { estimator = "grpo" }
    dr_grpo = { estimator = "dr_grpo" }

Each run is written to <out>/<cell>/seed<k>/ as `grpo train` writes it, with done.json when it has ended. Given again,
the command skips what has ended and resumes what was cut, wherever it was cut. The file is copied to <out>/sweep.toml.
Each run is a process of its own, which ends when the sweep does. `--on ray` hands the same runs to a Ray cluster, which
places, restarts and schedules them; `out` must then be a folder that every node sees.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from tqdm.auto import tqdm

from grpo.advantages import check_choice
from grpo.config import TrainSettings, preset
from grpo.runs import RunDir, write_atomically
from grpo.trainer import TrainingStopped, train

_KEYS = ("preset", "seeds", "shared", "cells")
_LAST_LINES = 12
PLACES = ("local", "ray")


@dataclass(frozen=True)
class SweepSettings:
    """What `grpo sweep` can be told."""

    file: tyro.conf.Positional[str]
    """TOML file of the sweep."""
    out: str = ""
    """Folder of the runs; default: runs/<name of the file>."""
    cells: tuple[str, ...] = ()
    """Only these cells; default: all."""
    seeds: tuple[int, ...] = ()
    """These seeds in place of the file's."""
    jobs: int | None = None
    """Runs at once; default: the GPUs, or else the cores divided by the threads of a run."""
    keep_checkpoints: bool = False
    """Keep the last checkpoint of a run that has ended."""
    on: Literal["local", "ray"] = "local"
    """local: processes on this machine; ray: a Ray cluster (extra: ray)."""
    address: str | None = None
    """Address of the Ray cluster; default: a new one on this machine."""

    def __post_init__(self) -> None:
        check_choice("on", self.on, PLACES)
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs={self.jobs!r} must be at least 1")
        if self.address is not None and self.on != "ray":
            raise ValueError(f"address={self.address!r} is of a Ray cluster; add --on ray")

    def folder(self) -> Path:
        """Where the runs are written."""
        return Path(self.out or f"runs/{Path(self.file).stem}")


def _train_settings(base: TrainSettings, values: dict[str, Any], where: str) -> TrainSettings:
    """`base` with the values of a TOML table. Raises ValueError that starts with `where`."""
    known = {field.name for field in fields(TrainSettings)} - {"run_dir", "seed"}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(
            f"{where}: {', '.join(unknown)} is no setting of `grpo train`; known: {', '.join(sorted(known))}"
        )
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return replace(base, **plain)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def load_sweep(settings: SweepSettings) -> dict[str, dict[int, TrainSettings]]:
    """The runs of a sweep: runs[cell][seed], with the run directory of each set.

    Raises FileNotFoundError without the file, and ValueError that names file and cell for anything that cannot run.
    """
    path = Path(settings.file)
    if not path.is_file():
        raise FileNotFoundError(f"file={settings.file!r}: no such sweep file")
    try:
        sweep = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML file: {error}") from error
    if set(sweep) - set(_KEYS) or not isinstance(sweep.get("cells"), dict) or not sweep["cells"]:
        raise ValueError(
            f"{path} must hold a table of cells, and of {', '.join(_KEYS)} alone; it holds {sorted(sweep)}"
        )
    seeds = settings.seeds or tuple(sweep.get("seeds", ()))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds={list(seeds)!r} must name at least one seed, and each once")
    chosen = settings.cells or tuple(sweep["cells"])
    missing = [name for name in chosen if name not in sweep["cells"]]
    if missing:
        raise ValueError(
            f"cells={list(chosen)!r}: {path} has no {', '.join(missing)}; it has {', '.join(sweep['cells'])}"
        )
    shared = _train_settings(preset(sweep.get("preset", "tiny")), sweep.get("shared", {}), f"{path}, [shared]")
    runs: dict[str, dict[int, TrainSettings]] = {}
    for name in chosen:
        values, where = sweep["cells"][name], f"{path}, cell {name!r}"
        if not name or Path(name).name != name or name.startswith("."):
            raise ValueError(f"{where}: the name becomes a folder's; leave out / and a first dot")
        if not isinstance(values, dict):
            raise ValueError(f"{where} must be a table like {{ learning_rate = 1e-4 }}, not {values!r}")
        cell = _train_settings(shared, values, where)
        runs[name] = {
            seed: replace(cell, seed=seed, run_dir=str(settings.folder() / name / f"seed{seed}")) for seed in seeds
        }
    return runs


def is_done(run_dir: str | Path) -> bool:
    """Whether the run there has ended."""
    return (Path(run_dir) / "done.json").is_file()


def do_run(values: dict[str, Any], keep_checkpoints: bool) -> str:
    """Run or resume one run of a sweep to its end; returns "done" or, where training stopped by itself, why.

    values: the settings as JSON holds them. A run that stopped since its updates were not finite has ended, too: that is
    its result. Raises what `train` raises.
    """
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    settings = TrainSettings(**plain)
    run, start, stopped = RunDir(settings.run_dir), time.time(), ""
    if is_done(run.path):
        return "done"
    begun = run.config_file.is_file()
    try:
        result = train(settings, resume=begun, progress=False)
        if result.step < settings.steps:
            raise RuntimeError(f"interrupted after step {result.step} of {settings.steps}")
    except TrainingStopped as error:
        if "not finite" not in str(error):
            raise
        stopped = str(error)
    if not keep_checkpoints:
        shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
    done = {
        "stopped": stopped,
        "seconds": round(time.time() - start, 1),
        "resumed": begun,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
    }
    write_atomically(run.path / "done.json", json.dumps(done, indent=2) + "\n")
    return stopped or "done"


def _run_in_process(values: dict[str, Any], keep_checkpoints: bool, gpu: int | None) -> str:
    """`do_run` in a process of its own, on one GPU where there are any. Raises RuntimeError with its last lines."""
    folder = Path(values["run_dir"])
    log = folder.with_name(f"{folder.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)})
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo.sweep"],
            stdin=subprocess.PIPE,  # the child ends when this pipe does, so also when this process is killed
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([values, keep_checkpoints]).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.read().decode()
        finally:
            process.stdin.close()
            status = process.wait()
    if status != 0:
        last = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise RuntimeError("\n  ".join([f"{folder} ended with exit status {status}. Its last lines:", *last]))
    log.unlink()
    return answer.strip().splitlines()[-1]


def _child() -> None:
    """What a run's process does: read its settings, run, and end at once when the sweep is gone."""
    values, keep_checkpoints = json.loads(sys.stdin.buffer.readline())

    def end_with_the_sweep() -> None:
        sys.stdin.buffer.read()
        os._exit(1)  # a run survives a stop at any point

    threading.Thread(target=end_with_the_sweep, daemon=True).start()
    print(do_run(values, keep_checkpoints), flush=True)
    os._exit(0)


def _jobs(settings: SweepSettings, runs: Sequence[TrainSettings]) -> int:
    """Runs at once on this machine."""
    if settings.jobs is not None:
        return settings.jobs
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    cores = os.cpu_count() or 1
    return max(1, cores // max(run.threads or cores for run in runs))


Outcome = tuple[TrainSettings, str]


def run_here(settings: SweepSettings, runs: Sequence[TrainSettings]) -> Iterator[Outcome]:
    """Do the runs on this machine, several at once; yields each with "done", why it stopped, or how it failed."""
    jobs = _jobs(settings, runs)
    gpus: queue.Queue[int | None] = queue.Queue()
    for job in range(jobs):
        gpus.put(job % torch.cuda.device_count() if torch.cuda.is_available() else None)

    def do(run: TrainSettings) -> str:
        gpu = gpus.get()
        try:
            return _run_in_process(run.to_json(), settings.keep_checkpoints, gpu)
        finally:
            gpus.put(gpu)

    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = {pool.submit(do, run): run for run in runs}
        for future in as_completed(waiting):
            error = future.exception()
            yield waiting[future], f"failed: {error}" if error else future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def check_ray() -> None:
    """Raise ModuleNotFoundError, naming the extra, where Ray is missing."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError("on='ray' needs Ray: install the extra grpo-lab[ray]") from error


def run_on_ray(settings: SweepSettings, runs: Sequence[TrainSettings]) -> Iterator[Outcome]:
    """Do the runs on a Ray cluster; yields as `run_here` does. A run whose node is lost goes on on another one."""
    import ray

    own = not ray.is_initialized()
    if own:
        ray.init(address=settings.address, log_to_driver=False)
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(max_retries=-1, max_calls=1)(
            do_run
        )  # a process for each run: threads and memory start anew
        waiting = {}
        for run in runs:
            place = remote.options(num_cpus=run.threads or 1, num_gpus=gpus)
            # Absolute: a node's working folder is its own.
            values = run.to_json() | {"run_dir": str(Path(run.run_dir).absolute())}
            waiting[place.remote(values, settings.keep_checkpoints)] = run
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            run = waiting.pop(ready)
            try:
                yield run, ray.get(ready)
            except ray.exceptions.RayError as error:
                yield run, f"failed: {error}"
    finally:
        if own:
            ray.shutdown()


def sweep(settings: SweepSettings) -> dict[str, Any]:
    """Run every cell with every seed that has not ended; print a line for each, and, last, a line of JSON; return that.

    Raises ValueError and its relatives before anything runs when file or settings cannot; RuntimeError, after all others
    have ended, when a run failed.
    """
    runs = [run for seeds in load_sweep(settings).values() for run in seeds.values()]
    # All cells of one seed before the next seed: comparisons over few seeds exist early.
    runs.sort(key=lambda run: run.seed)
    left = [run for run in runs if not is_done(run.run_dir)]
    if settings.on == "ray":
        check_ray()
    try:
        settings.folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={str(settings.folder())!r} cannot be made ({error}); give another folder") from error
    # For whoever finds the runs later, and for the order of cells in figures.
    write_atomically(settings.folder() / "sweep.toml", Path(settings.file).read_text(encoding="utf-8"))
    failed = []
    do = run_on_ray if settings.on == "ray" else run_here
    with tqdm(total=len(runs), initial=len(runs) - len(left), desc="runs", dynamic_ncols=True) as bar:
        for run, outcome in do(settings, left):
            bar.write(f"{run.run_dir}: {outcome}")
            bar.update()
            if outcome.startswith("failed"):
                failed.append(run.run_dir)
    line = {
        "runs": len(runs),
        "done_before": len(runs) - len(left),
        "failed": len(failed),
        "out": str(settings.folder()),
    }
    print(json.dumps(line))
    if failed:
        raise RuntimeError(
            f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}; the same command tries them again"
        )
    return line


if __name__ == "__main__":
    _child()
