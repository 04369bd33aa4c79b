"""Cancel, in every live state: nothing new is dispatched, and the record says what happened."""

import threading
from typing import Any

import pytest

from orchestrator import commands, dispatch, turn
from orchestrator.domain.errors import Conflict
from orchestrator.domain.operation import LIVE, OperationState
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually

S = OperationState
NOTHING: dict[str, Any] = {"happened": [], "unresolved": [], "not_started": [], "failed": []}


def tools(desk: Desk, operation: str) -> dict[str, list[str]]:
    return {kind: [row["tool"] for row in rows] for kind, rows in (desk.view(operation).pending or {}).items()}


def cancelled(desk: Desk, operation: str, state: OperationState) -> dict[str, list[str]]:
    """Cancel in `state`; nothing moves it afterwards."""
    assert desk.view(operation).state == state
    asked, sent = len(desk.requests(operation)), len(desk.lab.seen)
    assert commands.cancel(desk.app, operation, by="alice") == "CANCELLED"
    with pytest.raises(Conflict, match="is CANCELLED already") as caught:
        commands.cancel(desk.app, operation)
    assert caught.value.code == "ALREADY_ENDED"
    desk.sweep()
    view = desk.run(operation)
    assert (view.state, view.reason, view.wake_at) == ("CANCELLED", None, None)
    assert len(desk.requests(operation)) == asked
    assert len([seen for seen in desk.lab.seen[sent:] if seen.method == "POST"]) == 0
    assert all(c.state not in ("READY", "WAITING", "RUNNING") or _unsettled(desk, operation) for c in view.calls)
    return tools(desk, operation)


def _unsettled(desk: Desk, operation: str) -> bool:
    return any(a.state in ("UNKNOWN", "PENDING", "STARTED") for a in desk.actions(operation))


def test_ready(desk: Desk) -> None:
    assert cancelled(desk, desk.submit(DONE), S.READY) == NOTHING


def test_model_requested(desk: Desk) -> None:
    """The reply comes back to an operation that has ended: it is dropped."""
    operation = desk.submit(calls(call("write"), delay=5.0), DONE)
    worker = threading.Thread(target=turn.advance, args=(desk.app, operation))
    worker.start()
    eventually(lambda: len(desk.requests(operation)) == 1)
    result = cancelled(desk, operation, S.MODEL_REQUESTED)
    worker.join(60)
    view = desk.run(operation)
    assert (view.state, view.calls, view.requests, result) == ("CANCELLED", [], [], NOTHING)


def test_executing_reads_that_wait(desk: Desk) -> None:
    operation = desk.submit(calls(call("look", text="a"), call("look", text="b"), call("write")), DONE)
    desk.advance(operation)
    desk.step("reads")
    assert cancelled(desk, operation, S.EXECUTING) == NOTHING | {"not_started": ["write"]}
    assert [c.code or c.state for c in desk.view(operation).calls] == ["SUCCEEDED", "CANCELLED", "CANCELLED"]


def test_executing_a_write_that_has_started(desk: Desk) -> None:
    """It happens, and the record says so in the end."""
    operation = desk.submit(calls(call("write", text="1"), call("write", text="2")), DONE)
    desk.advance(operation)
    desk.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(desk.app, "writes", None))
    worker.start()
    eventually(lambda: bool(desk.lab.seen))
    commands.cancel(desk.app, operation)
    assert tools(desk, operation) == NOTHING | {"unresolved": ["write"], "not_started": ["write"]}
    desk.lab.released.set()
    worker.join(60)
    assert desk.view(operation).state == "CANCELLED"
    assert tools(desk, operation) == NOTHING | {"happened": ["write"], "not_started": ["write"]}
    assert (desk.view(operation).pending or {})["happened"][0]["external_ref"] == "r-1"


def test_waiting_for_approval(desk: Desk) -> None:
    operation = desk.submit(calls(call("careful")), DONE)
    desk.advance(operation)
    assert cancelled(desk, operation, S.WAITING_APPROVAL) == NOTHING | {"not_started": ["careful"]}


def test_results_ready(desk: Desk) -> None:
    operation = desk.submit(calls(call("write")), DONE)
    desk.advance(operation)
    desk.step("writes")
    assert cancelled(desk, operation, S.RESULTS_READY) == NOTHING | {"happened": ["write"]}


def test_results_ready_after_a_failure(desk: Desk) -> None:
    operation = desk.submit(calls(call("write")), DONE)
    desk.lab.will(status=422, json={"code": "FULL"}, effect=False)
    desk.advance(operation)
    desk.step("writes")
    assert cancelled(desk, operation, S.RESULTS_READY) == NOTHING | {"failed": ["write"]}


def test_reconciling_goes_on_after_the_end(desk: Desk) -> None:
    operation = desk.submit(calls(call("checked", text="1"), call("aside", text="2")), DONE)
    desk.lab.will(cut=True)
    desk.lab.will(json={"id": "r-2"})
    desk.advance(operation)
    desk.step("writes")
    desk.step("writes")
    assert desk.view(operation).state == "RECONCILING"
    commands.cancel(desk.app, operation)
    assert tools(desk, operation) == NOTHING | {"unresolved": ["checked"], "happened": ["aside"]}
    desk.lab.will(json={"id": "r-1"})
    desk.run(operation)
    assert tools(desk, operation) == NOTHING | {"happened": ["checked", "aside"]}
    assert desk.view(operation).state == "CANCELLED"


def test_an_ended_operation_sends_no_write_again(desk: Desk) -> None:
    """Its downstream enforces the key, yet nobody wants the effect any more: it stays unknown."""
    operation = desk.submit(calls(call("keyed")), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    commands.cancel(desk.app, operation)
    desk.run(operation)
    action = desk.action(operation)
    assert (action.state, len(desk.lab.seen)) == ("UNKNOWN", 1)
    assert tools(desk, operation) == NOTHING | {"unresolved": ["keyed"]}


def test_waiting_for_review(desk: Desk) -> None:
    operation = desk.submit(calls(call("write")), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    assert cancelled(desk, operation, S.RECONCILING) == NOTHING | {"unresolved": ["write"]}


def test_every_live_state_was_tried() -> None:
    passing = {S.VALIDATING}  # never at rest: decided in the transaction that records the reply
    elsewhere = {S.WAITING_INPUT}  # tests/people/test_cancel.py
    assert {S.READY, S.MODEL_REQUESTED, S.EXECUTING, S.WAITING_APPROVAL, S.RESULTS_READY, S.RECONCILING} == (
        LIVE - passing - elsewhere
    )


@pytest.mark.parametrize("script", [DONE, {"refusal": "No."}, {"truncated": "It"}])
def test_an_ended_operation_cannot_be_cancelled(desk: Desk, script: dict[str, Any]) -> None:
    operation = desk.submit(script)
    state = desk.advance(operation).state
    with pytest.raises(Conflict, match=f"is {state} already"):
        commands.cancel(desk.app, operation)
