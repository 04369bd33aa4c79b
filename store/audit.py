"""The append-only audit: one row per fact, written in the transaction that makes it one, chained per operation."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, text

from orchestrator.domain import chain


@dataclass(frozen=True, slots=True)
class Entry:
    """`actor` is `worker:…`, `caller`, `approver:…` or `sweeper`; `body` holds digests and redacted values only."""

    operation_id: str
    kind: str
    actor: str
    subject_id: str | None = None
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """One link of a chain. No other transaction can have made it: its digest covers the clock and what came before."""

    operation_id: str
    seq: int
    sha256: str


# One statement, however many entries. `link` starts at the chain's head and adds one link per entry, in order; the
# bytes of a link are those of `chain.link_sha256`. Whoever writes holds the operation's row lock, so no other head
# can appear meanwhile; if one did, the unique (operation_id, seq) would refuse the transaction.
_APPEND = text(
    f"""
    WITH RECURSIVE entry AS (
        SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:subject_ids AS text[]), CAST(:bodies AS text[]),
                             CAST(:digests AS text[])) WITH ORDINALITY AS e(kind, subject_id, body, digest, n)),
    start AS (
        SELECT o.tenant, sha256(convert_to(o.tenant, 'UTF8')) AS tenant_sha256, c.at,
               int8send(CAST(extract(epoch FROM c.at) * 1000000 AS bigint)) AS at_bytes,
               coalesce(h.seq, 0) AS seq, coalesce(h.sha256, :genesis) AS sha256
        FROM operations o CROSS JOIN (SELECT clock_timestamp() AS at) c
        LEFT JOIN LATERAL (SELECT a.seq, a.sha256 FROM audit a WHERE a.operation_id = o.operation_id
                           ORDER BY a.seq DESC LIMIT 1) h ON true
        WHERE o.operation_id = :operation_id),
    link AS (
        SELECT CAST(0 AS bigint) AS n, s.*, CAST(NULL AS text) AS prev, CAST(NULL AS text) AS kind,
               CAST(NULL AS text) AS subject_id, CAST(NULL AS text) AS body, CAST(NULL AS text) AS digest FROM start s
        UNION ALL
        SELECT e.n, l.tenant, l.tenant_sha256, l.at, l.at_bytes, l.seq + 1,
               encode(sha256(convert_to('{chain.LINK}', 'UTF8') || decode('00', 'hex') || decode(l.sha256, 'hex')
                             || int8send(CAST(l.seq + 1 AS bigint)) || l.at_bytes || l.tenant_sha256
                             || decode(e.digest, 'hex')), 'hex'),
               l.sha256, e.kind, e.subject_id, e.body, e.digest
        FROM link l JOIN entry e ON e.n = l.n + 1)
    INSERT INTO audit (operation_id, seq, tenant, kind, subject_id, actor, body, at, entry_sha256, prev_sha256, sha256)
    SELECT :operation_id, seq, tenant, kind, subject_id, CAST(:actor AS text), CAST(body AS jsonb), at, digest, prev,
           sha256
    FROM link WHERE n > 0
    RETURNING seq, sha256
    """
)
_LINKS = "audit.links"  # of a connection's `info`


def append(connection: Connection, entries: Sequence[Entry]) -> None:
    """Add entries to their operations' chains, in order. The caller holds the row lock of each operation."""
    for (operation_id, actor), group in groupby(entries, key=lambda e: (e.operation_id, e.actor)):
        rows = list(group)
        values = {
            "operation_id": operation_id,
            "actor": actor,
            "genesis": chain.genesis(operation_id),
            "kinds": [e.kind for e in rows],
            "subject_ids": [e.subject_id for e in rows],
            "bodies": [json.dumps(e.body) for e in rows],
            "digests": [chain.entry_sha256(operation_id, e.kind, e.subject_id, actor, e.body) for e in rows],
        }
        added = [Link(operation_id, row.seq, row.sha256) for row in connection.execute(_APPEND, values)]
        if len(added) != len(rows):
            raise AssertionError("an audited operation exists")
        connection.info.get(_LINKS, []).append(max(added, key=lambda link: link.seq))


# --- evidence of a commit ------------------------------------------------------------------------------------------


@contextmanager
def watched(connection: Connection) -> Iterator[list[Link]]:
    """Collects the last link of each `append` on the connection within the block."""
    links: list[Link] = []
    info = connection.info
    info[_LINKS] = links
    try:
        yield links
    finally:
        info.pop(_LINKS, None)


