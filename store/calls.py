"""Proposed calls and the dispatch of reads. Callers own the transaction; every result names state and fence."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, TextClause, text

from orchestrator.domain.model import AttemptState
from store import slots, tables, versions
from store.records import CallRecord, readable, record


def insert(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(tables.calls.insert(), list(rows))


_TURN = text("SELECT * FROM calls WHERE operation_id = :operation_id AND turn = :turn ORDER BY position")
_ALL = text("SELECT * FROM calls WHERE operation_id = :operation_id ORDER BY turn, position")


def of_turn(connection: Connection, operation_id: str, turn: int) -> list[CallRecord]:
    rows = connection.execute(_TURN, {"operation_id": operation_id, "turn": turn}).mappings()
    return [record(CallRecord, row) for row in rows]


def of_operation(connection: Connection, operation_id: str) -> list[CallRecord]:
    """All calls in transcript order."""
    rows = connection.execute(_ALL, {"operation_id": operation_id}).mappings()
    return [record(CallRecord, row) for row in rows]


# --- claim ---------------------------------------------------------------------------------------------------------

# `cand` picks one row; the rest takes its slot, its lease and writes the attempt, all in one statement.
_CLAIM = (
    """
    WITH {prelude} cand AS ({candidate}),
    """
    + slots.TAKE
    + """,
    claimed AS (
        UPDATE calls c SET state = 'RUNNING', fence = fence + 1, attempts = attempts + 1, wake_at = NULL,
               started_at = coalesce(started_at, clock_timestamp()),
               lease_until = clock_timestamp() + make_interval(secs => :lease)
        FROM cand LEFT JOIN taken ON true
        WHERE c.call_key = cand.id AND (NOT cand.limited OR taken.tool IS NOT NULL)
        RETURNING c.*),
    tried AS (
        INSERT INTO attempts (attempt_id, operation_id, call_key, kind, number, fence, state, worker)
        SELECT 'att_' || replace(gen_random_uuid()::text, '-', ''), operation_id, call_key, 'execute', attempts,
               fence, 'STARTED', :worker FROM claimed
        RETURNING attempt_id)
    SELECT claimed.*, tried.attempt_id, o.subject, o.scopes, o.revision AS operation_revision, o.ended_at AS ended,
           o.deadline - clock_timestamp() AS operation_left
    FROM claimed, tried, operations o WHERE o.operation_id = claimed.operation_id
    """
)
_PICK = "SELECT c.call_key AS id, c.tool, c.tenant, c.limited FROM calls c WHERE "
_DUE = f"c.state = 'READY' AND c.wake_at <= clock_timestamp() AND {versions.OF_C} "
_LOCKED = " FOR UPDATE OF c SKIP LOCKED"

_CLAIM_ONE = text(
    _CLAIM.format(prelude="", candidate=f"{_PICK} c.call_key = :hint AND NOT c.limited AND {_DUE} {_LOCKED}")
)
_CLAIM_OLDEST = text(
    _CLAIM.format(
        prelude="",
        candidate=f"{_PICK} c.queue = :queue AND NOT c.limited AND {_DUE} ORDER BY c.wake_at LIMIT 1 {_LOCKED}",
    )
)
_CLAIM_FAIR = text(
    _CLAIM.format(
        prelude="RECURSIVE " + slots.fair("calls", "call_key", "RUNNING", _DUE) + ",",
        candidate=f"""SELECT c.call_key AS id, c.tool, c.tenant, c.limited
        FROM calls c JOIN ranked USING (call_key) WHERE {_DUE} ORDER BY ranked.rank LIMIT 1 {_LOCKED}""",
    )
)


def claim(
    connection: Connection, *, hint: str | None, queue: str, lease: float, slot_lease: float, worker: str, fair: bool
) -> dict[str, Any] | None:
    """Take one due read: the hinted one, else a limited one in fair order (if `fair`), else the oldest.

    Returns the row with its attempt_id and its operation's subject, scopes, revision, end and time left; None when
    nothing may run now. Limited tools are never claimed by hint, or a flood of one tenant would pass the others.
    """
    values = {"lease": lease, "slot_lease": slot_lease, "worker": worker, "queue": queue}
    if hint is not None:
        row = connection.execute(_CLAIM_ONE, {**values, "hint": hint}).mappings().first()
        if row:
            return dict(row)
    for statement in (_CLAIM_FAIR, _CLAIM_OLDEST) if fair else (_CLAIM_OLDEST,):
        row = connection.execute(statement, values).mappings().first()
        if row:
            return dict(row)
    return None


# --- result --------------------------------------------------------------------------------------------------------

_SETTLE = text(
    """
    WITH settled AS (
        UPDATE calls SET state = :state, code = :code, observation = :observation, is_error = :is_error,
               binding = CAST(:binding AS jsonb), binding_sha256 = :binding_sha256, lease_until = NULL,
               evidence = :evidence, settled_at = clock_timestamp()
        WHERE call_key = :call_key AND state = 'RUNNING' AND fence = :fence
        RETURNING call_key, operation_id, revision),
    tried AS (
        UPDATE attempts a SET state = :attempt_state, code = :code, contacted = :contacted, ended_at = clock_timestamp()
        FROM settled WHERE a.call_key = settled.call_key AND a.state = 'STARTED'),
    freed AS (
        UPDATE slots SET holder = NULL, tenant = NULL, lease_until = NULL FROM settled
        WHERE holder = settled.call_key AND :free_slot)
    SELECT 1 FROM settled
    """
)
_AGAIN = text(
    """
    WITH back AS (
        UPDATE calls SET state = 'READY', lease_until = NULL,
               wake_at = clock_timestamp() + make_interval(secs => :delay)
        WHERE call_key = :call_key AND state = 'RUNNING' AND fence = :fence RETURNING call_key),
    tried AS (
        UPDATE attempts a SET state = :attempt_state, code = :code, contacted = :contacted, ended_at = clock_timestamp()
        FROM back WHERE a.call_key = back.call_key AND a.state = 'STARTED'),
    freed AS (
        UPDATE slots SET holder = NULL, tenant = NULL, lease_until = NULL FROM back
        WHERE holder = back.call_key AND :free_slot)
    SELECT 1 FROM back
    """
)


def settle(connection: Connection, **values: Any) -> bool:
    """Record a read's one result and free its slot. False: the fence is no longer ours, nothing changed."""
    values.setdefault("evidence", None)
    return _leave(connection, _SETTLE, values)


