"""Named places where a test may kill this process. A no-op unless `TURNQUEUE_FAILPOINTS` is set.

`TURNQUEUE_FAILPOINTS=write.after_started:1` kills at the first hit of that point; the hit is recorded in the file
that `TURNQUEUE_FAILPOINT_DIR` holds, so that a restarted worker does not die of it again.
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
_ARMED = os.environ.get("TURNQUEUE_FAILPOINTS", "")


def failpoint(name: str) -> None:
    """Die here by SIGKILL if this point is armed and its hit has come."""
    if _ARMED:
        _hit(name)


def _hit(name: str) -> None:
    for armed in _ARMED.split(","):
        point, _, wanted = armed.partition(":")
        if point != name:
            continue
        if _count(name) == int(wanted or 1):
            os.kill(os.getpid(), signal.SIGKILL)


def _count(name: str) -> int:
    """Hits of this point so far, this one included, over all processes: one byte per hit, appended atomically."""
    path = Path(os.environ.get("TURNQUEUE_FAILPOINT_DIR", "/tmp")) / f"failpoint-{name}"  # noqa: S108
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, b".")
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
