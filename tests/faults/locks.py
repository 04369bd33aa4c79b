"""Another session of the database that holds what a test wants held, and sees who waits for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from tests.store.rows import eventually


@dataclass(frozen=True)
class Session:
    """One open transaction; the watcher looks from a connection of its own."""

    holder: psycopg.Connection[Any]
    watcher: psycopg.Connection[Any]

    def run(self, statement: Any, *values: Any) -> None:
        self.holder.execute(statement, values)

    def wait_for_waiters(self, at_least: int = 1) -> None:
        """Until so many sessions wait for a lock of this database; only this one holds any for long."""
        eventually(lambda: self._waiters() >= at_least)

    def _waiters(self) -> int:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        row = self.watcher.execute(waiting).fetchone()
        return int(row[0]) if row else 0


@contextmanager
def session(database_url: str) -> Iterator[Session]:
    """What it holds it lets go at the end of the block; `holder.commit()` does so before."""
    url = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watcher:
        yield Session(holder, watcher)


@contextmanager
def administrator(database_url: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A session beside the database, which can end the others' and replace it; and the database's name."""
    url = make_url(database_url)
    target = url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(target, autocommit=True) as connection:
        yield connection, str(url.database)


def end_sessions(connection: psycopg.Connection[Any], name: str) -> None:
    """All that are open to this database, and wait until they are gone."""
    gone = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE datname = %s"
    connection.execute(gone, [name])
