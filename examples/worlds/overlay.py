"""The state as a tool sees it: the base that all worlds share (read once per process), under what one world changed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import psycopg
import rfc8785
from psycopg import sql

from examples.worlds.world import Record, RecordKey

Connection = psycopg.Connection[tuple[Any, ...]]


class Base:
    """The seeded state. Nobody changes it, so that a process can keep it."""

    def __init__(self, rows: Iterable[tuple[str, str, Record]]) -> None:
        """`rows` are (table, key, record) in file order. Raises LookupError when there is none."""
        self.tables: dict[str, dict[str, Record]] = {}
        for table, key, record in rows:
            self.tables.setdefault(table, {})[key] = record
        if not self.tables:
            raise LookupError("there are no records: seed them first")

    @cached_property
    def _canonical(self) -> dict[str, dict[str, bytes]]:
        """Each record as a member of its table's canonical text, in canonical order."""
        return {
            table: {key: _member(key, rfc8785.dumps(records[key])) for key in sorted(records, key=_order)}
            for table, records in self.tables.items()
        }

    def digest_with(self, changed: Mapping[RecordKey, Record]) -> str:
        """SHA-256, hex, of the RFC 8785 form of the whole state with these records changed or added."""
        tables = {table: dict(members) for table, members in self._canonical.items()}
        for (table, key), record in changed.items():
            tables.setdefault(table, {})[key] = _member(key, rfc8785.dumps(record))
        whole = {table: _member(table, _object(self._in_order(table, members))) for table, members in tables.items()}
        return hashlib.sha256(_object(whole[table] for table in sorted(whole, key=_order))).hexdigest()

    def _in_order(self, table: str, members: Mapping[str, bytes]) -> Iterable[bytes]:
        """A changed record keeps its place; only added ones make it necessary to sort again."""
        if len(members) == len(self._canonical.get(table, ())):
            return members.values()
        return (members[key] for key in sorted(members, key=_order))


def _order(name: str) -> bytes:
    """RFC 8785 sorts names by UTF-16 code units."""
    return name.encode("utf-16-be")


def _member(name: str, value: bytes) -> bytes:
    return rfc8785.dumps(name) + b":" + value


def _object(members: Iterable[bytes]) -> bytes:
    return b"{" + b",".join(members) + b"}"


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
