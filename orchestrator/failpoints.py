"""Named places where a test may kill this process. A no-op unless `TURNQUEUE_FAILPOINT_DIR` is set.

Hits are counted in files of that directory, over all processes, so that a restarted worker does not die of the same
hit again. What is armed, `write.after_started:2` for the second hit of that point, comes from `TURNQUEUE_FAILPOINTS`
or, so that a test can arm running workers, from the file `armed` in the directory.
"""

import os
import signal
from pathlib import Path

POINTS = frozenset(
    {
        "turn.claimed",  # the operation's lease is ours, the model has not been asked
        "turn.replied",  # the model's reply is in memory only
        "turn.recorded",  # the reply is committed, no wake-up was published
        "write.before_started",
        "write.after_started",  # STARTED has committed, nothing was sent
        "write.after_effect",  # the downstream has answered, nothing is recorded
    }
)
_DIRECTORY = os.environ.get("TURNQUEUE_FAILPOINT_DIR", "")


def failpoint(name: str) -> None:
    """Die here by SIGKILL if this point is armed and its hit has come."""
    if _DIRECTORY:
        _hit(name, Path(_DIRECTORY))


def _hit(name: str, directory: Path) -> None:
    hits = _count(name, directory)
    for armed in _armed(directory).split(","):
        point, _, wanted = armed.strip().partition(":")
        if point == name and hits == int(wanted or 1):
            os.kill(os.getpid(), signal.SIGKILL)


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


def _count(name: str, directory: Path) -> int:
    """Hits of this point, this one included: one byte per hit, appended atomically."""
    descriptor = os.open(directory / f"failpoint-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, b".")
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