def try_again(connection: Connection, **values: Any) -> bool:
    """Back to READY, due after `delay` seconds, its slot free."""
    return _leave(connection, _AGAIN, values)


def _leave(connection: Connection, statement: TextClause, values: dict[str, Any]) -> bool:
    """A lost worker's request may still be served: its slot is not freed but kept until its deadline."""
    lost = values["attempt_state"] == AttemptState.LOST
    ours = connection.execute(statement, {**values, "free_slot": not lost}).first() is not None
    if ours and lost:
        slots.keep(connection, values["call_key"])
    return ours


_BIND_SETTLED = text(
    """
    UPDATE calls SET state = :state, code = :code, observation = :observation, is_error = :is_error,
           binding = CAST(:binding AS jsonb), binding_sha256 = :binding_sha256, wake_at = NULL,
           settled_at = clock_timestamp()
    WHERE call_key = :call_key AND state IN ('WAITING', 'READY')
    """
)


def settle_waiting(connection: Connection, **values: Any) -> bool:
    """Give a call that is not running its result: that of its action, or its rejection."""
    return connection.execute(_BIND_SETTLED, values).rowcount == 1


def rebind(connection: Connection, call_key: str, binding: str) -> None:
    """Another action answers this call: what it is bound to, before it has a result."""
    statement = text(
        "UPDATE calls SET binding = CAST(:binding AS jsonb) WHERE call_key = :call_key AND state = 'WAITING'"
    )
    connection.execute(statement, {"call_key": call_key, "binding": binding})


