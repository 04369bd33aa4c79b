"""Actions (writes and guarded reads) and their attempts. Callers own the transaction and hold the operation's lock.

Lock order everywhere: operation, action, slot, call.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from orchestrator.domain.action import ActionState
from orchestrator.domain.model import AttemptState
from store import halts, slots, tables, versions
from store.records import ActionRecord, readable, record


def insert(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """A key used twice raises IntegrityError: one action per idempotency key, whoever asks."""
    if rows:
        connection.execute(tables.actions.insert(), list(rows))


def load(connection: Connection, action_id: str) -> ActionRecord | None:
    row = (
        connection.execute(text("SELECT * FROM actions WHERE action_id = :action_id"), {"action_id": action_id})
        .mappings()
        .first()
    )
    return record(ActionRecord, row) if row else None


def lock(connection: Connection, action_id: str) -> ActionRecord:
    statement = text("SELECT * FROM actions WHERE action_id = :action_id FOR UPDATE")
    return record(ActionRecord, connection.execute(statement, {"action_id": action_id}).mappings().one())


def of_operation(connection: Connection, operation_id: str) -> list[ActionRecord]:
    statement = text("SELECT * FROM actions WHERE operation_id = :operation_id ORDER BY turn, position")
    return [
        record(ActionRecord, row) for row in connection.execute(statement, {"operation_id": operation_id}).mappings()
    ]


def of_turn(connection: Connection, operation_id: str, turn: int) -> list[ActionRecord]:
    """The actions that the calls of this turn wait for (their own, and earlier ones that they repeat), in its order."""
    statement = text(
        """
        SELECT a.* FROM actions a JOIN (
            SELECT action_id, min(position) AS place FROM calls
            WHERE operation_id = :operation_id AND turn = :turn AND action_id IS NOT NULL GROUP BY action_id) c
        USING (action_id) ORDER BY c.place
        """
    )
    rows = connection.execute(statement, {"operation_id": operation_id, "turn": turn}).mappings()
    return [record(ActionRecord, row) for row in rows]


# --- due -----------------------------------------------------------------------------------------------------------

_FREE = "(c.lease_until IS NULL OR c.lease_until < clock_timestamp())"
_TIME_HAS_COME = f"c.wake_at <= clock_timestamp() AND {_FREE} AND {versions.OF_C}"
_DUE = f"{_TIME_HAS_COME} AND (c.state <> 'READY' OR {halts.NONE}) "


_LEFT = f"{_DUE} AND c.action_id <> ALL(CAST(:skip AS text[]))"
_NEXT = text(
    f"""
    WITH RECURSIVE {slots.fair("actions", "action_id", "STARTED", _LEFT)},
    limited AS (SELECT action_id, wake_at FROM ranked JOIN actions USING (action_id) ORDER BY rank LIMIT 1),
    free AS (SELECT c.action_id, c.wake_at FROM actions c
             WHERE c.queue = :queue AND NOT c.limited AND {_LEFT} ORDER BY c.wake_at LIMIT 1)
    SELECT action_id FROM (SELECT * FROM limited UNION ALL SELECT * FROM free) AS next ORDER BY wake_at LIMIT 1
    """
)


def next_due(connection: Connection, queue: str, skip: Sequence[str] = ()) -> str | None:
    """The action of this queue that is longest due; among those of limited tools that have a free slot, the one whose
    turn it is. Takes no lock.
    """
    found: str | None = connection.execute(_NEXT, {"queue": queue, "skip": list(skip)}).scalar()
    return found


def due(connection: Connection, limit: int) -> list[tuple[str, str, str]]:
    """(action_id, tool, queue) of actions to start or to reconcile now."""
    statement = text(
        f"SELECT c.action_id, c.tool, c.queue FROM actions c WHERE {_DUE} "
        f"AND (NOT c.limited OR {slots.HAS_FREE}) ORDER BY c.wake_at LIMIT :limit"
    )
    return [(row.action_id, row.tool, row.queue) for row in connection.execute(statement, {"limit": limit})]


def load_due(connection: Connection, action_id: str) -> ActionRecord | None:
    """The named action, if its time has come: a hint of another one must set nothing going, not even the host's hooks.

    None also where a newer release wrote it. Whoever starts it finds out about halts.
    """
    statement = text(f"SELECT c.* FROM actions c WHERE c.action_id = :action_id AND {_TIME_HAS_COME}")
    found = readable(ActionRecord, connection.execute(statement, {"action_id": action_id}).mappings())
    return found[0] if found else None


def any_due(connection: Connection, queues: Sequence[str]) -> bool:
    """Whether an action of one of these queues may be started or reconciled now."""
    statement = text(
        f"SELECT EXISTS (SELECT 1 FROM actions c WHERE c.queue = ANY(CAST(:queues AS text[])) AND {_DUE} "
        f"AND (NOT c.limited OR {slots.HAS_FREE}))"
    )
    return bool(connection.execute(statement, {"queues": list(queues)}).scalar())


# --- start ---------------------------------------------------------------------------------------------------------

_START = text(
    """
    WITH cand AS (
        SELECT action_id AS id, tool, tenant, limited FROM actions
        WHERE action_id = :action_id AND state = 'READY' AND wake_at <= clock_timestamp()
    """
    + f"AND {halts.NONE} FOR UPDATE SKIP LOCKED),"
    + slots.TAKE
    + """,
    started AS (
        UPDATE actions a SET state = 'STARTED', fence = fence + 1, attempts = attempts + 1, checks = 0, wake_at = NULL,
               faults = 0, started_at = coalesce(started_at, clock_timestamp()),
               lease_until = clock_timestamp() + make_interval(secs => :lease)
        FROM cand LEFT JOIN taken ON true
        WHERE a.action_id = cand.id AND (NOT cand.limited OR taken.tool IS NOT NULL)
        RETURNING a.*)
    INSERT INTO attempts (attempt_id, operation_id, action_id, kind, number, fence, state, worker)
    SELECT 'att_' || replace(gen_random_uuid()::text, '-', ''), operation_id, action_id, 'execute', attempts,
           fence, 'STARTED', :worker FROM started
    RETURNING attempt_id, fence
    """
)


def start(
    connection: Connection, action_id: str, *, lease: float, slot_lease: float, worker: str
) -> tuple[str, int] | None:
    """READY to STARTED with its attempt and slot, or None if it is not ours to start. Returns (attempt_id, fence)."""
    values = {"action_id": action_id, "lease": lease, "slot_lease": slot_lease, "worker": worker}
    row = connection.execute(_START, values).first()
    return (row.attempt_id, row.fence) if row else None


_CHECK = text(
    f"""
    WITH held AS (
        UPDATE actions c SET fence = fence + 1, checks = checks + 1, faults = faults + 1,
               lease_until = clock_timestamp() + make_interval(secs => :lease),
               wake_at = clock_timestamp() + make_interval(secs => :lease + :apart)
        WHERE action_id = :action_id AND state IN ('UNKNOWN', 'PENDING') AND {_DUE}
        RETURNING *),
    lost AS (
        UPDATE attempts a SET state = 'LOST', ended_at = clock_timestamp()
        FROM held WHERE a.action_id = held.action_id AND a.state = 'STARTED' RETURNING a.attempt_id)
    SELECT held.*, (SELECT count(*) FROM lost) AS lost_attempts FROM held
    """
)


def claim_check(connection: Connection, action_id: str, *, lease: float, apart: float = 0.0) -> ActionRecord | None:
    """Take the lease for one reconciliation of an uncertain action that is due.

    If nothing comes of it, the next may begin `apart` seconds after the lease has run out.
    """
    row = connection.execute(_CHECK, {"action_id": action_id, "lease": lease, "apart": apart}).mappings().first()
    return record(ActionRecord, row) if row else None


def last_sent(connection: Connection, action_id: str) -> datetime | None:
    """When its latest attempt began."""
    statement = text("SELECT max(started_at) FROM attempts WHERE action_id = :action_id AND kind = 'execute'")
    found: datetime | None = connection.execute(statement, {"action_id": action_id}).scalar()
    return found


def end_attempt(
    connection: Connection, action_id: str, *, state: str, code: str | None, contacted: bool | None
) -> None:
    """Close the action's live attempt, if there is one. A LOST one keeps its slot until its deadline."""
    if state == AttemptState.LOST:
        slots.keep(connection, action_id)
    statement = text(
        "UPDATE attempts SET state = :state, code = :code, contacted = :contacted, ended_at = clock_timestamp() "
        "WHERE action_id = :action_id AND state = 'STARTED'"
    )
    connection.execute(statement, {"action_id": action_id, "state": state, "code": code, "contacted": contacted})


def may_have_arrived(connection: Connection, action_id: str) -> bool:
    """Whether some attempt left without proof that nothing was sent."""
    statement = text(
        "SELECT EXISTS (SELECT 1 FROM attempts WHERE action_id = :action_id AND kind = 'execute' "
        "AND state NOT IN ('NOT_SENT', 'FAILED'))"
    )
    return bool(connection.execute(statement, {"action_id": action_id}).scalar())


def redirect(connection: Connection, old: str, new: str) -> list[dict[str, Any]]:
    """The calls that waited for `old` wait for `new` from now on: call_key, binding. The caller saves the bindings."""
    statement = text(
        "UPDATE calls SET action_id = :new WHERE action_id = :old AND state = 'WAITING' RETURNING call_key, binding"
    )
    return [dict(row) for row in connection.execute(statement, {"old": old, "new": new}).mappings()]


# --- save ----------------------------------------------------------------------------------------------------------

_SETTABLE = frozenset(
    {"state", "code", "evidence", "wake_at", "checks", "review", "external_ref", "observation", "settled_at"}
)


def save(connection: Connection, action: ActionRecord, **changes: Any) -> bool:
    """Set columns where state and fence are still those of `action`; clears its lease and its faults.

    False: somebody was first.
    """
    unknown = set(changes) - _SETTABLE
    if unknown:
        raise ValueError(f"unknown columns {sorted(unknown)}")
    actions = tables.actions
    updated = connection.execute(
        actions.update()
        .where(
            actions.c.action_id == action.action_id, actions.c.state == action.state, actions.c.fence == action.fence
        )
        .values(lease_until=None, faults=0, **changes)
    )
    return updated.rowcount == 1


# --- parking -------------------------------------------------------------------------------------------------------


def count_faults(connection: Connection, action: ActionRecord, faults: int) -> int:
    """So often in a row was it tried to start this action; returns `faults`. Nothing changes where it has moved on."""
    statement = text(
        "UPDATE actions SET faults = :faults WHERE action_id = :action_id AND state = 'READY' AND fence = :fence"
    )
    connection.execute(statement, {"action_id": action.action_id, "fence": action.fence, "faults": faults})
    return faults


def put_back(connection: Connection, action: ActionRecord, *, faults: int, delay: float | None) -> bool:
    """Let go of an action of which nothing could be recorded: due again after `delay` seconds, or never (None), and
    then an uncertain one needs an operator. False: it has been moved meanwhile.
    """
    statement = text(
        """
        UPDATE actions SET faults = :faults, lease_until = NULL,
               wake_at = clock_timestamp() + make_interval(secs => CAST(:delay AS double precision)),
               review = review OR (state <> 'READY' AND CAST(:delay AS double precision) IS NULL)
        WHERE action_id = :action_id AND state = :state AND fence = :fence AND wake_at IS NOT NULL RETURNING action_id
        """
    )
    values = {
        "action_id": action.action_id, "state": action.state, "fence": action.fence, "faults": faults, "delay": delay,
    }  # fmt: skip
    return connection.execute(statement, values).first() is not None


def unpark(connection: Connection, operation_id: str) -> list[tuple[str, str, str]]:
    """Make due what `put_back` has let go of for good. (action_id, tool, queue) of each."""
    statement = text(
        """
        UPDATE actions SET faults = 0, wake_at = clock_timestamp(), review = false
        WHERE operation_id = :operation_id AND faults > 0 AND wake_at IS NULL
          AND state IN ('READY', 'UNKNOWN', 'PENDING')
        RETURNING action_id, tool, queue
        """
    )
    return [(r.action_id, r.tool, r.queue) for r in connection.execute(statement, {"operation_id": operation_id})]


def release(connection: Connection, action_ids: Sequence[str]) -> list[tuple[str, str, str]]:
    """Make READY actions due: their place in the turn's order has come. (action_id, tool, queue) of each."""
    statement = text(
        "UPDATE actions SET wake_at = clock_timestamp() WHERE action_id = ANY(CAST(:ids AS text[])) "
        "AND state = 'READY' AND wake_at IS NULL RETURNING action_id, tool, queue"
    )
    return [(r.action_id, r.tool, r.queue) for r in connection.execute(statement, {"ids": list(action_ids)})]


# --- the sweeper ---------------------------------------------------------------------------------------------------


def renew(connection: Connection, held: Sequence[tuple[str, int]], lease: float) -> set[tuple[str, int]]:
    """Extend leases still held by these fences; returns the ones that are."""
    statement = text(
        """
        UPDATE actions a SET lease_until = clock_timestamp() + make_interval(secs => :lease)
        FROM unnest(CAST(:ids AS text[]), CAST(:fences AS bigint[])) AS h(id, fence)
        WHERE a.action_id = h.id AND a.fence = h.fence AND a.lease_until IS NOT NULL RETURNING a.action_id, a.fence
        """
    )
    values = {"lease": lease, "ids": [i for i, _ in held], "fences": [f for _, f in held]}
    return {(row.action_id, row.fence) for row in connection.execute(statement, values)}


def lost(connection: Connection, tools: Sequence[str], limit: int) -> list[ActionRecord]:
    """STARTED actions of these tools whose worker's lease has run out: their outcome is unknown."""
    statement = text(
        f"SELECT c.* FROM actions c WHERE c.state = 'STARTED' AND c.lease_until < clock_timestamp() AND {versions.OF_C}"
        " AND c.tool = ANY(CAST(:tools AS text[])) ORDER BY c.lease_until LIMIT :limit"
    )
    return readable(ActionRecord, connection.execute(statement, {"tools": list(tools), "limit": limit}).mappings())


def lease_expired(connection: Connection, action_id: str) -> bool:
    """Whether the lease of a locked row has really run out: it may have been renewed since it was listed."""
    statement = text("SELECT lease_until < clock_timestamp() FROM actions WHERE action_id = :action_id")
    return bool(connection.execute(statement, {"action_id": action_id}).scalar())


def unstarted(connection: Connection, operation_id: str) -> list[ActionRecord]:
    """Actions that can still be stopped, locked."""
    statement = text(
        "SELECT * FROM actions WHERE operation_id = :operation_id "
        "AND state IN ('PROPOSED', 'WAITING_APPROVAL', 'READY') ORDER BY turn, position FOR UPDATE"
    )
    rows = connection.execute(statement, {"operation_id": operation_id}).mappings()
    return [record(ActionRecord, row) for row in rows]


def reviews(connection: Connection, tenant: str | None, limit: int) -> list[dict[str, Any]]:
    """Uncertain actions that only an operator can settle any more, oldest first."""
    statement = text(
        """
        SELECT action_id, operation_id, tenant, tool, state, evidence, idempotency_key, external_ref, started_at
        FROM actions WHERE review AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
        ORDER BY started_at LIMIT :limit
        """
    )
    rows = connection.execute(statement, {"tenant": tenant, "limit": limit}).mappings()
    return [dict(row) for row in rows]


def states(connection: Connection, operation_id: str) -> list[tuple[str, str, ActionState, str | None]]:
    """(action_id, tool, state, external_ref) in order, for terminal records."""
    return [(a.action_id, a.tool, a.state, a.external_ref) for a in of_operation(connection, operation_id)]
