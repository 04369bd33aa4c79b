"""Cancel, where it meets people, starts and late outcomes; the states at rest are in tests/orchestrator/test_cancel."""

import json
import threading

import pytest

from orchestrator import commands, dispatch
from policy.profile import ApprovalRule, Budgets
from tests.executors.downstream import refusing_url
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import CAREFUL, approval, at_approval, at_once, outcomes, submit
from tests.store.rows import eventually

NOTHING: dict[str, list[str]] = {"happened": [], "unresolved": [], "not_started": [], "failed": []}


def tools(hall: Desk, operation: str) -> dict[str, list[str]]:
    return {kind: [row["tool"] for row in rows] for kind, rows in (hall.view(operation).pending or {}).items()}


def test_waiting_for_input(hall: Desk) -> None:
    operation = submit(hall, calls(call("ask_user", question="Which?"), call("write")), DONE)
    hall.advance(operation)
    hall.step("writes")
    assert hall.view(operation).state == "WAITING_INPUT"
    commands.cancel(hall.app, operation)
    view = hall.run(operation)
    assert (view.state, [made.code or made.state for made in view.calls]) == ("CANCELLED", ["CANCELLED", "SUCCEEDED"])
    assert tools(hall, operation) == NOTHING | {"happened": ["write"]}
    [row] = hall.sql("SELECT open_calls, open_reads, open_inputs FROM operations WHERE operation_id = :o", o=operation)
    assert row == {"open_calls": 0, "open_reads": 0, "open_inputs": 0}


def test_half_approved(hall: Desk) -> None:
    operation, asked = at_approval(hall, calls(CAREFUL), DONE, rules=[ApprovalRule(approvers=2)])
    commands.approve(hall.app, asked, by="ann")
    commands.cancel(hall.app, operation)
    assert (approval(hall, operation).state, outcomes(hall, operation)) == ("REVOKED", ["CANCELLED"])


def test_edited_and_cancelled(hall: Desk) -> None:
    operation, asked = at_approval(hall, calls(CAREFUL), DONE)
    commands.approve(hall.app, asked, by="boss", arguments={"text": "z"})
    commands.cancel(hall.app, operation)
    assert (outcomes(hall, operation), hall.lab.seen) == (["EDITED", "CANCELLED"], [])
    assert hall.idle("writes")


def test_a_read_in_flight_is_evidence_and_not_shown(hall: Desk) -> None:
    operation = submit(hall, calls(call("look", text="a")), DONE)
    hall.advance(operation)
    hall.lab.will(wait=True, json={"id": "r-1", "text": "late"})
    worker = threading.Thread(target=dispatch.run_one, args=(hall.app, "reads", None))
    worker.start()
    eventually(lambda: bool(hall.lab.seen))
    commands.cancel(hall.app, operation)
    asked = len(hall.requests(operation))
    hall.lab.released.set()
    worker.join(60)
    view = hall.run(operation)
    assert view.calls[0].observation["data"]["text"] == "late"
    assert (view.state, len(hall.requests(operation))) == ("CANCELLED", asked)
    assert "late" not in json.dumps(hall.requests(operation))


def test_racing_with_a_start(hall: Desk) -> None:
    """Either the write never starts, or it has started and the record lists it; never both, never neither."""
    started = 0
    for _ in range(30):
        operation = submit(hall, calls(call("write")), DONE)
        hall.advance(operation)
        sent = len(hall.lab.effects)
        at_once(
            lambda: dispatch.run_one(hall.app, "writes", None),
            lambda operation=operation: commands.cancel(hall.app, operation),  # type: ignore[misc]
        )
        view, happened = hall.run(operation), len(hall.lab.effects) - sent
        assert view.state == "CANCELLED"
        expected = {"happened": ["write"]} if happened else {"not_started": ["write"]}
        assert tools(hall, operation) == NOTHING | expected
        assert bool(hall.audit(operation, "action.started")) is bool(happened)
        started += happened
    assert 0 <= started <= 30


def test_a_write_that_may_have_arrived_is_never_called_not_started(hall: Desk) -> None:
    """It waits to be sent again under its key when the operation ends: it stays uncertain, and is looked into."""
    operation = submit(hall, calls(call("keyed", text="a")), DONE)
    hall.lab.will(cut=True)
    hall.advance(operation)
    hall.step("writes")
    hall.hurry(operation)
    hall.step("writes")
    assert hall.action(operation).state == "READY"
    commands.cancel(hall.app, operation)
    assert tools(hall, operation) == NOTHING | {"unresolved": ["keyed"]}
    hall.run(operation)
    assert (hall.action(operation).state, len(hall.lab.seen)) == ("UNKNOWN", 1)


def test_a_write_of_which_nothing_was_sent_is_not_started(hall: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = submit(hall, calls(call("keyed", text="a")), DONE)
    hall.advance(operation)
    with monkeypatch.context() as away:
        away.setenv("LAB_URL", refusing_url())
        hall.step("writes")
    assert hall.action(operation).state == "READY"
    commands.cancel(hall.app, operation)
    assert tools(hall, operation) == NOTHING | {"not_started": ["keyed"]}


def test_a_budget_ends_it_while_people_are_asked(hall: Desk) -> None:
    operation = submit(hall, calls(call("ask_user", question="?"), CAREFUL), DONE, budgets=Budgets(wall_seconds=60))
    hall.advance(operation)
    hall.sql("UPDATE operations SET deadline = clock_timestamp() - interval '1 s' WHERE operation_id = :o", o=operation)
    hall.sweep()
    view = hall.view(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "DEADLINE")
    assert (view.questions[0].state, view.approvals[0].state) == ("REVOKED", "REVOKED")


@pytest.mark.parametrize("answer", [{"text": "Sorry."}])
def test_the_end_without_the_tool_whose_approval_expired(hall: Desk, answer: dict[str, str]) -> None:
    operation, _ = at_approval(hall, calls(CAREFUL), answer, answer, required_tools=("careful",))
    hall.sql(
        "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 s' WHERE operation_id = :o", o=operation
    )
    hall.sweep()
    view = hall.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "APPROVAL_EXPIRED")


def test_the_end_without_the_tool_that_was_denied(hall: Desk) -> None:
    operation, asked = at_approval(hall, calls(CAREFUL), DONE, DONE, required_tools=("careful",))
    commands.deny(hall.app, asked, by="boss")
    view = hall.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "UNCONFIRMED")
