"""A worker that lost its lease changes nothing; leases live on the database clock."""

import time
from collections.abc import Iterator

import pytest

from orchestrator.domain.model import AttemptState
from orchestrator.leases import LeaseKeeper
from store import actions, calls, operations
from store.db import Database
from tests.store.rows import Rows, eventually, start

LEASE = 0.9


def again(rows: Rows, key: str, fence: int) -> bool:
    with rows.database.transaction() as connection:
        return calls.try_again(
            connection, call_key=key, fence=fence, delay=0, attempt_state=AttemptState.LOST, code="X", contacted=None
        )


def test_a_zombie_settles_nothing(rows: Rows) -> None:
    key = rows.read(rows.operation())
    zombie = rows.claim(hint=key)
    assert again(rows, key, zombie["fence"])  # the sweeper took it back
    before = rows.one("calls", key)
    assert not rows.settle(zombie)
    assert rows.one("calls", key) == before
    owner = rows.claim(hint=key)
    assert owner["fence"] == zombie["fence"] + 1
    before = rows.one("calls", key)
    assert not rows.settle(zombie)
    assert not again(rows, key, zombie["fence"])
    assert rows.one("calls", key) == before
    assert rows.settle(owner)
    assert [a["state"] for a in rows.sql("SELECT state FROM attempts WHERE call_key = :k ORDER BY number", k=key)] == [
        "LOST",
        "SUCCEEDED",
    ]


def test_a_result_is_recorded_once(rows: Rows) -> None:
    row = rows.claim(hint=rows.read(rows.operation()))
    assert rows.settle(row)
    assert not rows.settle(row)


def test_a_zombie_saves_no_action(rows: Rows) -> None:
    action = rows.action(rows.operation())
    with rows.database.transaction() as connection:
        start(connection, action)
        zombie = actions.lock(connection, action)
    rows.sql("UPDATE actions SET state = 'UNKNOWN', lease_until = NULL, wake_at = now() WHERE action_id = :a", a=action)
    before = rows.one("actions", action)
    with rows.database.transaction() as connection:
        assert not actions.save(connection, zombie, state="FAILED", observation="{}")
        assert actions.claim_check(connection, action, lease=30) is not None
        assert not actions.save(connection, zombie, state="FAILED", observation="{}")
    after = rows.one("actions", action)
    assert (after["state"], after["fence"]) == (before["state"], before["fence"] + 1)


def test_a_zombie_holds_no_turn(rows: Rows) -> None:
    operation = rows.operation()
    with rows.database.transaction() as connection:
        held = operations.claim_turn(connection, operation, 30)
        assert held is not None
        assert operations.lock_leased(connection, operation, held.fence) is not None
        assert operations.lock_leased(connection, operation, held.fence - 1) is None
        operations.save(connection, operation, state="READY", wake_at=held.now)
        assert operations.lock_leased(connection, operation, held.fence) is None


def test_nothing_is_claimed_before_its_time_or_by_an_older_release(rows: Rows) -> None:
    early, newer = rows.operation(), rows.operation(schema_version=10_000)
    rows.sql("UPDATE operations SET wake_at = now() + interval '1 hour' WHERE operation_id = :o", o=early)
    key = rows.read(early, wake_at=None)
    with rows.database.autocommit() as connection:
        for name in (early, newer, None):
            assert operations.claim_turn(connection, name, 30) is None
        assert newer not in operations.due(connection, 100)
    assert rows.claim(hint=key) is None


def test_leases_are_counted_on_the_database_clock(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a worker whose clock is off by decades
    operation = rows.operation()
    with rows.database.autocommit() as connection:
        operations.claim_turn(connection, operation, 30)
        assert operations.lost_turns(connection, 1000) == []
        assert not operations.lease_expired(connection, operation)
    [left] = rows.sql(
        "SELECT lease_until - clock_timestamp() BETWEEN '0' AND '30 s' AS ok FROM operations WHERE operation_id = :o",
        o=operation,
    )
    assert left["ok"]


# --- the keeper ----------------------------------------------------------------------------------------------------


@pytest.fixture
def keeper(database: Database) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(database, LEASE)
    yield made
    made.close()


def test_the_keeper_renews_each_kind(rows: Rows, keeper: LeaseKeeper) -> None:
    since = time.monotonic()
    operation = rows.operation()
    key, action = rows.read(operation), rows.action(operation)
    with rows.database.transaction() as connection:
        turn = operations.claim_turn(connection, operation, LEASE)
        started = start(connection, action)
    row = rows.claim(hint=key, lease=LEASE)
    assert turn is not None
    assert started is not None
    rows.sql("UPDATE actions SET lease_until = now() WHERE action_id = :a", a=action)
    held = {"operations": operation, "calls": key, "actions": action}
    before = {table: rows.one(table, row_id)["lease_until"] for table, row_id in held.items()}
    with (
        keeper.hold("operation", operation, turn.fence, since) as a,
        keeper.hold("call", key, row["fence"], since) as b,
        keeper.hold("action", action, started[1], since) as c,
    ):
        eventually(lambda: all(rows.one(table, r)["lease_until"] > before[table] for table, r in held.items()))
        eventually(lambda: a.held() and b.held() and c.held())


def test_a_lost_lease_says_no(rows: Rows, keeper: LeaseKeeper) -> None:
    since = time.monotonic()
    operation = rows.operation()
    with rows.database.autocommit() as connection:
        turn = operations.claim_turn(connection, operation, LEASE)
    assert turn is not None
    with keeper.hold("operation", operation, turn.fence, since) as lease:
        eventually(lease.held)
        rows.sql("UPDATE operations SET fence = fence + 1 WHERE operation_id = :o", o=operation)  # somebody else's now
        eventually(lambda: not lease.held())


def test_a_database_that_does_not_answer_lets_leases_run_out() -> None:
    unreachable = Database("postgresql+psycopg://nobody@127.0.0.1:1/none", 1)
    keeper = LeaseKeeper(unreachable, LEASE)
    with keeper.hold("operation", "op_1", 1, time.monotonic()) as lease:
        eventually(lambda: not lease.held())
    keeper.close()
    unreachable.close()


def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    keeper = LeaseKeeper(Database("postgresql+psycopg://nobody@127.0.0.1:1/none", 1), LEASE)
    with keeper.hold("call", "call_1", 1, time.monotonic() - LEASE) as lease:
        assert not lease.held()
    keeper.close()
