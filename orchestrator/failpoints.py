"""Named places where a test may kill or stop this process. A no-op unless `TURNQUEUE_FAILPOINT_DIR` is set.

Hits are counted in files of that directory, over all processes, so that a restarted worker does not die of the same
hit again. What is armed, `write.after_started:2` for the second hit of that point, comes from `TURNQUEUE_FAILPOINTS`
or, so that a test can arm running workers, from the file `armed` in the directory. Several are separated by commas;
`write.sending:3:stop` stops the process (SIGSTOP) instead of killing it. The file `fired` has a line for each:
point, hit, process id, action.

`arm_here` arms this process alone, which counts its own hits from then on and touches no file before one has come.
"""

import os
import signal
import threading
from pathlib import Path

POINTS = frozenset(
    {
        "submit.committed",  # K1: the operation is committed, no wake-up was published
        "hint.publishing",  # K2: some of a batch may be out
        "task.received",  # K3: a message was taken, nothing is claimed
        "turn.claimed",  # K4: the operation's lease is ours, the model has not been asked
        "turn.replied",  # K6: the model's reply is in memory only
        "turn.recorded",  # K7, K8: reply, calls and approvals are committed, no wake-up was published
        "decision.committed",  # K9: a person decided, no wake-up was published
        "read.claimed",  # K4, K10: lease and slot are ours, nothing was asked
        "read.answered",  # K14 of a read
        "read.recorded",  # K15 of a read
        "write.before_started",
        "write.after_started",  # K11: STARTED has committed with lease and slot, nothing was sent
        "write.sending",  # K11 again, after the last look at the lease: the request leaves next
        "write.unread",  # K13: the downstream's answer has arrived and is not read
        "write.after_effect",  # K14: the answer is in memory only
        "write.uncommitted",  # K14, K19: outcome, audit and freed slot are written, not committed
        "write.recorded",  # K15: outcome and audit are committed, no wake-up was published
        "check.answered",  # K17: the downstream was asked about an uncertain write, nothing is recorded
        "sweeper.repaired",  # K18: a repair is committed, no wake-up was published
        "anchor.writing",  # K21: heads are read, nothing is written
        "migration.uncommitted",  # K22
        "task.done",  # K16: all is recorded and published, the message is not acknowledged
    }
)
_DIRECTORY = os.environ.get("TURNQUEUE_FAILPOINT_DIR", "")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class _Here:
    """What `arm_here` said: `left` more hits of the point are survived."""

    def __init__(self, point: str, left: int, action: str) -> None:
        self.point, self.nth, self.left, self.action = point, left + 1, left, action
        self.lock = threading.Lock()

    def is_due(self, name: str) -> bool:
        if name != self.point:
            return False
        with self.lock:
            self.left -= 1
            return self.left == -1


_here: _Here | None = None


def arm_here(point: str = "", nth: int = 1, action: str = "kill") -> None:
    """Kill or stop this process at its nth hit of the point, counted from now; without a point at none.

    What the directory says no longer counts in this process. Raises ValueError for an unknown point or action, and
    RuntimeError where failpoints are not enabled.
    """
    global _here  # noqa: PLW0603 - one arming per process is the point
    if not _DIRECTORY:
        raise RuntimeError("TURNQUEUE_FAILPOINT_DIR is not set")
    if (point and point not in POINTS) or action not in _SIGNALS or nth < 1:
        raise ValueError(f"{point}:{nth}:{action}")
    _here = _Here(point, nth - 1, action)


def failpoint(name: str) -> None:
    """Die here by SIGKILL, or stop, if this point is armed and its hit has come."""
    if not _DIRECTORY:
        return
    if _here is None:
        _hit(name, Path(_DIRECTORY))
    elif _here.is_due(name):
        _fire(name, _here.nth, _here.action, Path(_DIRECTORY))


def _hit(name: str, directory: Path) -> None:
    number = _append(directory / f"failpoint-{name}", b".")
    for armed in _armed(directory).split(","):
        point, hit, action = [*armed.strip().split(":"), "", ""][:3]
        if point == name and number == int(hit or 1):
            _fire(name, number, action or "kill", directory)


def _fire(name: str, number: int, action: str, directory: Path) -> None:
    _append(directory / "fired", f"{name} {number} {os.getpid()} {action}\n".encode())
    # To this thread: it must not go on while some other thread is about to stop the process.
    signal.pthread_kill(threading.get_ident(), _SIGNALS[action])


def _armed(directory: Path) -> str:
    try:
        return (directory / "armed").read_text()
    except FileNotFoundError:
        return os.environ.get("TURNQUEUE_FAILPOINTS", "")


def hits(name: str, directory: Path) -> int:
    """How often the point was passed so far."""
    try:
        return (directory / f"failpoint-{name}").stat().st_size
    except FileNotFoundError:
        return 0


def _append(path: Path, data: bytes) -> int:
    """The file's size with these bytes at its end; those of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, data)
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)
