"""Runs a command for a process, and ends it with all that it started when that process ends, however it ends.

    python keeper.py PARENT_PID FOLDER COMMAND ARGUMENT...

Nobody can catch SIGKILL, so a process that is killed cannot end what it started: this one watches it and does, and removes
the folder that the process had for its files. It must be started in a process group of its own, which is what it ends.
Standard library only: it starts in no time.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from types import FrameType

SECONDS_TO_END = 10


def keep(parent: int, folder: str, command: list[str]) -> None:
    """Run the command until it ends, this process gets SIGTERM, or its parent is another; then kill the group.

    The folder is removed in the last case alone: else the parent does that.
    """
    told: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    signal.signal(signal.SIGTERM, note)
    child = subprocess.Popen(command)
    while child.poll() is None and not told and os.getppid() == parent:
        time.sleep(0.1)
    if child.returncode is None:
        child.terminate()  # so that it can give back shared memory
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(SECONDS_TO_END)
    else:
        print(f"the server ended with exit status {child.returncode}", flush=True)
    if os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    keep(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
