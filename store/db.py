"""Database access: one lazily opened engine per process, transactions, and one place that maps driver errors."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Generic, TypeVar

import psycopg
import tenacity
from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event, exc, text

from orchestrator.domain.errors import CommitUnknown, Unavailable
from store import audit

T = TypeVar("T")
_UNREACHABLE = "DATABASE_UNREACHABLE"

# feature_not_supported, which here says: a migration has changed a table since this session prepared a statement on it.
_OUTDATED = "0A000"
# serialization_failure, deadlock_detected, lock_not_available: the transaction did not happen and may be tried again.
_TRY_AGAIN = frozenset({"40001", "40P01", "55P03", _OUTDATED})
_TOO_SLOW = "57014"  # query_canceled, by statement_timeout
# A server that answers and can change nothing: a standby or one set so, and one without space.
_UNABLE = {"25006": "DATABASE_READ_ONLY", "53100": "DATABASE_FULL"}
# Bounds that keep a stuck statement or a half-open connection from holding a worker's thread, or the session of a dead
# client its locks, for ever. The server's keepalives are the system's otherwise: two hours.
_OPTIONS = (
    "-c statement_timeout=30000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000 "
    "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3 -c tcp_user_timeout=60000"
)
_CONNECT = {
    "options": _OPTIONS, "connect_timeout": 5, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
    "tcp_user_timeout": 60000,
}  # fmt: skip
ANSWER_SECONDS = 45.0  # the server gives up a statement after 30; one that says nothing for longer is not there
LOOK_SECONDS = 10.0  # for finding out whether a transaction happened whose COMMIT was not answered


class _Bounded(psycopg.Connection[Any]):
    """Waits for no answer for ever: the machine at the other end may take packets and serve nothing."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, ANSWER_SECONDS if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:
            if timeout is not None:  # the driver's own
                raise
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {ANSWER_SECONDS:g} s") from None


def _sqlstate(error: BaseException | None) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _may_try_again(error: BaseException) -> bool:
    return isinstance(error, Unavailable) and _sqlstate(error.__cause__) in _TRY_AGAIN


def _is_unreachable(error: exc.DBAPIError) -> bool:
    """No SQLSTATE (never connected, or lost), class 08 (connection) or 57P0x (server shutting down)."""
    state = _sqlstate(error)
    return isinstance(error, exc.OperationalError) and (state is None or state[:2] == "08" or state[:4] == "57P0")


@dataclass(slots=True)
class _Tried(Generic[T]):
    """What `work` returned, and the last link that it added to an audit chain, when only the COMMIT was left to do."""

    result: list[T] = field(default_factory=list)
    link: audit.Link | None = None


