"""Run directories: what a run writes, and how it is read again.

    config.json          the settings
    metrics.jsonl        a line for each rollout step ("kind": "train") and validation ("kind": "validation")
    timing.jsonl         seconds and tokens per second of each step, apart: metrics repeat bit for bit, times do not
    rollouts.jsonl       some rollouts of each step, for people
    checkpoints/         step_000050/: model, tokenizer, optimizer, random generators; a manifest of file sizes
    figures/             metrics.png
    .lock                held by the process that writes here

Files are appended a line at a time, so that a stop loses nothing. A resumed run cuts them back to its checkpoint first.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOGS = ("metrics", "timing", "rollouts")
# What may differ between a run and its continuation: nothing that changes a number already written.
MAY_DIFFER = (
    "run_dir",
    "tracker",
    "threads",
    "keep_checkpoints",
    "log_rollouts",
    "data_dir",
    "engine_url",
    "engine_port",
    "engine_folder",
    "engine_gpus",
    "engine_memory",
    "engine_sleep",
    "engine_time_limit",
    "tensor_parallel_size",
    "data_parallel_size",
)


class RunDirError(ValueError):
    """A run directory that cannot be used as asked; the message says why and what to do."""


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside and rename it into place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def to_line(row: Mapping[str, Any]) -> str:
    """One JSON line; NaN and infinities, which JSON lacks, become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n"


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; a last line cut short by a stop is left out."""
    rows = []
    # Bytes, split at newlines alone: a response may hold U+2028, which str.splitlines takes for the end of a line, and a
    # stop may cut a line in the middle of a character.
    *lines, rest = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate([*lines, rest] if rest else lines, start=1):
        try:
            rows.append(json.loads(line.decode("utf-8")))
        except ValueError as error:
            if number > len(lines):
                break
            raise RunDirError(f"{path}, line {number}: no JSON object ({error})") from error
    return rows


class RunDir:
    """One run's directory: paths, logs and checkpoints. Nothing is written before `create`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: FileLock | None = None

    def check(self, config: Mapping[str, Any], resume: bool = False) -> None:
        """Raise RunDirError, before anything is written, unless a run of these settings can be started or resumed here.

        That is when the path holds something else, a run (and resume is False), or a run of other settings: the message
        lists each with both values.
        """
        name = f"run_dir={str(self.path)!r}"
        if self.config_file.is_file():
            before = self.config
            # More steps go on where the run ended, unless the learning rate depends on how many there are.
            may_differ = {*MAY_DIFFER, *(["steps"] if config.get("schedule") == "constant" else [])}
            differing = [
                f"{k}: {before.get(k)!r} there, {config.get(k)!r} now"
                for k in sorted({*before, *config} - may_differ)
                if before.get(k) != config.get(k)
            ]
            if differing:
                raise RunDirError(
                    f"{name} holds a run of another configuration ({'; '.join(differing)}); "
                    "give another run_dir, or the same settings with --resume"
                )
            if not resume:
                raise RunDirError(f"{name} holds this run already; add --resume, or give another run_dir")
        elif self.path.is_file() or (self.path.exists() and any(self.path.iterdir())):
            raise RunDirError(f"{name} is not empty and holds no run; give a new or empty folder")
        elif resume:
            raise RunDirError(f"{name} holds no run to resume; leave --resume out to start one")

    def create(self, config: Mapping[str, Any]) -> None:
        """Make the directory, hold it until `release` or the end of this process, and write the settings.

        Raises RunDirError when it cannot be written, and when another process, or another run of this one, holds it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", timeout=0)
            lock.acquire()
            self._lock = lock
            write_atomically(self.config_file, json.dumps(dict(config), indent=2) + "\n")
        except Timeout as error:
            raise RunDirError(
                f"run_dir={str(self.path)!r} is being written by a run that goes on; wait for its end, or give another"
            ) from error
        except OSError as error:
            raise RunDirError(f"run_dir={str(self.path)!r} cannot be written ({error}); give another folder") from error

    def release(self) -> None:
        """Let another run write here."""
        if self._lock is not None:
            self._lock.release()

    @property
    def config_file(self) -> Path:
        """Path of the settings."""
        return self.path / "config.json"

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the run."""
        try:
            config = json.loads(self.config_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunDirError(f"{self.config_file}: no JSON ({error}); give another run_dir") from error
        if not isinstance(config, dict):
            raise RunDirError(f"{self.config_file} holds no settings; give another run_dir")
        return config

    def file(self, log: str) -> Path:
        """Path of one of the logs: metrics, timing, rollouts."""
        return self.path / f"{log}.jsonl"

    def append(self, log: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to a log."""
        with self.file(log).open("a", encoding="utf-8") as file:
            file.write("".join(map(to_line, rows)))

    def read(self, log: str, kind: str | None = None) -> list[dict[str, Any]]:
        """Rows of a log, of one kind ("train", "validation") or all; none when it was not written yet."""
        rows = read_jsonl(self.file(log)) if self.file(log).is_file() else []
        return [row for row in rows if kind is None or row.get("kind") == kind]

    def cut_back(self, step: int) -> None:
        """Drop the rows of every log that belong to steps after `step`."""
        for log in LOGS:
            rows = [row for row in self.read(log) if row["step"] <= step]
            if self.file(log).is_file():
                write_atomically(self.file(log), "".join(map(to_line, rows)))

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after that many rollout steps."""
        return self.path / "checkpoints" / f"step_{step:06d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        names = (p.name.removeprefix("step_") for p in (self.path / "checkpoints").glob("step_*"))
        return sorted(int(name) for name in names if name.isdecimal() and name.isascii())

    def drop_checkpoints_after(self, step: int) -> None:
        """Delete the checkpoints of later steps."""
        for later in self.checkpoint_steps():
            if later > step:
                shutil.rmtree(self.checkpoint(later))

    def keep_newest(self, count: int) -> None:
        """Delete all but the newest checkpoints."""
        for step in self.checkpoint_steps()[:-count]:
            shutil.rmtree(self.checkpoint(step))
