"""Halts: while one is open no write starts anywhere. Only an operator ends it."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

NONE = "NOT EXISTS (SELECT 1 FROM halts h WHERE h.lifted_at IS NULL)"


@dataclass(frozen=True, slots=True)
class Halt:
    code: str
    detail: str
    created_at: datetime


def raise_(connection: Connection, code: str, detail: str, anchored_at: datetime) -> bool:
    """Halt, unless that is so already. `anchored_at`: of the newest anchor that was looked at."""
    statement = text(
        "INSERT INTO halts (code, detail, anchored_at) VALUES (:code, :detail, :anchored_at) "
        "ON CONFLICT (code) WHERE lifted_at IS NULL DO NOTHING RETURNING halt_id"
    )
    values = {"code": code, "detail": detail, "anchored_at": anchored_at}
    return connection.execute(statement, values).first() is not None


def current(connection: Connection) -> Halt | None:
    statement = text("SELECT code, detail, created_at FROM halts WHERE lifted_at IS NULL ORDER BY halt_id LIMIT 1")
    row = connection.execute(statement).first()
    return Halt(row.code, row.detail, row.created_at) if row else None


def lift(connection: Connection, *, by: str, reason: str) -> list[str]:
    """End what is open; the codes of it."""
    statement = text(
        "UPDATE halts SET lifted_at = clock_timestamp(), lifted_by = :by, reason = :reason "
        "WHERE lifted_at IS NULL RETURNING code"
    )
    return list(connection.execute(statement, {"by": by, "reason": reason}).scalars())


def accepted(connection: Connection) -> datetime | None:
    """What anchors up to this time say of the database was accepted by an operator."""
    statement = text("SELECT max(anchored_at) FROM halts WHERE lifted_at IS NOT NULL")
    found: datetime | None = connection.execute(statement).scalar()
    return found