class Database:
    """Connections to one PostgreSQL. Nothing is opened before the first use; safe to share between threads."""

    def __init__(self, url: str, pool_size: int = 8) -> None:
        self.url = url
        self._pool_size = pool_size

    @cached_property
    def engine(self) -> Engine:
        engine = create_engine(
            self.url,
            pool_size=self._pool_size,
            max_overflow=0,
            pool_timeout=30,
            pool_recycle=1800,
            hide_parameters=True,  # values belong into no log
            connect_args=_CONNECT,
        )
        event.listen(engine, "do_connect", _connect)
        event.listen(engine, "handle_error", _renew)
        return engine

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction. Raises CommitUnknown when COMMIT was sent and not answered: it may have happened."""
        committing = False
        try:
            with _mapped(), self.engine.begin() as connection:
                yield connection
                committing = True
        except Unavailable as error:
            if committing and error.code == _UNREACHABLE:
                raise CommitUnknown(error.message) from error
            raise

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

    def transact(self, work: Callable[[Connection], T], *, again: float = 0.0) -> T:
        """Run `work` in a transaction, once. `work` must do no other I/O: it is run again where its transaction did not
        happen, after a deadlock or serialization failure, and for `again` seconds while the server is away; at least
        once, since a connection of the pool may have died unnoticed.

        A COMMIT without answer is looked up: the last entry that `work` added to an audit is there, or it did not
        happen. Raises CommitUnknown when that cannot be found out, or there was no entry; Unavailable when it did not
        happen.
        """
        until = time.monotonic() + again
        give_up = time.monotonic() + LOOK_SECONDS
        for number in count():
            tried: _Tried[T] = _Tried()
            try:
                return self._once(work, tried)
            except CommitUnknown as lost:
                if tried.link is None:
                    raise
                if self._happened(tried.link, lost):
                    return tried.result[-1]
                if time.monotonic() > max(give_up, until):
                    raise Unavailable(_UNREACHABLE, lost.reason) from lost
            except Unavailable as error:
                stale = number == 0 and error.code == _UNREACHABLE
                if not stale and time.monotonic() > until:
                    raise
                if not stale:
                    _pause()
        raise AssertionError("unreachable")

    def _once(self, work: Callable[[Connection], T], tried: _Tried[T]) -> T:
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_try_again),
            stop=tenacity.stop_after_attempt(5),
            wait=tenacity.wait_random_exponential(0.02, max=0.5),
            reraise=True,
        ):
            with attempt, self.transaction() as connection:
                tried.link = None
                with audit.watched(connection) as links:
                    tried.result.append(work(connection))
                tried.link = links[-1] if links else None
                return tried.result[-1]
        raise AssertionError("unreachable")

    def _happened(self, link: audit.Link, lost: CommitUnknown) -> bool:
        """Whether the transaction that added this link has committed. Raises CommitUnknown."""
        until = time.monotonic() + LOOK_SECONDS
        while True:
            try:
                with self.transaction() as connection:
                    return audit.has(connection, link)
            except Unavailable as error:
                if time.monotonic() > until:
                    raise CommitUnknown(lost.reason, link.operation_id) from error
                _pause()

    @cached_property
    def _autocommit(self) -> Engine:
        return self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @cached_property
    def _repeatable(self) -> Engine:
        return self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def close(self) -> None:
        if "engine" in self.__dict__:
            self.engine.dispose()


def short_locks(connection: Connection) -> None:
    """In this transaction, wait a moment only for a row that another session holds; Unavailable DATABASE_BUSY then."""
    connection.execute(text("SET LOCAL lock_timeout = '250ms'"))


def try_lock(connection: Connection, key: int) -> bool:
    """Take an advisory lock for as long as this session lives; False: another session has it."""
    return bool(connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar())


@contextmanager
def exclusive(database: Database, key: int, idle_seconds: float) -> Iterator[Connection | None]:
    """Hold an advisory lock within the block, in a session that ends with it; None: another session has it.

    A holder that says nothing for longer than `idle_seconds`, because it is stopped or its network is gone, loses it.
    """
    with database.autocommit() as guard:
        try:
            idle = {"idle": f"{int(idle_seconds * 1000)}ms"}
            guard.execute(text("SELECT set_config('idle_session_timeout', :idle, false)"), idle)
            yield guard if try_lock(guard, key) else None
        finally:
            guard.invalidate()


def still_there(connection: Connection) -> None:
    """Raises Unavailable when the session is gone, and with it what it held."""
    connection.execute(text("SELECT 1"))


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except exc.DBAPIError as error:
        if _is_unreachable(error):
            raise Unavailable(_UNREACHABLE, f"the database does not answer: {_first_line(error)}") from error
        if (state := _sqlstate(error)) in _UNABLE:
            raise Unavailable(_UNABLE[state], f"the database cannot be changed: {_first_line(error)}") from error
        if state in _TRY_AGAIN | {_TOO_SLOW} or (state or "").startswith("53"):  # 53: memory, connections
            raise Unavailable("DATABASE_BUSY", f"the database is busy: {_first_line(error)}") from error
        raise
    except exc.TimeoutError as error:
        raise Unavailable("DATABASE_BUSY", "no database connection became free in time") from error


def _connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> psycopg.Connection[Any]:
    return _Bounded.connect(*arguments, **options)


def _renew(context: ExceptionContext) -> None:
    """Workers live through migrations: their sessions, and what these have prepared, give way to new ones."""
    if _sqlstate(context.sqlalchemy_exception) == _OUTDATED:
        context.is_disconnect = True


def _pause() -> None:
    time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 - so that not every thread comes back at once


def _first_line(error: exc.DBAPIError) -> str:
    """The driver's own words; they name host and socket, never the password."""
    return str(error.orig).strip().splitlines()[0] if error.orig else type(error).__name__
