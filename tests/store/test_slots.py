"""A lost worker's request may still be served: its slot counts until its deadline, whatever becomes of its row."""

from typing import Any

from store import actions, calls, slots
from tests.store.rows import Rows, result_of, start


def _limit(rows: Rows, tool: str, limit: int) -> None:
    with rows.database.transaction() as connection:
        slots.sync(connection, {tool: limit})


def _taken(rows: Rows, tool: str) -> int:
    with rows.database.transaction() as connection:
        return len(slots.holders(connection, tool))


def _lose(rows: Rows, row: dict[str, Any]) -> None:
    with rows.database.transaction() as connection:
        lost = {"call_key": row["call_key"], "fence": row["fence"], "attempt_state": "LOST", "code": "WORKER_LOST"}
        assert calls.try_again(connection, **lost, delay=0, contacted=None)


def test_the_next_attempt_of_a_read_does_not_free_the_slot_of_the_lost_one(rows: Rows) -> None:
    _limit(rows, "pair", 2)
    rows.read(rows.operation(), tool="pair", limited=True)
    _lose(rows, rows.claim(fair=True))
    second = rows.claim(fair=True)
    assert second["attempts"] == 2
    assert _taken(rows, "pair") == 2
    assert rows.settle(second)
    assert _taken(rows, "pair") == 1


def test_a_read_given_up_as_lost_keeps_its_slot(rows: Rows) -> None:
    _limit(rows, "last", 1)
    rows.read(rows.operation(), tool="last", limited=True)
    row = rows.claim(fair=True)
    with rows.database.transaction() as connection:
        assert calls.settle(connection, **{**result_of(row), "attempt_state": "LOST"})
    assert _taken(rows, "last") == 1
    rows.sql("UPDATE slots SET lease_until = clock_timestamp() - interval '1 second' WHERE tool = 'last'")
    rows.read(rows.operation(), tool="last", limited=True)
    assert rows.claim(fair=True) is not None


def test_the_next_attempt_of_a_write_does_not_free_the_slot_of_the_lost_one(rows: Rows) -> None:
    _limit(rows, "writes", 2)
    action = rows.action(rows.operation(), tool="writes", limited=True)
    with rows.database.transaction() as connection:
        assert start(connection, action)
        actions.end_attempt(connection, action, state="LOST", code="WORKER_LOST", contacted=None)
    again = "UPDATE actions SET state = 'READY', wake_at = clock_timestamp(), lease_until = NULL WHERE action_id = :a"
    rows.sql(again, a=action)
    with rows.database.transaction() as connection:
        assert start(connection, action)
        actions.end_attempt(connection, action, state="SUCCEEDED", code=None, contacted=True)
        slots.free(connection, action)
    assert _taken(rows, "writes") == 1
