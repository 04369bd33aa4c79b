"""PostgreSQL itself refuses impossible rows, whatever the code above it does."""

from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from store import actions, audit, operations
from tests.store.rows import Rows

APPEND_ONLY = "is append-only"
NOW = "clock_timestamp()"


def test_items_and_audit_are_append_only(rows: Rows) -> None:
    operation = rows.operation()
    rows.sql("INSERT INTO items (operation_id, seq, turn, kind, body) VALUES (:o, 0, 0, 'user', '{}')", o=operation)
    with rows.database.transaction() as connection:
        audit.append(connection, [audit.Entry(operation, "k", "a")])
    for statement in (
        "UPDATE items SET body = '[]'", "DELETE FROM items", "UPDATE audit SET actor = 'b'", "DELETE FROM audit",
    ):  # fmt: skip
        with pytest.raises(DBAPIError, match=APPEND_ONLY):
            rows.sql(f"{statement} WHERE operation_id = :o", o=operation)
    with pytest.raises(DBAPIError, match=APPEND_ONLY):
        rows.sql("TRUNCATE audit")


def test_a_settled_call_keeps_its_result(rows: Rows) -> None:
    key = rows.read(rows.operation())
    assert rows.settle(rows.claim(hint=key))
    for change in ("observation = 'other'", "state = 'READY'", "binding = '{}'", "attempts = 9"):
        with pytest.raises(DBAPIError, match=APPEND_ONLY):
            rows.sql(f"UPDATE calls SET {change} WHERE call_key = :key", key=key)


def test_an_operation_ends_once(rows: Rows) -> None:
    operation = rows.operation()
    end = f"UPDATE operations SET state = 'CANCELLED', ended_at = {NOW}, wake_at = NULL WHERE operation_id = :o"
    rows.sql(end, o=operation)
    for change in ("state = 'READY', ended_at = NULL", "state = 'COMPLETED'", "reason = 'INTERNAL', state = 'FAILED'"):
        with pytest.raises(DBAPIError, match=APPEND_ONLY):
            rows.sql(f"UPDATE operations SET {change} WHERE operation_id = :o", o=operation)
    rows.sql("UPDATE operations SET result_bytes = 1, pending = '{}' WHERE operation_id = :o", o=operation)


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("state = 'SLEEPING'", "ck_operations_state"),
        ("state = 'FAILED', wake_at = NULL, ended_at = now(), reason = 'BAD_LUCK'", "ck_operations_reason"),
        ("state = 'FAILED', wake_at = NULL, ended_at = now()", "ck_operations_reason_state"),
        ("reason = 'INTERNAL'", "ck_operations_reason_state"),
        ("state = 'COMPLETED', wake_at = NULL", "ck_operations_ended"),
        ("ended_at = now()", "ck_operations_ended"),
        ("lease_until = now()", "ck_operations_lease"),
        ("state = 'MODEL_REQUESTED', wake_at = NULL", "ck_operations_lease"),
        ("state = 'EXECUTING'", "ck_operations_wake"),
        ("open_reads = 1", "ck_operations_open"),
        ("open_calls = 1, open_reads = 1, held_reads = 2", "ck_operations_open"),
        ("open_calls = -1", "ck_operations_open"),
    ],
)
def test_operations(rows: Rows, change: str, constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint):
        rows.sql(f"UPDATE operations SET {change} WHERE operation_id = :o", o=rows.operation())


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("state = 'GONE'", "ck_actions_state"),
        ("effect = 'maybe'", "ck_actions_effect"),
        ("state = 'SUCCEEDED', wake_at = NULL, started_at = now()", "ck_actions_settled"),
        ("observation = '{}'", "ck_actions_observation"),
        ("lease_until = now()", "ck_actions_lease"),
        ("state = 'STARTED', wake_at = NULL, started_at = now()", "ck_actions_started_lease"),
        ("state = 'WAITING_APPROVAL'", "ck_actions_wake"),
        ("state = 'UNKNOWN'", "ck_actions_started"),
    ],
)
def test_actions(rows: Rows, change: str, constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint):
        rows.sql(f"UPDATE actions SET {change} WHERE action_id = :a", a=rows.action(rows.operation()))


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("state = 'GONE'", "ck_calls_state"),
        ("effect = 'maybe'", "ck_calls_effect"),
        ("state = 'SUCCEEDED', wake_at = NULL", "ck_calls_settled"),
        ("observation = '{}'", "ck_calls_one_result"),
        ("binding_sha256 = 'x'", "ck_calls_bound"),
        ("state = 'RUNNING', wake_at = NULL", "ck_calls_lease"),
        ("lease_until = now()", "ck_calls_lease"),
        ("state = 'WAITING', wake_at = NULL", "ck_calls_waiting"),
        ("state = 'RUNNING', lease_until = now()", "ck_calls_wake"),
    ],
)
def test_calls(rows: Rows, change: str, constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint):
        rows.sql(f"UPDATE calls SET {change} WHERE call_key = :key", key=rows.read(rows.operation()))


