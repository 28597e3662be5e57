"""What the core checks share: calling a learner's function, reading its result, naming the mistake behind it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

LONGEST = 300
"""Characters of a learner's own error message that are repeated."""

Check = Callable[[Any], str]
Mistakes = Iterable[tuple[Tensor, str]]
"""What a typical mistake would give on the check's inputs, and what to tell its author."""


class WrongAnswer(Exception):
    """What is wrong with a learner's function, said to the learner."""


def judged(check: Check) -> Check:
    """Make a check that raises WrongAnswer return its message, and a message for whatever else an answer may be."""

    @wraps(check)
    def judge(function: Any) -> str:
        if not callable(function):
            return f"Give the function itself, without calling it; this is a {type(function).__name__}."
        try:
            return check(function)
        except WrongAnswer as wrong:
            return str(wrong)
        except Exception as error:  # a result may be anything, and may raise when it is looked at
            return f"What your function returns cannot be read: {type(error).__name__}: {str(error)[:LONGEST]}"

    return judge


def call(function: Any, *args: Any, setting: str = "", **kwargs: Any) -> Any:
    """Call a learner's function. Raises WrongAnswer, which names the setting, when it raises or returns nothing."""
    prefix = f"With {setting}: " if setting else ""
    try:
        result = function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        raise WrongAnswer(
            f"{prefix}your function stopped with {describe_error(error, code and code.co_filename)}"
        ) from None
    if result is None or result is ...:
        raise WrongAnswer(f"{prefix}not done yet: your function returns nothing.")
    return result


def describe_error(error: BaseException, file: str | None) -> str:
    """Type and message of an error in one line, with the last line of `file` that it passed through."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{text} (line {theirs[-1].lineno}: {theirs[-1].line})" if theirs else text


def as_tensor(value: Any, what: str, shape: tuple[int, ...], hint: str = "") -> Tensor:
    """Return a learner's tensor of that shape, cut from its graph, in float64. Raises WrongAnswer for anything else."""
    if not isinstance(value, Tensor):
        raise WrongAnswer(f"{what} is a {type(value).__name__}; expected a tensor of shape {shape}. {hint}".rstrip())
    if tuple(value.shape) != shape:
        raise WrongAnswer(f"{what} has shape {tuple(value.shape)}; expected {shape}. {hint}".rstrip())
    return value.detach().to("cpu", torch.float64)


def entry(result: Any, key: str) -> Any:
    """Return an entry of the mapping that a learner's function returned; WrongAnswer when it is not there."""
    if not isinstance(result, Mapping):
        raise WrongAnswer(f"Your function returns a {type(result).__name__}; expected a dict with the key {key!r}.")
    if key not in result:
        raise WrongAnswer(f"The dict you return lacks the key {key!r}; it has {sorted(map(str, result))}.")
    return result[key]


def value_and_metadata(result: Any, what: str) -> Any:
    """Return the first of the (value, metadata) that a learner's function returned; WrongAnswer for anything else."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise WrongAnswer(f"Return a pair, ({what}, metadata), metadata a dict; this is a {type(result).__name__}.")
    return result[0]


def same(found: Tensor, other: Tensor) -> bool:
    """Equal to float32's precision; two NaN are equal."""
    return found.shape == other.shape and torch.allclose(found, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def expect(found: Tensor, right: Tensor, mistakes: Mistakes, what: str, setting: str = "") -> None:
    """Raise WrongAnswer unless `found` is right: with the mistake that gives it, or else the first place that differs."""
    if same(found, right):
        return
    prefix = f"With {setting}: " if setting else ""
    for wrong, message in mistakes:
        if same(found, wrong):
            raise WrongAnswer(prefix + message)
    place = (~torch.isclose(found, right, rtol=1e-4, atol=1e-6)).nonzero()[0].tolist()
    at = f"[{', '.join(map(str, place))}]" if place else ""
    raise WrongAnswer(f"{prefix}{what}{at} is {found[tuple(place)]:.4f}; it should be {right[tuple(place)]:.4f}.")
