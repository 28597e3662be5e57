"""Symbolic equality by math-verify, in a worker process that can be killed.

math-verify evaluates what it parses: `9**9**9**9` takes it seconds, and its own time limit is a signal, which works
in the main thread only. Here each question goes to a child process over a pipe. A question that takes longer than
`TIME_LIMIT_S` is answered False, the child is killed and the next question starts a new one. Threads take turns.

This file is also the child's program: it is run by path and imports nothing of this package.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

TIME_LIMIT_S = 3.0
_START_LIMIT_S = 120.0  # importing sympy on a busy machine
_SIDE_BY_SIDE = re.compile(r"[0-9](?:\s|~|\\[ ,;:!]|\\q?quad\b)+[0-9]")
_MEMORY_LIMIT_BYTES = 4 << 30  # of address space; a power tower would take all there is


class _Worker:
    """One child process at a time; `ask` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def _line(self, process: subprocess.Popen[str], seconds: float) -> str:
        """Read one line, or "" if the child ends or is killed for taking longer than `seconds`."""
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            return process.stdout.readline()
        except (OSError, ValueError):
            return ""
        finally:
            timer.cancel()

    def _running(self) -> subprocess.Popen[str]:
        """Return the child, started if there is none."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve())],  # -P: grpo/ must not shadow top-level modules
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
        )
        if self._line(process, _START_LIMIT_S) != "ready\n":
            _end(process)
            raise RuntimeError(
                f"the math-verify worker did not start: `{sys.executable} -c 'import math_verify'` must work "
                f"and take less than {_START_LIMIT_S:.0f} s"
            )
        self._process = process
        return process

    def _reply(self, question: str, seconds: float) -> str:
        """Return the child's line of reply; "" where it died or took too long, and then it is gone."""
        process = self._running()
        assert process.stdin is not None
        reply = ""
        try:
            with contextlib.suppress(OSError):  # it died between two questions
                process.stdin.write(question + "\n")
                process.stdin.flush()
                reply = self._line(process, seconds)
        finally:  # also when interrupted: a reply still to come must not answer the next question
            if not reply:
                self._discard()
        return reply

    def ask(self, answer: str, gold: str, seconds: float) -> bool:
        """Return math-verify's verdict, False where it takes longer than `seconds` or fails."""
        question = json.dumps({"answer": answer, "gold": gold, "seconds": seconds})
        with self._lock:
            begin = time.monotonic()
            reply = self._reply(question, seconds)
            if not reply and time.monotonic() - begin < seconds:
                # It died before its time was up, perhaps not of this question: killed from outside, or by the
                # timer of the question before.
                reply = self._reply(question, seconds)
            return reply == "true\n"

    def _discard(self) -> None:
        if self._process is not None:
            _end(self._process)
        self._process = None

    def close(self) -> None:
        """End the child if there is one."""
        with self._lock:
            self._discard()

    def forget(self) -> None:
        """Start anew in a forked process, where the child and perhaps a held lock are another's."""
        self.__init__()  # type: ignore[misc]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # a write that the dead child never read
                pipe.close()


_worker = _Worker()
atexit.register(_worker.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker.forget)


def symbolically_equal(answer: str, gold: str, time_limit_s: float = TIME_LIMIT_S) -> bool:
    r"""Ask math-verify whether two LaTeX expressions are equal, as in `x^2+1` and `1+x^2`.

    False without asking where the answer is empty, puts two numbers side by side (`17 1`, which math-verify reads as
    the mixed number 18), or is compared with a plain word (whose letters math-verify would multiply in any order).

    Args:
        answer: the model's answer, without `$` or with.
        gold: the ground truth, likewise.
        time_limit_s: seconds after which the verdict is False and the worker is replaced.

    Raises:
        RuntimeError: the worker does not start, which means that math-verify cannot be imported.
    """
    if not answer.strip() or not gold.strip() or _SIDE_BY_SIDE.search(answer):
        return False
    if re.fullmatch(r"[A-Za-z\s]{3,}", gold):
        return False
    return _worker.ask(answer, gold, time_limit_s)


def _verify(answer: str, gold: str) -> bool:
    """Compare in this process, for as long as it takes. Runs in the child only."""
    from math_verify import parse, verify

    parsed = [parse(f"${text.replace('$', ' ').strip()}$", parsing_timeout=None) for text in (gold, answer)]
    return bool(verify(parsed[0], parsed[1], timeout_seconds=None))


def _serve() -> None:
    """Answer questions from standard input, one JSON object a line, until it ends."""
    replies = os.fdopen(os.dup(1), "w")
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)  # whatever a library prints is no reply
    alarm: Any = None
    try:
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
        # Ends the child also where the parent was killed and nobody is left to do it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        alarm = lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)  # noqa: E731
    except (ImportError, OSError, ValueError):  # not a POSIX system: the parent's limit remains
        pass
    import math_verify  # noqa: F401

    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        question = json.loads(line)
        if alarm:
            alarm(2 * question["seconds"] + 1)
        try:
            equal = _verify(question["answer"], question["gold"])
        except Exception:  # hostile text finds every bug of the parser: no verdict is a wrong answer
            equal = False
        if alarm:
            alarm(0)
        replies.write("true\n" if equal else "false\n")
        replies.flush()


if __name__ == "__main__":
    _serve()
