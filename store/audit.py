"""The append-only audit: one row per fact, written in the transaction that makes it one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from store import tables


@dataclass(frozen=True, slots=True)
class Entry:
    """`actor` is `worker:…`, `caller`, `approver:…` or `sweeper`; `body` holds digests and redacted values only."""

    operation_id: str
    kind: str
    actor: str
    subject_id: str | None = None
    body: dict[str, Any] = field(default_factory=dict)


def append(connection: Connection, *entries: Entry) -> None:
    if entries:
        rows = [
            {
                "operation_id": e.operation_id, "kind": e.kind, "actor": e.actor,
                "subject_id": e.subject_id, "body": e.body,
            }
            for e in entries
        ]  # fmt: skip
        connection.execute(tables.audit.insert(), rows)


def of_operation(connection: Connection, operation_id: str) -> Sequence[dict[str, Any]]:
    statement = text(
        "SELECT audit_id, kind, subject_id, actor, body, at FROM audit WHERE operation_id = :operation_id "
        "ORDER BY audit_id"
    )
    return [dict(row) for row in connection.execute(statement, {"operation_id": operation_id}).mappings()]
