"""Operations, profiles, transcript items and turns. Callers own the transaction."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from orchestrator.domain.operation import OperationState
from store import tables, versions
from store.records import OperationRecord, record

_COLUMNS = "*, clock_timestamp() AS now"

# --- submit --------------------------------------------------------------------------------------------------------

_PROFILE = text(
    "INSERT INTO profiles (digest, name, version, body) VALUES (:digest, :name, :version, CAST(:body AS jsonb)) "
    "ON CONFLICT (digest) DO NOTHING"
)

_INSERT = text(
    """
    INSERT INTO operations (operation_id, schema_version, tenant, subject, scopes, profile, profile_digest,
                            caller_key, request_sha256, state, wake_at, deadline, next_seq)
    VALUES (:operation_id, :schema_version, :tenant, :subject, :scopes, :profile, :profile_digest,
            :caller_key, :request_sha256, 'READY', now(), now() + make_interval(secs => :wall_seconds), 1)
    ON CONFLICT DO NOTHING
    RETURNING operation_id
    """
)


def insert_profile(connection: Connection, *, digest: str, name: str, version: str, body: str) -> None:
    """Keep the frozen recipe; the same digest is the same recipe."""
    connection.execute(_PROFILE, {"digest": digest, "name": name, "version": version, "body": body})


def insert(connection: Connection, **values: Any) -> bool:
    """A new READY operation, due now. False when the tenant has used this caller key before, or the id is there.

    Waits for another transaction that is about to make the same.
    """
    values.setdefault("schema_version", tables.SCHEMA_VERSION)
    return connection.execute(_INSERT, values).first() is not None


def find_by_caller_key(connection: Connection, tenant: str, caller_key: str) -> tuple[str, str] | None:
    """(operation_id, request_sha256) of the submission that used the key."""
    statement = text(
        "SELECT operation_id, request_sha256 FROM operations WHERE tenant = :tenant AND caller_key = :caller_key"
    )
    row = connection.execute(statement, {"tenant": tenant, "caller_key": caller_key}).first()
    return (row.operation_id, row.request_sha256) if row else None


def profile_body(connection: Connection, digest: str) -> dict[str, Any]:
    body: dict[str, Any] = connection.execute(
        text("SELECT body FROM profiles WHERE digest = :digest"), {"digest": digest}
    ).scalar_one()
    return body


# --- claim ---------------------------------------------------------------------------------------------------------

_CLAIM = f"""
    UPDATE operations SET state = 'MODEL_REQUESTED', fence = fence + 1, wake_at = NULL, turn = turn + 1,
           lease_until = clock_timestamp() + make_interval(secs => :lease), updated_at = clock_timestamp()
    WHERE operation_id = (
        SELECT operation_id FROM operations
        WHERE {{which}} state IN ('READY', 'RESULTS_READY') AND wake_at <= clock_timestamp()
          AND {versions.OWN}
        ORDER BY wake_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING """
_CLAIM_ONE = text(_CLAIM.format(which="operation_id = :operation_id AND") + _COLUMNS)
_CLAIM_NEXT = text(_CLAIM.format(which="wake_at IS NOT NULL AND") + _COLUMNS)


def claim_turn(connection: Connection, operation_id: str | None, lease: float) -> OperationRecord | None:
    """Take the lease of the named operation if it is due, or of the one longest due when no name is given."""
    values: dict[str, Any] = {"lease": lease}
    if operation_id is None:
        row = connection.execute(_CLAIM_NEXT, values).mappings().first()
    else:
        row = connection.execute(_CLAIM_ONE, {**values, "operation_id": operation_id}).mappings().first()
    return record(OperationRecord, row) if row else None


# --- read ----------------------------------------------------------------------------------------------------------

_LOAD = text(f"SELECT {_COLUMNS} FROM operations WHERE operation_id = :operation_id")
_LOCK = text(f"SELECT {_COLUMNS} FROM operations WHERE operation_id = :operation_id FOR UPDATE")
_LOCK_FREE = text(f"SELECT {_COLUMNS} FROM operations WHERE operation_id = :operation_id FOR UPDATE SKIP LOCKED")


def load(connection: Connection, operation_id: str) -> OperationRecord | None:
    row = connection.execute(_LOAD, {"operation_id": operation_id}).mappings().first()
    return record(OperationRecord, row) if row else None


def lock(connection: Connection, operation_id: str) -> OperationRecord:
    """The row, locked until the transaction ends. Lock order everywhere: operation, action, slot, call.

    Raises NewerVersion: whoever locks it means to change something.
    """
    row = connection.execute(_LOCK, {"operation_id": operation_id}).mappings().one()
    versions.check(operation_id, row["schema_version"])
    return record(OperationRecord, row)


def lock_free(connection: Connection, operation_id: str) -> OperationRecord | None:
    """The row, locked; None at once where another session holds it: its holder may be frozen, the next look comes soon.

    Raises NewerVersion.
    """
    row = connection.execute(_LOCK_FREE, {"operation_id": operation_id}).mappings().first()
    if row is None:
        return None
    versions.check(operation_id, row["schema_version"])
    return record(OperationRecord, row)


def lock_leased(connection: Connection, operation_id: str, fence: int, *, wait: bool = True) -> OperationRecord | None:
    """The row, locked, if this fence still holds its turn; None tells a zombie to stop, and without `wait` also that
    another session has the lock."""
    held = lock(connection, operation_id) if wait else lock_free(connection, operation_id)
    if held is None:
        return None
    return held if held.fence == fence and held.state is OperationState.MODEL_REQUESTED else None


# --- save ----------------------------------------------------------------------------------------------------------

_SETTABLE = frozenset(column.name for column in tables.operations.columns) - {"operation_id", "tenant", "updated_at"}


def save(connection: Connection, operation_id: str, **changes: Any) -> None:
    """Set columns of a row that the caller has locked. Leaving MODEL_REQUESTED clears its lease."""
    unknown = set(changes) - _SETTABLE
    if unknown:
        raise ValueError(f"unknown columns {sorted(unknown)}")
    if "state" in changes and changes["state"] is not OperationState.MODEL_REQUESTED:
        changes["lease_until"] = None
    connection.execute(
        tables.operations.update()
        .where(tables.operations.c.operation_id == operation_id)
        .values(**changes, updated_at=text("clock_timestamp()"))
    )


_SETTLE_READ = text(
    """
    UPDATE operations SET open_calls = greatest(open_calls - 1, open_reads - 1 + open_inputs, held_reads + open_inputs),
           open_reads = greatest(open_reads - 1, held_reads),
           result_bytes = result_bytes + CASE WHEN revision = :revision THEN :size ELSE :superseded_size END,
           tainted = tainted OR (:taints AND revision = :revision), updated_at = clock_timestamp()
    WHERE operation_id = :operation_id
    RETURNING """
    + _COLUMNS
)


def count_read(
    connection: Connection, operation_id: str, *, revision: int, size: int, superseded_size: int, taints: bool
) -> OperationRecord:
    """One read of the current turn, asked under `revision`, has its result of `size` bytes; the row is locked from
    here on. The counts stay possible for a zombie too, whose transaction is then rolled back. Raises NewerVersion.
    """
    values = {
        "operation_id": operation_id, "revision": revision, "size": size, "superseded_size": superseded_size,
        "taints": taints,
    }  # fmt: skip
    row = connection.execute(_SETTLE_READ, values).mappings().one()
    versions.check(operation_id, row["schema_version"])
    return record(OperationRecord, row)


# --- transcript and turns ------------------------------------------------------------------------------------------

_ITEMS = text("SELECT seq, turn, kind, body FROM items WHERE operation_id = :operation_id ORDER BY seq")


def insert_items(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(tables.items.insert(), list(rows))


def load_items(connection: Connection, operation_id: str) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(_ITEMS, {"operation_id": operation_id}).mappings()]


def insert_turn(connection: Connection, row: dict[str, Any]) -> None:
    connection.execute(tables.turns.insert(), row)


# --- leases and timers (the sweeper) -------------------------------------------------------------------------------


def renew(connection: Connection, held: Sequence[tuple[str, int]], lease: float) -> set[tuple[str, int]]:
    """Extend leases that are still held by these fences; returns the ones that are."""
    statement = text(
        """
        UPDATE operations o SET lease_until = clock_timestamp() + make_interval(secs => :lease)
        FROM unnest(CAST(:ids AS text[]), CAST(:fences AS bigint[])) AS h(id, fence)
        WHERE o.operation_id = h.id AND o.fence = h.fence AND o.state = 'MODEL_REQUESTED'
        RETURNING o.operation_id, o.fence
        """
    )
    values = {"lease": lease, "ids": [i for i, _ in held], "fences": [f for _, f in held]}
    return {(row.operation_id, row.fence) for row in connection.execute(statement, values)}


def lost_turns(connection: Connection, limit: int) -> list[tuple[str, int]]:
    """(operation_id, fence) whose lease has run out."""
    statement = text(
        "SELECT operation_id, fence FROM operations WHERE state = 'MODEL_REQUESTED' "
        f"AND lease_until < clock_timestamp() AND {versions.OWN} ORDER BY lease_until LIMIT :limit"
    )
    return [(row.operation_id, row.fence) for row in connection.execute(statement, {"limit": limit})]


def lease_expired(connection: Connection, operation_id: str) -> bool:
    """Whether the lease of a locked row has really run out: it may have been renewed since it was listed."""
    statement = text("SELECT lease_until < clock_timestamp() FROM operations WHERE operation_id = :operation_id")
    return bool(connection.execute(statement, {"operation_id": operation_id}).scalar())


def past_deadline(connection: Connection, limit: int) -> list[str]:
    statement = text(
        "SELECT operation_id FROM operations WHERE ended_at IS NULL AND deadline < clock_timestamp() "
        f"AND {versions.OWN} ORDER BY deadline LIMIT :limit"
    )
    return list(connection.execute(statement, {"limit": limit}).scalars())


def due(connection: Connection, limit: int) -> list[str]:
    """Operations whose next turn may be asked now, longest due first."""
    statement = text(
        "SELECT operation_id FROM operations WHERE wake_at <= clock_timestamp() "
        f"AND {versions.OWN} ORDER BY wake_at LIMIT :limit"
    )
    return list(connection.execute(statement, {"limit": limit}).scalars())


def last_ask(connection: Connection, operation_id: str, turn: int) -> int:
    """The number of the last recorded request of a turn; 0 when there is none."""
    statement = text("SELECT max(ask) FROM turns WHERE operation_id = :operation_id AND turn = :turn")
    return int(connection.execute(statement, {"operation_id": operation_id, "turn": turn}).scalar() or 0)


# --- people --------------------------------------------------------------------------------------------------------


def list_newest(
    connection: Connection, *, tenant: str | None, state: str | None, parked: bool, limit: int
) -> list[dict[str, Any]]:
    """`parked`: only those that wait for `release`."""
    statement = text(
        """
        SELECT operation_id, tenant, subject, profile, state, reason, parked, turn, created_at, ended_at FROM operations
        WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant) AND (CAST(:state AS text) IS NULL OR state = :state)
          AND (parked IS NOT NULL OR NOT :parked)
        ORDER BY created_at DESC, operation_id DESC LIMIT :limit
        """
    )
    values = {"tenant": tenant, "state": state, "parked": parked, "limit": limit}
    rows = connection.execute(statement, values).mappings()
    return [dict(row) for row in rows]


def ending(connection: Connection, operation_id: str) -> dict[str, Any]:
    """final_text, pending and wake_at: what only people read."""
    statement = text("SELECT final_text, pending, wake_at FROM operations WHERE operation_id = :operation_id")
    return dict(connection.execute(statement, {"operation_id": operation_id}).mappings().one())


def turns_of(connection: Connection, operation_id: str) -> list[dict[str, Any]]:
    statement = text("SELECT * FROM turns WHERE operation_id = :operation_id ORDER BY turn, ask")
    return [dict(row) for row in connection.execute(statement, {"operation_id": operation_id}).mappings()]


def attempts_of(connection: Connection, operation_id: str) -> list[dict[str, Any]]:
    statement = text("SELECT * FROM attempts WHERE operation_id = :operation_id ORDER BY started_at, attempt_id")
    return [dict(row) for row in connection.execute(statement, {"operation_id": operation_id}).mappings()]


def call_times(connection: Connection, operation_id: str) -> list[dict[str, Any]]:
    statement = text(
        "SELECT call_key, created_at, started_at, settled_at FROM calls WHERE operation_id = :operation_id"
    )
    return [dict(row) for row in connection.execute(statement, {"operation_id": operation_id}).mappings()]
