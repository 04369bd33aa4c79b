"""PostgreSQL and Valkey for one-command use: started on demand, shared, and stopped by the last user.

    with EmbeddedServers() as servers:
        servers.database_url    # postgresql+psycopg://postgres@/turnqueue?host=...
        servers.broker_url      # redis+socket:///...

`TURNQUEUE_DATABASE_URL` and `TURNQUEUE_BROKER_URL` each replace their embedded server; with both set nothing is
started.  Several processes may use one data directory.  The servers stop when the last one closes, exits, or is killed:
see `keeper`.  No signal handler is installed; a process that ends by a signal is covered by the keeper.
"""

import atexit
import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from embedded import keeper, postgres, valkey
from embedded.databases import create_database
from embedded.layout import Layout, default_home, prepare

DATABASE_NAME = "turnqueue"
KEEPER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers are: a SQLAlchemy URL, a kombu URL, and the data directory (for logs)."""

    database_url: str
    broker_url: str
    data_dir: Path

    def database(self, name: str) -> str:
        """Create a fresh, empty database on the same server; returns its URL.  See `databases.create_database`."""
        return create_database(self.database_url, name)


class EmbeddedServers:
    """Holds the embedded servers open: `start` ... `stop`, or a `with` block."""

    def __init__(self, data_dir: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._data_dir = data_dir
        self._environ = os.environ if environ is None else environ
        self._layout: Layout | None = None
        self._held: IO[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Servers:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, data_dir: Path | None = None) -> Servers:
        """Attach to the servers of the data directory, starting those that do not run.

        Raises ConfigError (NO_EMBEDDED, BAD_HOME) or Unavailable (POSTGRES_FAILED, VALKEY_FAILED).
        """
        if self._held is not None:
            raise RuntimeError("These servers are started already")
        home = data_dir or self._data_dir or default_home(self._environ)
        database_url = self._environ.get("TURNQUEUE_DATABASE_URL")
        broker_url = self._environ.get("TURNQUEUE_BROKER_URL")
        if database_url and broker_url:
            return Servers(database_url, broker_url, home)
        layout = prepare(home)
        try:
            self._attach(layout)
        except BaseException:
            self.stop()
            raise
        return Servers(
            database_url or postgres.server_url(layout, DATABASE_NAME),
            broker_url or valkey.server_url(layout),
            layout.home,
        )

    def ensure(self) -> None:
        """Start again whichever server has died since `start`.  Raises as `start` does."""
        if self._layout is None or self._held is None:
            return
        with keeper.open_lock(self._layout.home / "start.lock") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            self._ensure_running(self._layout)

    def _ensure_running(self, layout: Layout) -> None:
        if not self._environ.get("TURNQUEUE_DATABASE_URL"):
            postgres.ensure_running(layout)
            create_database(postgres.server_url(layout), DATABASE_NAME, exist_ok=True)
        if not self._environ.get("TURNQUEUE_BROKER_URL"):
            valkey.ensure_running(layout)

    def _attach(self, layout: Layout) -> None:
        """Become a user first, then start what is missing: nobody can stop it from under us."""
        self._layout, self._owner = layout, os.getpid()
        with keeper.open_lock(layout.home / "start.lock") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            self._held = keeper.open_lock(keeper.users_lock(layout.home))
            # Waits while the servers are being stopped.
            fcntl.flock(self._held, fcntl.LOCK_SH)
            atexit.register(self.stop)
            self._keeper = _ensure_keeper(layout)
            self._ensure_running(layout)

    def stop(self) -> None:
        """Let go of the servers; the last user stops them and returns when they are down.  May be repeated."""
        held, layout = self._held, self._layout
        # A forked child shares the lock with its parent and must not give it up.
        if held is None or layout is None or os.getpid() != self._owner:
            return
        self._held = None
        atexit.unregister(self.stop)
        with held:
            fcntl.flock(held, fcntl.LOCK_UN)
            last = _stop_if_unused(held, layout)
        self._let_go_of_keeper(ended=last)

    def _let_go_of_keeper(self, *, ended: bool) -> None:
        """Collect the keeper that we started, if it ends now; with other users left it goes on without us."""
        started, self._keeper = self._keeper, None
        if started is None:
            return
        if ended:
            with suppress(subprocess.TimeoutExpired):
                started.wait(KEEPER_SECONDS)
        if started.returncode is None:
            started.returncode = 0  # Ours to forget: without this Popen warns about a process left behind.


def _stop_if_unused(lock: IO[bytes], layout: Layout) -> bool:
    """Stop the servers when no other launcher uses them; True when they are down."""
    if keeper.try_lock(lock, fcntl.LOCK_EX):
        keeper.stop_servers(layout.files)
        return True
    if keeper.try_lock(lock, fcntl.LOCK_SH):
        return False
    # Nobody uses the servers and the keeper is stopping them: wait until it is done.
    fcntl.flock(lock, fcntl.LOCK_SH)
    return True


def _ensure_keeper(layout: Layout) -> subprocess.Popen[bytes] | None:
    """Start the keeper unless one is waiting.  The caller holds the start lock."""
    with keeper.open_lock(keeper.keeper_lock(layout.home)) as place:
        if not keeper.try_lock(place, fcntl.LOCK_EX):
            return None
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", keeper.__file__, *map(str, layout.files)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
