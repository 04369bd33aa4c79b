"""Notices a worker that is connected and takes no messages, and ends it, so that its supervisor starts another.

A heartbeat says that a loop turns, not that it gets work. Celery has lost its consumer after a reconnect
(celery#10302), and a message that was never settled costs a place for good. What counts here is progress: the worker
has room, its queues hold messages and PostgreSQL holds work for them, and for `TURNQUEUE_STALL_SECONDS` it has been
given nothing.

No Celery in this file: `tasks` says what it sees of the worker.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from orchestrator.app import App
from orchestrator.domain.errors import TurnqueueError
from orchestrator.engine import ORCHESTRATOR_QUEUE
from orchestrator.hints import SUBMIT_QUEUE, HintPublisher
from store import actions, calls, operations

log = structlog.get_logger()

EXIT_NOT_CONSUMING = 75  # EX_TEMPFAIL: nothing is wrong with the work, start again
# Celery waits up to 32 s between two tries to connect: for so long one that is not connected may yet be well.
RECONNECT_SECONDS = 40.0
LEAVE_SECONDS = 130.0  # for the steps in flight: the longest model request and a bit; what is longer is swept up


@dataclass(frozen=True, slots=True)
class Seen:
    """What the worker shows: messages received so far, whether its consumer runs, whether it would take another one,
    the queues that it means to consume (an operator may have taken one away), and how many tasks it is running."""

    received: int
    connected: bool
    room: bool
    queues: Sequence[str]
    busy: int = 0


class Stall:
    """The decision, without clock and servers: for how long has there been work for a worker that got none?"""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._received = -1

    def observe(self, now: float, seen: Seen, work: Callable[[], bool]) -> bool:
        """True: leave. `work` says whether messages and due rows wait; it is asked only where it matters."""
        got, self._received = seen.received != self._received, seen.received
        if got or not seen.room or not work():
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._seconds + (0.0 if seen.connected else RECONNECT_SECONDS)


class Watchdog:
    """A thread of its own: the worker's loop may be what hangs. `seconds` of 0 switch it off."""

    def __init__(self, app: App, look: Callable[[], Seen], leave: Callable[[int], None] = os._exit) -> None:
        self._app = app
        self._look = look
        self._leave = leave
        self._seconds = app.settings.stall_seconds
        self._broker = HintPublisher(app.settings)

    def start(self) -> None:
        if self._seconds:
            threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def _run(self) -> None:
        stall = Stall(self._seconds)
        while not self._app.stopping.wait(min(5.0, self._seconds / 8)):
            try:
                seen = self._look()
                if stall.observe(time.monotonic(), seen, lambda seen=seen: self._work_waits(seen.queues)):  # type: ignore[misc]
                    return self._go(seen)
            except Exception:  # the thread must live; nothing is decided by a look that failed
                log.exception("watchdog.failed")

    def _work_waits(self, queues: Sequence[str]) -> bool:
        """Messages in the worker's queues and, in PostgreSQL, what they are for. A server that does not answer is
        another's trouble: a restart would mend nothing."""
        filled = self._broker.filled(queues)
        if SUBMIT_QUEUE in filled:  # an envelope is nowhere else
            return True
        try:
            return bool(filled) and work_is_due(self._app, filled)
        except TurnqueueError:
            return False

    def _go(self, seen: Seen) -> None:
        """Claim nothing more, let the steps in flight be recorded, and end without asking the loop, which may hang."""
        log.error(
            "worker.not_consuming", code="NOT_CONSUMING", queues=list(seen.queues), seconds=self._seconds,
            connected=seen.connected,
        )  # fmt: skip
        self._app.stopping.set()
        until = time.monotonic() + LEAVE_SECONDS
        while (self._app.leases.held() or self._look().busy) and time.monotonic() < until:
            time.sleep(0.1)
        self._leave(EXIT_NOT_CONSUMING)


def work_is_due(app: App, queues: Sequence[str]) -> bool:
    """Whether a row of one of these queues may run now. Raises Unavailable."""
    with app.database.autocommit() as connection:
        return (
            (ORCHESTRATOR_QUEUE in queues and bool(operations.due(connection, 1)))
            or calls.any_due(connection, queues)
            or actions.any_due(connection, queues)
        )
