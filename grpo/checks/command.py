"""`grpo check`: run the core checks on a learner's own functions, or list the exercises of the course.

The learner's code runs in a process of its own, so that it can loop, crash or print without taking the command along. A
check that exceeds its time ends that process, and a new one goes on with the functions that are left.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro

from grpo.checks.core import CORE_CHECKS


class ChecksFailed(Exception):
    """A function is wrong, or there is none; the message has the counts."""


@dataclass(frozen=True)
class CheckSettings:
    """What `grpo check` can be told."""

    code: tyro.conf.Positional[str] = ""
    """Your file (mine.py) or module (package.mine) with any of the core functions."""
    list: bool = False
    """Print the exercises instead: where it is, its name, what its check asks."""
    seconds: float = 30.0
    """Time limit for importing your code, and for each check."""


def check(settings: CheckSettings) -> None:
    """Print a message for each core function, and the counts. What your code prints is left out.

    Raises ChecksFailed unless something is right and nothing wrong; ValueError for a file or module that is not there.
    """
    if settings.list:
        print("\n".join(exercises()))
        return
    if not settings.seconds > 0:
        raise ValueError(f"seconds={settings.seconds!r} must be above 0")
    _check_exists(settings.code)
    counts: Counter[str] = Counter()
    for name, verdict, message in run_checks(settings.code, list(CORE_CHECKS), settings.seconds):
        counts[verdict] += 1
        print(f"{name}: {message}", flush=True)
    summary = f"\n{counts['right']} right, {counts['wrong']} wrong, {counts['absent']} not there"
    if counts["wrong"] or not counts["right"]:
        raise ChecksFailed(summary)
    print(summary)


def _check_exists(code: str) -> None:
    if not code:
        raise ValueError("grpo check: give your file or module, or --list")
    if code.endswith(".py"):
        if not Path(code).is_file():
            raise ValueError(f"code={code!r} is no file; give the path of yours")
        return
    if not all(part.isidentifier() for part in code.split(".")):
        raise ValueError(f"code={code!r} is neither a file that ends in .py nor the name of a module")
    top = code.split(".")[0]
    if not (Path(top).is_dir() or Path(f"{top}.py").is_file() or importlib.util.find_spec(top)):
        raise ValueError(f"code={code!r} is no module that can be found from here; give a file, or another name")


def run_checks(code: str, names: list[str], seconds: float) -> Iterator[tuple[str, str, str]]:
    """Yield (name, verdict, message) for each name, verdict one of right, wrong, absent.

    Raises ChecksFailed when the learner's code cannot be imported.
    """
    left = list(names)
    while left:
        with _Worker(code, left) as worker:
            yield from _read(worker, left, seconds)


def _read(worker: _Worker, left: list[str], seconds: float) -> Generator[tuple[str, str, str], None, None]:
    """Yield what one process finds out, and take it from `left`; end where that process has to, or has nothing left."""
    checking, line = "", worker.next_line(None)  # the first line comes when Python and torch have started
    while left:
        state = line["state"]
        if state == "checked":
            yield line["name"], line["verdict"], line["message"]
            left.remove(line["name"])
        elif state in {"loading", "checking"}:
            checking = line.get("name", "")
        else:
            message = {
                "failed": "Stopped while it was imported: " + line.get("message", ""),
                "late": f"Stopped: this did not end within {seconds:g} s. A loop that never ends?",
                "ended": "This ended the whole process",
            }[state]
            message += f" ({worker.how_it_ended()})." if state == "ended" else ""
            if not checking:  # nothing can be checked
                raise ChecksFailed(f"importing your code: {message}")
            yield checking, "wrong", message
            left.remove(checking)
            return
        line = worker.next_line(seconds) if left else line


class _Worker:
    """The learner's process, its lines, and its end."""

    def __init__(self, code: str, names: list[str]) -> None:
        command = [sys.executable, "-m", "grpo.checks.worker", code, *names]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.lines: queue.Queue[dict[str, str]] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put({"state": "ended"})

    def next_line(self, seconds: float | None) -> dict[str, str]:
        """Return the next line; {"state": "late"} when it does not come in time, "ended" when none will."""
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return {"state": "late"}

    def how_it_ended(self) -> str:
        """Say the exit status, or the signal."""
        if self.process.poll() is None:
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                return "it closed its output"
        code = self.process.returncode
        return f"exit status {code}" if code >= 0 else f"signal {-code}; out of memory, or a crash?"

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(os, "killpg"):  # what the learner's code has started ends with it
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()


def exercises() -> list[str]:
    """A line for each exercise of the notebooks, and for each core check: where, name, what is asked."""
    rows = []
    for package in ("toyrl", "grpo"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder, "checks").glob("nb*.py")):
                rows += [(f"notebook {path.stem[2:]}", *row) for row in _public_checks(path)]
    rows += [("grpo check", name, _asks(core_check.__doc__)) for name, core_check in CORE_CHECKS.items()]
    wide = max(len(name) for _, name, _ in rows)
    return [f"{where:11}  {name:{wide}}  {asks}" for where, name, asks in rows]


def _public_checks(path: Path) -> list[tuple[str, str]]:
    """Return (name, first line of the docstring) of the functions check_... of a module, read without running it."""
    functions = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
    named = [node for node in functions if node.name.startswith("check_")]
    return [(node.name, _asks(ast.get_docstring(node))) for node in named]


def _asks(docstring: str | None) -> str:
    return (docstring or "").split("\n")[0].removesuffix(" Prints one message.")
