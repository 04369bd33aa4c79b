"""Reports about side effects that happened twice, and about results that went missing or astray."""

import json
from typing import Any

import pytest

from orchestrator import dispatch
from store import actions as action_store
from tests.acceptance.desks import restarted
from tests.orchestrator.desk import DONE, Desk, call, calls


def told(desk: Desk, operation: str, request: int = 1) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = desk.requests(operation)[request]["input"]
    return [item for item in items if item.get("type") == "function_call_output"]


def start_and_die(desk: Desk, operation: str, position: int = 0) -> None:
    """A worker commits `started` and is never heard of again."""
    action_id = desk.actions(operation)[position].action_id
    with desk.app.database.transaction() as connection:
        assert action_store.start(connection, action_id, lease=60, slot_lease=60, worker="dead") is not None
    desk.expire_leases(operation)


def test_inc_20_a_crash_after_two_of_three_writes(desk: Desk) -> None:
    operation = desk.submit(calls(*[call("write", text=str(n)) for n in (1, 2, 3)]), DONE)
    desk.advance(operation)
    desk.step("writes")
    desk.step("writes")
    with restarted(desk):
        desk.sweep()
        assert desk.run(operation).state == "COMPLETED"
    assert [seen.path for seen in desk.lab.seen] == ["/notes/1", "/notes/2", "/notes/3"]


def test_inc_21_a_worker_dies_in_the_middle_of_a_mixed_batch(desk: Desk) -> None:
    operation = desk.submit(calls(call("look"), call("write", text="1"), call("write", text="2")), DONE)
    desk.advance(operation)
    desk.step("reads")
    desk.step("writes")
    start_and_die(desk, operation, 1)
    with restarted(desk):
        desk.sweep()
        view = desk.run(operation)
    assert [c.state for c in view.calls] == ["SUCCEEDED", "SUCCEEDED", "WAITING"]
    assert ([a.state for a in view.actions], view.state) == (["SUCCEEDED", "UNKNOWN"], "RECONCILING")
    assert [seen.path for seen in desk.lab.seen] == ["/facts/x", "/notes/1"]


def test_inc_22_started_and_silent_is_unknown_and_asked_about(desk: Desk) -> None:
    operation = desk.submit(calls(call("checked")), DONE)
    desk.advance(operation)
    start_and_die(desk, operation)
    assert desk.sweep()["lost_writes"] == 1
    assert desk.action(operation).state == "UNKNOWN"
    desk.lab.will(json={"id": "r-9", "text": "found"})
    assert desk.run(operation).state == "COMPLETED"
    assert [seen.method for seen in desk.lab.seen] == ["GET"], "the target was asked, nothing was sent again"


def test_inc_23_the_same_write_again_after_an_unknown_outcome(desk: Desk) -> None:
    """While it is unknown the model is not even asked; what it had proposed twice waits for the one outcome."""
    operation = desk.submit(calls(call("write", "c1"), call("write", "c2")), calls(call("write", "c3")), DONE)
    desk.advance(operation)
    desk.lab.will(cut=True)
    desk.step("writes")
    view = desk.run(operation)
    assert (view.state, len(desk.requests(operation)), len(desk.lab.effects)) == ("RECONCILING", 1, 1)
    assert [(c.duplicate, c.state) for c in view.calls] == [(False, "WAITING"), (True, "WAITING")]
    assert desk.action(operation).review, "a person decides"


def test_inc_24_the_key_comes_from_the_system_and_not_from_the_model(desk: Desk) -> None:
    own = calls(call("keyed", "c1", text="a", idempotency_key="fresh-1"))
    same = [calls(call("keyed", f"c{n}", text="a")) for n in (2, 3)]
    operation = desk.submit(own, *same, DONE)
    view = desk.run(operation)
    assert [c.code or c.duplicate for c in view.calls] == ["INVALID_ARGUMENTS", False, True]
    [sent] = desk.lab.effects
    assert sent.headers["idempotency-key"] == view.actions[0].idempotency_key


def test_inc_25_the_target_commits_and_then_the_connection_is_lost(desk: Desk) -> None:
    operation = desk.submit(calls(call("checked")), DONE)
    desk.advance(operation)
    desk.lab.will(cut=True)
    desk.step("writes")
    assert desk.action(operation).state == "UNKNOWN"
    desk.lab.will(json={"id": "r-9"})
    assert desk.run(operation).state == "COMPLETED"
    assert (desk.action(operation).state, desk.action(operation).external_ref) == ("SUCCEEDED", "r-9")
    assert len(desk.lab.effects) == 1


