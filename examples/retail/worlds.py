"""The state as a tool sees it: the base that all worlds share (read once per process), under what one world changed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import psycopg
import rfc8785
from psycopg import sql

from examples.retail.semantics import Record

Connection = psycopg.Connection[tuple[Any, ...]]
RecordKey = tuple[str, str]  # table, key


class Base:
    """The seeded state. Nobody changes it, so that a process can keep it."""

    def __init__(self, rows: Iterable[tuple[str, str, Record]]) -> None:
        """`rows` are (table, key, record) in file order. Raises LookupError when there is none."""
        self.tables: dict[str, dict[str, Record]] = {}
        for table, key, record in rows:
            self.tables.setdefault(table, {})[key] = record
        if not self.tables:
            raise LookupError("the shop has no records: seed it first")

    @cached_property
    def _canonical(self) -> dict[str, dict[str, bytes]]:
        return {
            table: {key: rfc8785.dumps(record) for key, record in records.items()}
            for table, records in self.tables.items()
        }

    def digest_with(self, changed: Mapping[RecordKey, Record]) -> str:
        """SHA-256, hex, of the RFC 8785 form of the whole state with these records changed or added."""
        tables = {table: dict(records) for table, records in self._canonical.items()}
        for (table, key), record in changed.items():
            tables.setdefault(table, {})[key] = rfc8785.dumps(record)
        text = _object({table: _object(records) for table, records in tables.items()})
        return hashlib.sha256(text).hexdigest()


def _object(members: Mapping[str, bytes]) -> bytes:
    """An RFC 8785 object of canonical values: names in UTF-16 order."""
    names = sorted(members, key=lambda name: name.encode("utf-16-be"))
    return b"{" + b",".join(rfc8785.dumps(name) + b":" + members[name] for name in names) + b"}"


class StoredWorld:
    """One world inside one database connection. Changes stay in `changed` until the caller saves them."""

    def __init__(self, conn: Connection, base: Base, render: Callable[[str], sql.Composed], world: str) -> None:
        self._conn = conn
        self._base = base
        self._render = render
        self._world = world
        self.changed: dict[RecordKey, Record] = {}

    def get(self, table: str, key: str) -> Record | None:
        if not _can_be_a_key(key):
            return None
        if (table, key) in self.changed:
            return self.changed[table, key]
        query = "SELECT record FROM {schema}.overlay WHERE world = %s AND tbl = %s AND key = %s"
        row = self._conn.execute(self._render(query), [self._world, table, key]).fetchone()
        return row[0] if row else self._base.tables.get(table, {}).get(key)

    def put(self, table: str, key: str, record: Record) -> None:
        self.changed[table, key] = record

    def all(self, table: str) -> Iterator[tuple[str, Record]]:
        """Base records in file order, then added ones in the order in which they came."""
        query = "SELECT key, record FROM {schema}.overlay WHERE world = %s AND tbl = %s ORDER BY added"
        rows = self._conn.execute(self._render(query), [self._world, table]).fetchall()
        own = {key: record for (of, key), record in self.changed.items() if of == table}
        yield from {**self._base.tables.get(table, {}), **dict(rows), **own}.items()


def _can_be_a_key(text: str) -> bool:
    """PostgreSQL stores no NUL and no lone surrogate; a model can propose either."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