def release_held(connection: Connection, operation_id: str, turn: int, count: int) -> list[tuple[str, str, str]]:
    """Let `count` reads go that the parallelism budget kept back; (call_key, tool, queue) of each."""
    statement = text(
        """
        UPDATE calls SET wake_at = clock_timestamp() WHERE call_key IN (
            SELECT call_key FROM calls WHERE operation_id = :operation_id AND turn = :turn AND state = 'READY'
              AND wake_at IS NULL ORDER BY position LIMIT :count FOR UPDATE)
        RETURNING call_key, tool, queue
        """
    )
    values = {"operation_id": operation_id, "turn": turn, "count": count}
    return [(row.call_key, row.tool, row.queue) for row in connection.execute(statement, values)]


def unstarted(connection: Connection, operation_id: str) -> list[CallRecord]:
    """Reads that no worker has taken, locked; those that one has are left to finish as evidence."""
    statement = text("SELECT * FROM calls WHERE operation_id = :operation_id AND state = 'READY' FOR UPDATE")
    rows = connection.execute(statement, {"operation_id": operation_id}).mappings()
    return [record(CallRecord, row) for row in rows]


def waiting_on(connection: Connection, action_id: str) -> list[CallRecord]:
    """Calls that wait for this action's outcome, suppressed duplicates included."""
    statement = text("SELECT * FROM calls WHERE action_id = :action_id AND state = 'WAITING' ORDER BY turn, position")
    return [record(CallRecord, row) for row in connection.execute(statement, {"action_id": action_id}).mappings()]


# --- the sweeper ---------------------------------------------------------------------------------------------------


def renew(connection: Connection, held: Sequence[tuple[str, int]], lease: float) -> set[tuple[str, int]]:
    """Extend leases still held by these fences; returns the ones that are."""
    statement = text(
        """
        UPDATE calls c SET lease_until = clock_timestamp() + make_interval(secs => :lease)
        FROM unnest(CAST(:ids AS text[]), CAST(:fences AS bigint[])) AS h(id, fence)
        WHERE c.call_key = h.id AND c.fence = h.fence AND c.state = 'RUNNING' RETURNING c.call_key, c.fence
        """
    )
    values = {"lease": lease, "ids": [i for i, _ in held], "fences": [f for _, f in held]}
    return {(row.call_key, row.fence) for row in connection.execute(statement, values)}


def lost(connection: Connection, limit: int) -> list[CallRecord]:
    """Running reads whose lease has run out."""
    statement = text(
        f"SELECT c.* FROM calls c WHERE c.state = 'RUNNING' AND c.lease_until < clock_timestamp() AND {versions.OF_C} "
        "ORDER BY c.lease_until LIMIT :limit"
    )
    return readable(CallRecord, connection.execute(statement, {"limit": limit}).mappings())


def lease_expired(connection: Connection, call_key: str) -> bool:
    """Whether a read's lease has really run out, its row locked from here on: it may have been renewed meanwhile."""
    statement = text("SELECT lease_until < clock_timestamp() FROM calls WHERE call_key = :call_key FOR UPDATE")
    return bool(connection.execute(statement, {"call_key": call_key}).scalar())


def due(connection: Connection, limit: int) -> list[tuple[str, str, str]]:
    """(call_key, tool, queue) of reads that may run now and have a free slot where they need one."""
    statement = text(
        f"SELECT c.call_key, c.tool, c.queue FROM calls c WHERE {_DUE} AND (NOT c.limited OR {slots.HAS_FREE}) "
        "ORDER BY c.wake_at LIMIT :limit"
    )
    return [(row.call_key, row.tool, row.queue) for row in connection.execute(statement, {"limit": limit})]


def any_due(connection: Connection, queues: Sequence[str]) -> bool:
    """Whether a read of one of these queues may run now."""
    statement = text(
        "SELECT EXISTS (SELECT 1 FROM calls c WHERE c.queue = ANY(CAST(:queues AS text[])) AND "
        f"{_DUE} AND (NOT c.limited OR {slots.HAS_FREE}))"
    )
    return bool(connection.execute(statement, {"queues": list(queues)}).scalar())
