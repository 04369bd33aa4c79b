"""What one hint sets going: claim the named row, then whatever else is due, until the slice is used or nothing is due.

Between two steps it looks whether the process is to stop: then it claims nothing more and leaves a hint for others.
"""

import time
from collections.abc import Callable

import structlog

from orchestrator.app import App
from orchestrator.domain.errors import TurnqueueError
from orchestrator.engine import Wake
from orchestrator.failpoints import failpoint

log = structlog.get_logger()
FAILURES = 3  # unexpected errors after which a task stops: something is wrong with more than one row


def drain(app: App, step: Callable[[str | None], bool], hint: str, more: Callable[[], Wake | None]) -> Exception | None:
    """`step(row_id)` claims and works on that row if it is due, `step(None)` on the one longest due; False: none is.

    `more` says which row of the queue is due when the slice has ended. A step that fails unexpectedly has given its
    row back (see `parking`) and is logged, so that the rows behind it go on. Returns the last such error.
    """
    failpoint("task.received")
    try:
        failure = _work(app, step, hint, more)
    except TurnqueueError as error:
        # Unreachable server: the row keeps its lease or its wake_at, the sweeper publishes it again.
        log.warning("task.unavailable", code=error.code)
        return None
    failpoint("task.done")
    return failure


def _work(app: App, step: Callable[[str | None], bool], hint: str, more: Callable[[], Wake | None]) -> Exception | None:
    until = time.monotonic() + app.settings.slice_seconds
    row: str | None = hint
    failures: list[Exception] = []
    worked = True  # a hint that is not even looked at is handed on
    while not app.stopping.is_set():
        try:
            worked = step(row)
        except TurnqueueError:
            raise
        except Exception as error:  # one row must not keep its worker from the others
            log.exception("step.failed")
            failures.append(error)
            worked = True
        if time.monotonic() >= until or len(failures) >= FAILURES or (row is None and not worked):
            break
        row = None
    left = more() if worked else None
    if left is not None:
        app.publish([left])
    return failures[-1] if failures else None
