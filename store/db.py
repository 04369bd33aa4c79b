"""Database access: one lazily opened engine per process, transactions, and one place that maps driver errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import tenacity
from sqlalchemy import Connection, Engine, create_engine, exc, text

from orchestrator.domain.errors import Unavailable

T = TypeVar("T")

# serialization_failure, deadlock_detected, lock_not_available: the transaction did not happen and may be tried again.
_TRY_AGAIN = frozenset({"40001", "40P01", "55P03"})
# Bounds that keep a stuck statement or a half-open connection from holding a worker's thread for ever.
_OPTIONS = "-c statement_timeout=30000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000"


def _sqlstate(error: BaseException) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _may_try_again(error: BaseException) -> bool:
    return isinstance(error, exc.DBAPIError) and _sqlstate(error) in _TRY_AGAIN


def _is_unreachable(error: exc.DBAPIError) -> bool:
    """No SQLSTATE (never connected, or lost), class 08 (connection) or 57P0x (server shutting down)."""
    state = _sqlstate(error)
    return isinstance(error, exc.OperationalError) and (state is None or state[:2] == "08" or state[:4] == "57P0")


class Database:
    """Connections to one PostgreSQL. Nothing is opened before the first use; safe to share between threads."""

    def __init__(self, url: str, pool_size: int = 8) -> None:
        self.url = url
        self._pool_size = pool_size

    @cached_property
    def engine(self) -> Engine:
        return create_engine(
            self.url,
            pool_size=self._pool_size,
            max_overflow=0,
            pool_timeout=30,
            pool_recycle=1800,
            hide_parameters=True,  # values belong into no log
            connect_args={"options": _OPTIONS, "connect_timeout": 5, "keepalives_idle": 30, "keepalives_interval": 10},
        )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction. An error at COMMIT means unknown, never failed: the caller's lease and the row decide."""
        with _mapped(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """For one statement that is a whole transaction, and for reads: two round trips fewer than `transaction`."""
        with _mapped(), self._autocommit.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Several reads that see one moment."""
        with _mapped(), self._repeatable.begin() as connection:
            yield connection

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, again after a deadlock or serialization failure. `work` must do no other I/O."""
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_try_again),
            stop=tenacity.stop_after_attempt(5),
            wait=tenacity.wait_random_exponential(0.02, max=0.5),
            reraise=True,
        ):
            with attempt, self.transaction() as connection:
                return work(connection)
        raise AssertionError("unreachable")

    @cached_property
    def _autocommit(self) -> Engine:
        return self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @cached_property
    def _repeatable(self) -> Engine:
        return self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def close(self) -> None:
        if "engine" in self.__dict__:
            self.engine.dispose()


def try_lock(connection: Connection, key: int) -> bool:
    """Take an advisory lock for as long as this session lives; False: another session has it."""
    return bool(connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar())


def still_there(connection: Connection) -> None:
    """Raises Unavailable when the session is gone, and with it what it held."""
    connection.execute(text("SELECT 1"))


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except exc.DBAPIError as error:
        if _is_unreachable(error):
            raise Unavailable("DATABASE_UNREACHABLE", f"the database does not answer: {_first_line(error)}") from error
        raise
    except exc.TimeoutError as error:
        raise Unavailable("DATABASE_BUSY", "no database connection became free in time") from error


def _first_line(error: exc.DBAPIError) -> str:
    """The driver's own words; they name host and socket, never the password."""
    return str(error.orig).strip().splitlines()[0] if error.orig else type(error).__name__
