"""Runs a command that must not outlive the process that started it, even when that one is killed.

On Linux the kernel does it: this program asks for SIGKILL on its parent's death and becomes the command.  Elsewhere it
stays, and kills its process group once its parent is gone.  Standard library only and run by path: it costs little.

    python guard.py PARENT_PID COMMAND ARGUMENT...
"""

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5
COMMAND_NOT_RUN = 127


def become(parent: int, command: list[str]) -> NoReturn:
    """Linux: replace this process by the command, to be killed when the parent's starting thread ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the request was in place.
        os._exit(COMMAND_NOT_RUN)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error}")


def watch(parent: int, command: list[str]) -> int:
    """Elsewhere: run the command, pass SIGTERM and SIGINT on, return its exit status."""
    with subprocess.Popen(command) as child:  # noqa: S603

        def pass_on(number: int, _frame: FrameType | None) -> None:
            child.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        signal.signal(signal.SIGINT, pass_on)
        while True:
            try:
                return child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if os.getppid() != parent:
                    # Ours alone: the supervisor gives each command its own session.
                    os.killpg(0, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        become(parent, command)
    sys.exit(watch(parent, command))


if __name__ == "__main__":
    main(sys.argv[1:])