def test_inc_26_a_timeout_is_not_told_as_a_failure(desk: Desk) -> None:
    """The model hears of it once it is established: nothing that it could take for a failure before."""
    operation = desk.submit(calls(call("checked")), DONE)
    desk.advance(operation)
    desk.lab.will(cut=True)
    desk.step("writes")
    assert (desk.view(operation).state, desk.call(operation).observation) == ("RECONCILING", None)
    assert len(desk.requests(operation)) == 1
    desk.lab.will(json={"id": "r-9"})
    desk.run(operation)
    assert json.loads(told(desk, operation)[0]["output"])["state"] == "succeeded"


def test_inc_27_two_identical_writes_with_different_call_ids(desk: Desk) -> None:
    operation = desk.submit(calls(call("write", "c1", text="a"), call("write", "c2", text="a")), DONE)
    view = desk.run(operation)
    assert [(c.call_id, c.duplicate) for c in view.calls] == [("c1", False), ("c2", True)]
    assert (len(view.actions), len(desk.lab.effects)) == (1, 1)
    assert [t["call_id"] for t in told(desk, operation)] == ["c1", "c2"]


def test_inc_53_one_of_three_parallel_calls_fails(desk: Desk) -> None:
    operation = desk.submit(calls(*[call("look", f"c{n}", text=str(n)) for n in (1, 2, 3)]), DONE)
    desk.lab.will(status=422, json={"code": "NO_SUCH_FACT"})
    assert desk.run(operation).state == "COMPLETED"
    outputs = told(desk, operation)
    assert sorted(o["call_id"] for o in outputs) == ["c1", "c2", "c3"]
    assert sum("is_error" in o["output"] for o in outputs) == 1


@pytest.mark.parametrize("tool", ["look", "checked"])
def test_inc_54_a_crash_between_call_and_result(desk: Desk, tool: str) -> None:
    """No model call before every call has its result."""
    operation = desk.submit(calls(call(tool, "c1"), call("look", "c2", text="b")), DONE)
    desk.advance(operation)
    desk.step("reads")
    with restarted(desk):
        desk.lab.will(cut=True)
        if tool == "checked":
            desk.step("writes")
        else:
            desk.step("reads")
        assert len(desk.requests(operation)) == 1
        desk.lab.will(json={"id": "r-9"})
        assert desk.run(operation).state == "COMPLETED"
    assert [o["call_id"] for o in told(desk, operation)] == ["c1", "c2"]


def test_inc_55_results_arrive_in_reverse_order(desk: Desk) -> None:
    operation = desk.submit(calls(*[call("look", f"c{n}", text=str(n)) for n in (1, 2, 3)]), DONE)
    desk.advance(operation)
    keys = desk.sql("SELECT call_key FROM calls WHERE operation_id = :o ORDER BY position DESC", o=operation)
    for number, row in zip((3, 2, 1), keys, strict=True):
        desk.lab.will(json={"id": str(number), "text": f"answer {number}"})
        assert dispatch.run_one(desk.app, "reads", row["call_key"])
    desk.run(operation)
    outputs = told(desk, operation)
    assert [o["call_id"] for o in outputs] == ["c1", "c2", "c3"], "the provider's order"
    assert [json.loads(o["output"])["data"]["text"] for o in outputs] == ["answer 1", "answer 2", "answer 3"]


def test_inc_56_a_huge_output(desk: Desk) -> None:
    """Bounded on arrival; what fits the reader and not the model is cut with a note, the rest is dropped."""
    operation = desk.submit(calls(call("look", text="a")), calls(call("look", text="b")), DONE)
    desk.lab.will(json={"id": "1", "text": "x" * 3_000_000})
    for _ in range(3):
        desk.lab.will(body=b'{"id":"1","text":"' + b"x" * 50_000_000 + b'"}')
    assert desk.run(operation).state == "COMPLETED"
    first, second = desk.view(operation).calls
    assert first.observation["truncated"] is True
    assert (second.state, second.code) == ("FAILED", "TOOL_UNAVAILABLE")
    assert desk.view(operation).usage.result_bytes < 70_000


@pytest.mark.parametrize("unit", ["é", "🚚", "日本"])
def test_inc_57_a_limit_in_the_middle_of_a_character_and_of_an_object(desk: Desk, unit: str) -> None:
    operation = desk.submit(calls(call("look")), DONE)
    desk.lab.will(json={"id": "1", "text": unit * 40_000})
    desk.run(operation)
    output = told(desk, operation)[0]["output"]
    shown = json.loads(output)
    assert "\ufffd" not in output
    assert (shown["truncated"], "data" in shown, shown["data_head"][:11]) == (True, False, '{"id":"1","')
