"""A worker that is frozen in the middle of a transaction holds its rows until the server ends its session (60 s): the
sweeper repairs all others meanwhile, and that one afterwards."""

from collections.abc import Callable

import pytest

from orchestrator.domain.operation import OperationState
from store import operations
from tests.faults.locks import session
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually


def lost_turn(bench: Desk) -> str:
    operation = bench.submit(DONE)
    with bench.app.database.autocommit() as connection:
        assert operations.claim_turn(connection, operation, 60) is not None
    bench.expire_leases(operation)
    return operation


def lost_read(bench: Desk) -> str:
    operation = bench.submit(calls(call("look")), DONE)
    bench.advance(operation)
    bench.sql(
        "UPDATE calls SET state = 'RUNNING', wake_at = NULL, attempts = 1, lease_until = now() - interval '1 hour' "
        "WHERE operation_id = :o", o=operation,
    )  # fmt: skip
    return operation


def lost_write(bench: Desk) -> str:
    operation = bench.submit(calls(call("write")), DONE)
    bench.advance(operation)
    bench.sql(
        "UPDATE actions SET state = 'STARTED', wake_at = NULL, attempts = 1, started_at = now(), fence = fence + 1, "
        "lease_until = now() - interval '1 hour' WHERE operation_id = :o", o=operation,
    )  # fmt: skip
    return operation


def expired_approval(bench: Desk) -> str:
    operation = bench.submit(calls(call("careful")), DONE)
    bench.advance(operation)
    bench.sql("UPDATE approvals SET expires_at = now() - interval '1 second' WHERE operation_id = :o", o=operation)
    return operation


def past_deadline(bench: Desk) -> str:
    operation = bench.submit(calls(call("careful")), DONE)
    bench.advance(operation)
    bench.sql("UPDATE operations SET deadline = now() - interval '1 second' WHERE operation_id = :o", o=operation)
    return operation


KINDS: dict[str, Callable[[Desk], str]] = {
    "lost_turns": lost_turn,
    "lost_reads": lost_read,
    "lost_writes": lost_write,
    "expired_approvals": expired_approval,
    "deadlines": past_deadline,
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_rows_are_not_delayed(bench: Desk, database_url: str, kind: str) -> None:
    held, free = KINDS[kind](bench), KINDS[kind](bench)  # the older one would be repaired first
    with session(database_url) as frozen:
        frozen.run("SELECT 1 FROM operations WHERE operation_id = %s FOR UPDATE", held)
        assert bench.sweep()[kind] == 1, "comes back while the lock is still held"
        assert bench.sweep()[kind] == 0
    assert bench.sweep()[kind] == 1
    assert bench.view(held).state == bench.view(free).state
    assert bench.view(held).state is not OperationState.MODEL_REQUESTED


def test_a_row_that_hangs_on_another_lock_is_passed_over_soon(bench: Desk, database_url: str) -> None:
    """Of an action, which a reconciliation claims without its operation: the wait for it is short."""
    held, free = expired_approval(bench), expired_approval(bench)
    with session(database_url) as frozen:
        frozen.run("SELECT 1 FROM actions WHERE operation_id = %s FOR UPDATE", held)
        assert bench.sweep()["expired_approvals"] == 1
        assert [bench.view(each).state for each in (held, free)] == ["WAITING_APPROVAL", "RESULTS_READY"]
    eventually(lambda: bench.sweep()["expired_approvals"] == 1)  # put off for a moment
