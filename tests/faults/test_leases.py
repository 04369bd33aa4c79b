"""F15: a worker whose leases cannot be renewed sends nothing more. F32: a small pool costs nobody a lease."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import commands, dispatch, settling, sweeper, turn
from orchestrator.app import App
from orchestrator.settings import Settings
from policy.profile import Budgets
from store import operations
from tests.faults.locks import Session, session
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually

LEASE = 0.9
STARVED = 1600  # milliseconds, longer than the lease


@pytest.fixture
def hasty(bench: Desk, settings: Settings) -> Iterator[App]:
    """Another worker process's application, whose leases are short."""
    app = App(settings.model_copy(update={"lease_seconds": LEASE}), bench.app.registry)
    yield app
    app.close()


def begun(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def paths(bench: Desk) -> list[str]:
    return [seen.path for seen in bench.lab.seen]


@pytest.mark.parametrize(("tool", "queue"), [("look_twice", "reads"), ("write_twice", "writes")])
def test_a_starved_process_does_not_send(bench: Desk, hasty: App, tool: str, queue: str) -> None:
    """The renewing thread gets no turn until the lease is over; nothing has left, and that is recorded."""
    operation = bench.submit(calls(call(tool, text="a", size=STARVED)), DONE, tools=(tool,))
    bench.advance(operation)
    assert dispatch.run_one(hasty, queue, None)
    assert bench.lab.seen == []
    [attempt] = bench.view(operation).attempts
    assert attempt.state == ("FAILED" if queue == "reads" else "NOT_SENT")
    [row] = bench.sql("SELECT state, attempts FROM calls WHERE operation_id = :o", o=operation)
    if queue == "writes":
        [row] = bench.sql("SELECT state, attempts FROM actions WHERE operation_id = :o", o=operation)
    assert row == {"state": "READY", "attempts": 1}, "it may be tried again"


@pytest.mark.parametrize(
    ("tool", "queue", "row"), [("look_twice", "reads", "calls"), ("write_twice", "writes", "actions")]
)
def test_a_failed_renewal_stops_the_next_request(
    bench: Desk, hasty: App, database_url: str, tool: str, queue: str, row: str
) -> None:
    """The first request is under way when renewals begin to fail; the second is not sent."""
    operation = bench.submit(calls(call(tool, text="a")), DONE, tools=(tool,))
    bench.advance(operation)
    bench.lab.will(wait=True)
    worker = begun(lambda: dispatch.run_one(hasty, queue, None))
    eventually(lambda: bool(bench.lab.seen))
    [held] = hasty.leases._held.values()
    with session(database_url) as other:
        lock(other, row, operation)
        eventually(lambda: not held.held())
        bench.lab.released.set()
        other.wait_for_waiters(2)  # the renewal, and the record of the attempt
    worker.join(60)
    assert paths(bench) == ["/first/a"]
    if queue == "writes":
        assert (bench.action(operation).state, bench.action(operation).review) == ("UNKNOWN", True)
        return
    assert bench.run(operation).state == "COMPLETED", "a read is made again, by a worker that can renew"
    assert paths(bench) == ["/first/a", "/first/a", "/second/a"]


def lock(other: Session, table: str, operation: str) -> None:
    other.run(f"SELECT 1 FROM {table} WHERE operation_id = %s FOR UPDATE", operation)


def test_a_lost_turn_asks_no_model(bench: Desk, hasty: App, database_url: str) -> None:
    """Its worker stood still between claim and request; the sweeper took the turn back meanwhile."""
    operation = bench.submit(DONE)
    with session(database_url) as other:
        other.run("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        worker = begun(lambda: turn.advance(hasty, operation))
        other.wait_for_waiters()
        [held] = hasty.leases._held.values()

        def taken_back() -> bool:
            bench.expire_leases(operation)
            return bench.sweep()["lost_turns"] == 1

        eventually(taken_back)
        eventually(lambda: not held.held())
    worker.join(60)
    assert bench.requests(operation) == []
    assert bench.run(operation).state == "COMPLETED"
    assert (bench.view(operation).turns, len(bench.requests(operation))) == (1, 1)


def test_fifty_tasks_on_two_connections(bench: Desk, settings: Settings) -> None:
    """All of them wait for their downstream at once, for longer than a lease, and none is taken for dead."""
    fifty = Budgets(calls=50, writes=50, parallel=50)
    busy = []
    for _ in range(5):
        ten = [call("aside", text=str(number)) for number in range(10)]
        busy.append(bench.submit(calls(*ten), DONE, budgets=fifty))
        bench.advance(busy[-1])
    due = [action.action_id for operation in busy for action in bench.actions(operation)]
    for _ in due:
        bench.lab.will(wait=True)
    narrow = App(settings.model_copy(update={"lease_seconds": 1.5, "pool_size": 2}), bench.app.registry)
    workers = [begun(lambda hint=hint: dispatch.run_one(narrow, "writes", hint)) for hint in due]  # type: ignore[misc]
    eventually(lambda: len(bench.lab.seen) == len(due))
    first = leases(bench)
    assert len(first) == len(due)

    def renewed() -> bool:
        bench.sweep()
        now = leases(bench)
        return all(now[action] - lease > timedelta(seconds=1.5) for action, lease in first.items())

    with narrow.database.autocommit(), narrow.database.autocommit():  # even while others keep both
        eventually(renewed)
    bench.lab.released.set()
    for worker in workers:
        worker.join(60)
    assert narrow.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    narrow.close()
    for operation in busy:
        assert bench.run(operation).state == "COMPLETED"
        assert {(attempt.state, attempt.number) for attempt in bench.view(operation).attempts} == {("SUCCEEDED", 1)}
    assert len(bench.lab.effects) == len(due)


def test_one_connection_is_enough_for_every_step(bench: Desk, settings: Settings) -> None:
    """Nothing waits for a second one while it holds the first: with more threads they would all wait for each other."""
    story = [
        calls(call("look", text="a"), call("patient", text="b"), call("careful", text="c")), DONE,
    ]  # fmt: skip
    operation, lost = bench.submit(*story), bench.submit(DONE)
    profiles = bench.app.registry
    bench.advance(operation)
    steps: list[Callable[[App], Any]] = [
        lambda app: commands.approve(app, bench.approval(operation), by="boss"),
        lambda app: dispatch.run_one(app, "reads", None),
        lambda app: dispatch.run_one(app, "writes", None),
        lambda app: dispatch.run_one(app, "writes", None),
        lambda app: settling.compensate(app, bench.actions(operation)[0].action_id, arguments={}, by="boss"),
        lambda app: dispatch.run_one(app, "writes", None),
        lambda app: turn.advance(app, operation),
        lambda app: commands.inspect(app, operation),
        lambda app: claimed(app, lost),
        sweeper.lost_turns,
        lambda app: commands.cancel(app, lost),
    ]
    for number, step in enumerate(steps):
        fresh = App(settings.model_copy(update={"pool_size": 1}), profiles)  # another process: nothing is cached
        assert step(fresh), number
        fresh.close()
    assert [action.state for action in bench.actions(operation)] == ["SUCCEEDED"] * 3
    assert (bench.view(operation).state, bench.view(lost).state) == ("COMPLETED", "CANCELLED")


def claimed(app: App, operation: str) -> bool:
    """By a worker that dies at once."""
    with app.database.autocommit() as connection:
        return operations.claim_turn(connection, operation, 0.0) is not None


def leases(bench: Desk) -> dict[str, Any]:
    rows = bench.sql("SELECT action_id, lease_until FROM actions WHERE state = 'STARTED'")
    return {row["action_id"]: row["lease_until"] for row in rows}
