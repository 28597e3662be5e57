"""An estimator of one's own, by name: "FILE.py:FUNCTION" in the place of a baseline or a normalizer.

    def median(rewards):                       # mine.py; rewards: (groups, group_size)
        return rewards.median(dim=1, keepdim=True).values

    grpo train --baseline mine.py:median

so that the command line and a sweep's file can say what `compute_group_normalized_rewards` takes as a callable.
"""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

from grpo.advantages import RewardTransform


def is_own(value: object) -> bool:
    """Whether a setting names a function in a file."""
    return isinstance(value, str) and ".py:" in value


def own_file(value: str) -> Path:
    """The file of "FILE.py:FUNCTION", relative to the working folder."""
    return Path(value.rpartition(":")[0])


def load_own(argument: str, value: str) -> RewardTransform:
    """Import the file of "FILE.py:FUNCTION" and return the function. What the file does at import, it does now.

    Raises FileNotFoundError without the file; ValueError, naming the argument, for a file that fails and a function that
    is not in it.
    """
    path, name = own_file(value), value.rpartition(":")[2]
    if not path.is_file():
        raise FileNotFoundError(f"{argument}={value!r}: there is no file {str(path)!r} in {Path.cwd().name}/")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{argument}={value!r}: {path} fails, {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        there = [
            key
            for key, item in vars(module).items()
            if inspect.isfunction(item) and item.__module__ == path.stem and not key.startswith("_")
        ]
        raise ValueError(f"{argument}={value!r}: {path} has no function {name!r}; it has {', '.join(there) or 'none'}")
    return function
