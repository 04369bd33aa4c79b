"""A domain's records in their own PostgreSQL schema: a base shared by all worlds, and what each world changed.

A write is one transaction: idempotency key, locks, the pure function, changed records, ledger row, stored outcome.
Whoever repeats a key gets the first outcome and changes nothing.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

import psycopg
import rfc8785
from psycopg import sql
from psycopg.types.json import Json
from psycopg_pool import ConnectionPool

from examples.worlds.overlay import Base, Connection, StoredWorld
from examples.worlds.world import Record, RecordKey, Refusal, World

T = TypeVar("T")
Touched = Callable[[World, Record], Sequence[RecordKey]]


class KeyConflict(Exception):
    """The idempotency key was used before, for another request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one idempotency key led to: a result, or the domain's refusal."""

    world: str
    tool: str
    arguments_digest: str
    result: Any = None
    error: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """One request to change a world. `apply` is the pure function; `touched` says which records to lock for it."""

    world: str
    key: str
    tool: str
    arguments: Record
    apply: Callable[[World], Any]
    touched: Touched

    @property
    def identity(self) -> tuple[str, str, str]:
        """What a key stands for; the same key with another one is a conflict."""
        return self.world, self.tool, digest(self.arguments)


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One row of the ledger: an effect that really happened."""

    world: str
    key: str
    tool: str
    arguments_digest: str


def digest(value: Any) -> str:
    """SHA-256, hex, of the RFC 8785 form."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