def test_one_action_per_key(rows: Rows) -> None:
    rows.action(rows.operation(), idempotency_key="tq_same")
    with pytest.raises(IntegrityError, match="uq_actions_idempotency_key"):
        rows.action(rows.operation(), idempotency_key="tq_same")


def test_one_live_attempt(rows: Rows) -> None:
    operation = rows.operation()
    for column, row_id in (("action_id", rows.action(operation)), ("call_key", rows.read(operation))):
        _attempt(rows, operation, **{column: row_id}, attempt_id=f"1{column}")
        with pytest.raises(IntegrityError, match="uq_attempts_live"):
            _attempt(rows, operation, **{column: row_id}, attempt_id=f"2{column}")
        rows.sql(f"UPDATE attempts SET state = 'LOST', ended_at = now() WHERE {column} = :r", r=row_id)
        _attempt(rows, operation, **{column: row_id}, attempt_id=f"3{column}")


def test_an_attempt_is_of_one_row(rows: Rows) -> None:
    operation = rows.operation()
    with pytest.raises(IntegrityError, match="ck_attempts_subject"):
        _attempt(rows, operation, attempt_id="nothing")
    with pytest.raises(IntegrityError, match="ck_attempts_subject"):
        _attempt(rows, operation, attempt_id="both", action_id=rows.action(operation), call_key=rows.read(operation))


def _attempt(rows: Rows, operation: str, **fields: Any) -> None:
    values = {"action_id": None, "call_key": None} | fields
    rows.sql(
        "INSERT INTO attempts (attempt_id, operation_id, action_id, call_key, kind, number, fence, state, worker) "
        "VALUES (:attempt_id, :o, :action_id, :call_key, 'execute', 1, 1, 'STARTED', 'w')", o=operation, **values,
    )  # fmt: skip


def test_a_call_id_is_answered_once_in_its_turn(rows: Rows) -> None:
    operation = rows.operation()
    rows.read(operation, 0, call_id="c")
    with pytest.raises(IntegrityError, match="uq_calls_call_id"):
        rows.read(operation, 1, call_id="c")
    rows.read(operation, 1, call_id="c", code="DUPLICATE_CALL_ID")  # written down, not answered
    rows.read(operation, 0, call_id="c", turn=2)  # another turn, another call
    rows.read(rows.operation(), 0, call_id="c")
    with pytest.raises(IntegrityError, match="uq_calls_operation_id_turn_position"):
        rows.read(operation, 0, call_id="d")


def test_one_open_approval_per_action(rows: Rows) -> None:
    action = rows.action(rows.operation(), state="WAITING_APPROVAL", wake_at=None)
    first = rows.approval(action)
    with pytest.raises(IntegrityError, match="uq_approvals_open"):
        rows.approval(action)
    rows.sql("UPDATE approvals SET state = 'EXPIRED' WHERE approval_id = :a", a=first)
    rows.approval(action)
    for change, constraint in (("APPROVED", "decided"), ("CONSUMED", "consumed"), ("MAYBE", "state")):
        with pytest.raises(IntegrityError, match=f"ck_approvals_{constraint}"):
            rows.sql(f"UPDATE approvals SET state = '{change}' WHERE approval_id = :a", a=first)


def test_a_held_slot_has_a_lease(rows: Rows) -> None:
    rows.sql("INSERT INTO slots (tool, slot) VALUES ('odd', 1)")
    with pytest.raises(IntegrityError, match="ck_slots_holder"):
        rows.sql("UPDATE slots SET holder = 'x' WHERE tool = 'odd'")


def test_one_operation_per_caller_key(rows: Rows) -> None:
    rows.operation(caller_key="ticket-1")
    with pytest.raises(AssertionError):
        rows.operation(caller_key="ticket-1")
    rows.operation(tenant="other", caller_key="ticket-1")


def test_save_refuses_columns_it_does_not_know(rows: Rows) -> None:
    operation = rows.operation()
    with rows.database.transaction() as connection:
        with pytest.raises(ValueError, match="tenant"):
            operations.save(connection, operation, tenant="other")
        with pytest.raises(ValueError, match="idempotency_key"):
            actions.save(connection, actions.lock(connection, rows.action(operation)), idempotency_key="x")
