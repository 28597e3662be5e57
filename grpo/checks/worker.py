"""The process in which `grpo check` runs a learner's code: `python -m grpo.checks.worker FILE_OR_MODULE NAME...`.

It writes a line of JSON for each thing that it is about to do and has done, on what was its standard output. Whatever the
learner's code prints goes nowhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from grpo.checks.core import CORE_CHECKS
from grpo.checks.judge import describe_error


def load(target: str) -> ModuleType:
    """Import a file (its name ends in .py) or a module; imports beside it work. Raises what the learner's code raises."""
    if not target.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(target)
    path = Path(target).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{target} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def judge(module: ModuleType, name: str) -> tuple[str, str]:
    """Return "right", "wrong" or "absent", and the message, for the core function of that name."""
    function: Any = getattr(module, name, None)
    if function is None:
        return "absent", f"Not there: nothing is called {name}."
    of_grpo = str(getattr(function, "__module__", "")).partition(".")[0] == "grpo"
    if of_grpo and module.__name__.partition(".")[0] != "grpo":
        return "absent", "Not there: this is grpo's own, imported. Write yours, or leave it out."
    torch.manual_seed(0)
    message = CORE_CHECKS[name](function)
    return ("right" if message.startswith("Right") else "wrong"), message


def work(target: str, names: list[str], say: Callable[..., None]) -> None:
    """Load the learner's code and judge one function after another, saying each."""
    say(state="loading")
    try:
        module = load(target)
    except (Exception, SystemExit) as error:
        file = str(Path(target).resolve()) if target.endswith(".py") else None
        say(state="failed", message=describe_error(error, file))
        return
    for name in names:
        say(state="checking", name=name)
        verdict, message = judge(module, name)
        say(state="checked", name=name, verdict=verdict, message=message)


def main() -> None:
    """Put the learner's output aside, and work."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)

    def say(**line: str) -> None:
        channel.write(json.dumps(line) + "\n")
        channel.flush()

    torch.set_num_threads(1)
    work(sys.argv[1], sys.argv[2:], say)
    os._exit(0)  # threads that the learner's code left behind must not hold the process


if __name__ == "__main__":
    main()