class Store:
    """One database. Thread safe; nothing is opened before the first use. `close()` when done.

    Raises `psycopg_pool.PoolTimeout` where no connection could be had (nothing was sent), and `psycopg.Error` else.
    """

    def __init__(self, url: str, *, schema: str, connections: int = 8, connect_seconds: float = 10) -> None:
        self._schema = schema
        self._lock = threading.Lock()
        self._base: Base | None = None
        self._opened = False
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url.replace("postgresql+psycopg://", "postgresql://", 1),
            connection_class=psycopg.Connection[tuple[Any, ...]],
            kwargs={"autocommit": True},  # each transaction is opened by name
            min_size=0,
            max_size=connections,
            timeout=connect_seconds,
            open=False,
        )

    def close(self) -> None:
        with self._lock:
            self._pool.close()

    # -- seeding --------------------------------------------------------------------------------------------------

    def seed(self, state: Mapping[str, Mapping[str, Record]]) -> str:
        """Create the schema and load `{table: {key: record}}`, in order, for all worlds. Returns the state's digest.

        Seeding the same state again does nothing; another state is refused (ValueError), as processes may have
        read the first one already.
        """
        wanted = digest(state)
        with self._connection() as conn, conn.transaction():
            conn.execute("SELECT pg_advisory_xact_lock(%s)", [_lock_id(self._schema, "seed")])
            conn.execute(self._sql((files(__package__) / "schema.sql").read_text()))
            found = conn.execute(self._sql("SELECT digest FROM {schema}.seeded")).fetchone()
            if found is None:
                self._copy(conn, state)
                conn.execute(self._sql("INSERT INTO {schema}.seeded (digest) VALUES (%s)"), [wanted])
            elif found[0] != wanted:
                raise ValueError(f"schema {self._schema} was seeded with another state: use a fresh database")
        return wanted

    def _copy(self, conn: Connection, state: Mapping[str, Mapping[str, Record]]) -> None:
        copy = self._sql("COPY {schema}.base (tbl, key, position, record) FROM STDIN")
        with conn.cursor() as cursor, cursor.copy(copy) as out:
            for table, records in state.items():
                for position, (key, record) in enumerate(records.items()):
                    out.write_row((table, key, position, Json(record)))

    # -- reads ----------------------------------------------------------------------------------------------------

    def read(self, world: str, function: Callable[[World], T]) -> T:
        """Run a pure read on one world."""
        with self._connection() as conn:
            return function(self._world(conn, world))

    def field(self, world: str, table: str, key: str, name: str) -> Any:
        """A field that never changes, of one record (its owner, say); None where there is no such record.

        Asks the database only for a record that the world has added itself.
        """
        with self._lock:
            base = self._base
        record = base.tables.get(table, {}).get(key) if base else None
        record = record or self.read(world, lambda state: state.get(table, key))
        return record[name] if record else None

    def state_digest(self, world: str) -> str:
        """Digest of the world's whole `{table: {key: record}}`; only changed records are put in canonical form anew."""
        with self._connection() as conn:
            rows = conn.execute(self._sql("SELECT tbl, key, record FROM {schema}.overlay WHERE world = %s"), [world])
            return self._loaded(conn).digest_with({(table, key): record for table, key, record in rows})

    def effects(self, worlds: Sequence[str]) -> list[EffectRow]:
        """The ledger rows of these worlds, oldest first."""
        query = """SELECT world, key, tool, arguments_digest FROM {schema}.effects WHERE world = ANY(%s) ORDER BY id"""
        with self._connection() as conn:
            return [EffectRow(*row) for row in conn.execute(self._sql(query), [list(worlds)])]

    def lookup(self, key: str) -> Outcome | None:
        """What became of an idempotency key; None: no trace of it (a late request can still arrive)."""
        with self._connection() as conn:
            return self._stored(conn, key)

    # -- writes ---------------------------------------------------------------------------------------------------

    def write(self, request: Write, seconds: float = 30.0) -> Any:
        """Apply a write once per key and return its result, or the stored one when the key is known.

        Raises Refusal (stored under the key too) and KeyConflict. Any psycopg error before the commit means that
        nothing was applied. `seconds` bounds each wait for a lock.
        """
        with self._connection() as conn, conn.transaction():
            # The key first, then records in one order: no two writes can wait for each other.
            conn.execute(
                "SELECT set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)",
                [f"{max(1, int(seconds * 1000))}ms", _lock_id(self._schema, "key", request.key)],
            )
            outcome = self._stored(conn, request.key)
            if outcome is None:
                outcome = self._apply(conn, request)
            elif (outcome.world, outcome.tool, outcome.arguments_digest) != request.identity:
                raise KeyConflict(request.key)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def _apply(self, conn: Connection, request: Write) -> Outcome:
        # Advisory locks, because the row of a record that this world has not changed yet does not exist.
        touched = request.touched(self._world(conn, request.world), request.arguments)
        locks = {_lock_id(self._schema, request.world, table, key) for table, key in touched}
        conn.execute("SELECT pg_advisory_xact_lock(l) FROM unnest(%s::bigint[]) AS l", [sorted(locks)])
        state = self._world(conn, request.world)  # a new one: what was read before the lock may be old
        try:
            outcome = Outcome(*request.identity, result=request.apply(state))
        except Refusal as refusal:
            outcome = Outcome(*request.identity, error=refusal)
        self._save(conn, request.key, outcome, state.changed if outcome.error is None else {})
        return outcome

    def _save(self, conn: Connection, key: str, outcome: Outcome, changed: Mapping[RecordKey, Record]) -> None:
        keys = """INSERT INTO {schema}.keys (key, world, tool, arguments_digest, result, error_code, error)
                  VALUES (%s, %s, %s, %s, %s, %s, %s)"""
        overlay = """INSERT INTO {schema}.overlay (world, tbl, key, record) VALUES (%s, %s, %s, %s)
                     ON CONFLICT (world, tbl, key) DO UPDATE SET record = excluded.record"""
        ledger = "INSERT INTO {schema}.effects (world, key, tool, arguments_digest) VALUES (%s, %s, %s, %s)"
        error, identity = outcome.error, (outcome.tool, outcome.arguments_digest)
        kept = (None, error.code, error.text) if error else (Json(outcome.result), None, None)
        with conn.pipeline():  # one round trip
            conn.execute(self._sql(keys), [key, outcome.world, *identity, *kept])
            for (table, record_key), record in changed.items():
                conn.execute(self._sql(overlay), [outcome.world, table, record_key, Json(record)])
            if error is None:
                conn.execute(self._sql(ledger), [outcome.world, key, *identity])

    def _stored(self, conn: Connection, key: str) -> Outcome | None:
        query = """SELECT world, tool, arguments_digest, result, error, error_code FROM {schema}.keys WHERE key = %s"""
        row = conn.execute(self._sql(query), [key]).fetchone()
        if row is None:
            return None
        world, tool, arguments_digest, result, error, code = row
        return Outcome(world, tool, arguments_digest, result, Refusal(error, code) if error is not None else None)

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _sql(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(schema=sql.Identifier(self._schema))

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._lock:
            if not self._opened:
                self._pool.open()
                self._opened = True
        with self._pool.connection() as conn:
            yield conn

    def _world(self, conn: Connection, world: str) -> StoredWorld:
        return StoredWorld(conn, self._loaded(conn), self._sql, world)

    def _loaded(self, conn: Connection) -> Base:
        with self._lock:
            if self._base is None:
                rows = conn.execute(self._sql("SELECT tbl, key, record FROM {schema}.base ORDER BY tbl, position"))
                self._base = Base(rows.fetchall())
            return self._base


def _lock_id(*parts: str) -> int:
    """The advisory lock's 64-bit number; a chance collision only makes two writes wait for each other."""
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).digest()[:8], signed=True)
