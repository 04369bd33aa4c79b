"""Heartbeats: one thread per process renews every lease that is held, off the threads that do the work.

A worker asks `lease.held()` before it sends its next request; a renewal that failed or came too late says no.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import structlog
from sqlalchemy import Connection

from store import actions, calls, operations
from store.db import Database

log = structlog.get_logger()
Kind = Literal["operation", "call", "action"]
CLOSE_SECONDS = 2.0  # for a renewal that is under way; a database that hangs must not hold up the end of a process
_RENEW: dict[Kind, Callable[[Connection, Sequence[tuple[str, int]], float], set[tuple[str, int]]]] = {
    "operation": operations.renew,
    "call": calls.renew,
    "action": actions.renew,
}


class Lease:
    """One held lease. `valid_until` is on `time.monotonic`'s clock, counted from before the renewing statement."""

    def __init__(self, kind: Kind, row_id: str, fence: int, valid_until: float) -> None:
        self.kind: Kind = kind
        self.row_id = row_id
        self.fence = fence
        self.valid_until = valid_until

    def held(self) -> bool:
        return time.monotonic() < self.valid_until


class LeaseKeeper:
    """Renews at a third of the lease. The thread starts with the first lease and is a daemon.

    It has a connection of its own: work that waits for one of the pool's must not cost the leases of other work.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = Database(database.url, 1)
        self._seconds = seconds
        self._held: dict[tuple[Kind, str, int], Lease] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @contextmanager
    def hold(self, kind: Kind, row_id: str, fence: int, since: float) -> Iterator[Lease]:
        """Keep a lease that was taken by a statement sent at `since` (monotonic) until the block ends."""
        lease = Lease(kind, row_id, fence, since + self._seconds)
        key = (kind, row_id, fence)
        with self._lock:
            self._held[key] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
                self._thread.start()
        try:
            yield lease
        finally:
            with self._lock:
                self._held.pop(key, None)

    def held(self) -> int:
        """How many leases this process holds: the steps in flight."""
        with self._lock:
            return len(self._held)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        self._database.close()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds / 3):
            for kind in _RENEW:
                self._renew(kind)

    def _renew(self, kind: Kind) -> None:
        before = time.monotonic()
        with self._lock:
            held = [lease for lease in self._held.values() if lease.kind == kind]
        if not held:
            return
        try:
            with self._database.autocommit() as connection:
                kept = _RENEW[kind](connection, [(x.row_id, x.fence) for x in held], self._seconds)
        except Exception as error:  # noqa: BLE001 - the thread must live; leases then run out
            log.warning("lease.renewal_failed", kind=kind, error=type(error).__name__)
            return
        for lease in held:
            ours = (lease.row_id, lease.fence) in kept
            lease.valid_until = before + self._seconds if ours else 0.0