def has(connection: Connection, link: Link) -> bool:
    """Whether the transaction that added the link has committed; waits until it has ended one way or the other.

    It held the operation's row lock, unless it made the row.
    """
    values = {"operation_id": link.operation_id, "seq": link.seq, "sha256": link.sha256}
    connection.execute(text("SELECT 1 FROM operations WHERE operation_id = :operation_id FOR UPDATE"), values)
    statement = text(
        "SELECT EXISTS (SELECT 1 FROM audit WHERE operation_id = :operation_id AND seq = :seq AND sha256 = :sha256)"
    )
    return bool(connection.execute(statement, values).scalar())


# --- reading -------------------------------------------------------------------------------------------------------

_OF_OPERATION = text("SELECT * FROM audit WHERE operation_id = :operation_id ORDER BY seq")


def of_operation(connection: Connection, operation_id: str) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(_OF_OPERATION, {"operation_id": operation_id}).mappings()]


# --- verification --------------------------------------------------------------------------------------------------


def operations_after(connection: Connection, after: str, limit: int) -> list[dict[str, Any]]:
    """The next operations in order of id: operation_id, tenant, subject, state, profile_digest."""
    statement = text(
        "SELECT operation_id, tenant, subject, state, profile_digest FROM operations "
        "WHERE operation_id > :after ORDER BY operation_id LIMIT :limit"
    )
    return [dict(row) for row in connection.execute(statement, {"after": after, "limit": limit}).mappings()]


def operations_named(connection: Connection, operation_id: str) -> list[dict[str, Any]]:
    statement = text(
        "SELECT operation_id, tenant, subject, state, profile_digest FROM operations WHERE operation_id = :operation_id"
    )
    return [dict(row) for row in connection.execute(statement, {"operation_id": operation_id}).mappings()]


def evidence(connection: Connection, table: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Every row of these operations in one of the tables that the audit speaks of."""
    statement = text(_EVIDENCE[table] + " = ANY(CAST(:ids AS text[])) ORDER BY " + _ORDER[table])
    return [dict(row) for row in connection.execute(statement, {"ids": list(ids)}).mappings()]


_EVIDENCE = {
    "audit": "SELECT * FROM audit WHERE operation_id",
    "calls": "SELECT c.*, a.idempotency_key FROM calls c LEFT JOIN actions a USING (action_id) WHERE c.operation_id",
    "turns": "SELECT * FROM turns WHERE operation_id",
}
_ORDER = {"audit": "operation_id, seq", "calls": "c.operation_id, turn, position", "turns": "operation_id, turn, ask"}


def strays(connection: Connection) -> list[dict[str, Any]]:
    """Rows whose operation does not exist; only somebody who switched the constraints off can have made them."""
    statement = text(
        "SELECT * FROM audit a WHERE NOT EXISTS (SELECT 1 FROM operations o WHERE o.operation_id = a.operation_id) "
        "ORDER BY a.operation_id, a.seq"
    )
    return [dict(row) for row in connection.execute(statement).mappings()]


# --- anchors -------------------------------------------------------------------------------------------------------

_HEADS = text(
    "SELECT DISTINCT ON (operation_id) operation_id, seq, sha256 FROM audit WHERE audit_id > :after "
    "ORDER BY operation_id, seq DESC"
)
_LAST = text("SELECT coalesce(max(audit_id), 0) AS audit_id, clock_timestamp() AS now FROM audit")


def last(connection: Connection) -> tuple[int, Any]:
    """(largest audit_id, database clock)."""
    row = connection.execute(_LAST).one()
    return row.audit_id, row.now


def heads_after(connection: Connection, audit_id: int) -> list[tuple[str, int, str]]:
    """(operation_id, seq, sha256) of the last link of every chain that grew after this row."""
    return [(r.operation_id, r.seq, r.sha256) for r in connection.execute(_HEADS, {"after": audit_id})]


def links(connection: Connection, points: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """sha256 by (operation_id, seq), where such a row exists."""
    statement = text(
        "SELECT a.operation_id, a.seq, a.sha256 FROM audit a "
        "JOIN unnest(CAST(:ids AS text[]), CAST(:seqs AS int[])) AS p(operation_id, seq) USING (operation_id, seq)"
    )
    values = {"ids": [i for i, _ in points], "seqs": [s for _, s in points]}
    return {(r.operation_id, r.seq): r.sha256 for r in connection.execute(statement, values)}
