"""The heartbeat file: its age says that a process still turns, and asking costs no connection and no interpreter.

`TURNQUEUE_HEARTBEAT_FILE` names it; unset, nothing is written. A health check wants it younger than a few beats.
"""

from pathlib import Path

import structlog

log = structlog.get_logger()

BEAT_SECONDS = 2.0


def beat(path: Path | None) -> None:
    """Touch the file. A full or read-only disk is logged: the work goes on, the health check speaks up."""
    if path is None:
        return
    try:
        path.touch()
    except OSError as error:
        log.warning("heartbeat.failed", error=type(error).__name__)
