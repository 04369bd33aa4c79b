"""Reads: retried by their row, given up as an observation, recorded once."""

import json
import threading
import time

from executors.run import Succeeded
from orchestrator import commands, dispatch, reads
from orchestrator.leases import Lease
from store import calls as call_store
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually

READ = calls(call("look", text="a"))


def test_a_failing_read_is_retried_by_its_row(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.lab.will(status=503)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("reads")
    first = desk.call(operation)
    assert (first.state, first.attempts) == ("READY", 1)
    assert desk.idle("reads"), "the wait is in the row and holds no worker"
    view = desk.run(operation)
    assert (view.state, desk.call(operation).attempts) == ("COMPLETED", 3)
    assert [(a.state, a.code) for a in view.attempts] == [
        ("FAILED", "TOOL_UNAVAILABLE"), ("FAILED", "TOOL_UNAVAILABLE"), ("SUCCEEDED", None),
    ]  # fmt: skip


def test_a_read_that_stays_unavailable_becomes_an_observation(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    for _ in range(3):
        desk.lab.will(status=503)
    view = desk.run(operation)
    read = desk.call(operation)
    assert (view.state, read.state, read.attempts) == ("COMPLETED", "FAILED", 3)
    assert read.observation == {"state": "failed", "code": "TOOL_UNAVAILABLE"}
    shown = [i for i in desk.requests(operation)[1]["input"] if i.get("type") == "function_call_output"]
    assert json.loads(shown[0]["output"]) == {"is_error": True, "output": read.observation}


def test_a_definite_no_is_not_repeated(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.lab.will(status=422, json={"code": "NO_SUCH_FACT"})
    desk.run(operation)
    read = desk.call(operation)
    assert (read.state, read.code, read.attempts, len(desk.lab.seen)) == ("FAILED", "NO_SUCH_FACT", 1, 1)


def test_a_read_whose_worker_died_runs_again(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    _claim_and_die(desk, operation)
    assert desk.run(operation).state == "COMPLETED"
    assert [a.state for a in desk.view(operation).attempts] == ["LOST", "SUCCEEDED"]


def test_a_read_that_kills_its_workers_is_given_up(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    for _ in range(3):
        desk.hurry(operation)
        _claim_and_die(desk, operation)
    read = desk.call(operation)
    assert (read.state, read.code) == ("FAILED", "WORKER_LOST")
    assert desk.run(operation).state == "COMPLETED"


def _claim_and_die(desk: Desk, operation: str) -> None:
    with desk.app.database.autocommit() as connection:
        claim = {"hint": None, "queue": "reads", "lease": 60, "slot_lease": 60, "worker": "dead", "fair": False}
        assert call_store.claim(connection, **claim) is not None
    assert desk.sweep()["lost_reads"] == 0
    desk.expire_leases(operation)
    assert desk.sweep()["lost_reads"] == 1


def test_a_zombies_result_is_not_recorded(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    with desk.app.database.autocommit() as connection:
        claim = {"hint": None, "queue": "reads", "lease": 60, "slot_lease": 60, "worker": "slow", "fair": False}
        row = call_store.claim(connection, **claim)
    assert row is not None
    desk.expire_leases(operation)
    desk.sweep()
    lease = Lease("call", row["call_key"], row["fence"], time.monotonic() + 60)  # as it believes
    outcome = reads._read_outcome(desk.app, row, lease)
    assert isinstance(outcome, Succeeded)
    before = desk.sql("SELECT * FROM calls WHERE operation_id = :o", o=operation)
    reads._record_read(desk.app, row, outcome)
    assert desk.sql("SELECT * FROM calls WHERE operation_id = :o", o=operation) == before
    assert desk.run(operation).state == "COMPLETED"


def test_the_last_result_moves_the_operation_on_and_no_other(desk: Desk) -> None:
    operation = desk.submit(calls(call("look", text="a"), call("look", text="b")), DONE)
    assert desk.advance(operation).state == "EXECUTING"
    desk.step("reads")
    assert desk.view(operation).state == "EXECUTING"
    desk.step("reads")
    assert desk.view(operation).state == "RESULTS_READY"


def test_a_result_after_the_end_is_evidence_and_not_shown(desk: Desk) -> None:
    """The read is running when its operation is cancelled."""
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    desk.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(desk.app, "reads", None))
    worker.start()
    eventually(lambda: bool(desk.lab.seen))
    commands.cancel(desk.app, operation)
    desk.lab.released.set()
    worker.join(60)
    view = desk.view(operation)
    assert (view.state, view.calls[0].state) == ("CANCELLED", "SUCCEEDED")
    assert len(desk.requests(operation)) == 1


def test_a_read_that_was_due_at_the_end_never_runs(desk: Desk) -> None:
    operation = desk.submit(calls(call("look"), call("narrow")), DONE)
    desk.advance(operation)
    commands.cancel(desk.app, operation)
    assert desk.idle("reads")
    assert [c.code for c in desk.view(operation).calls] == ["CANCELLED", "CANCELLED"]
    assert desk.lab.seen == []


def test_a_limited_read_waits_for_its_slot(desk: Desk) -> None:
    operation = desk.submit(calls(call("narrow", text="a"), call("narrow", text="b")), DONE)
    desk.advance(operation)
    desk.sql("UPDATE slots SET holder = 'other', lease_until = now() + interval '1 hour' WHERE tool = 'narrow'")
    assert desk.idle("reads")
    desk.sql("UPDATE slots SET holder = NULL, lease_until = NULL WHERE tool = 'narrow'")
    assert desk.run(operation).state == "COMPLETED"


def test_a_tool_that_this_release_does_not_know_is_left_to_another(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    spec = desk.app.registry._tools.pop("look")
    desk.step("reads")
    assert desk.call(operation).state == "READY"
    desk.app.registry.add(spec)
    assert desk.run(operation).state == "COMPLETED"
