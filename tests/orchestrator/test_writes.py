"""Writes: started once, unknown where there is no proof, reconciled, and never sent again on a guess."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import commands, dispatch
from store import actions as action_store
from tests.executors.downstream import refusing_url
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually


def one(name: str, **arguments: Any) -> dict[str, Any]:
    return calls(call(name, **arguments))


def states(desk: Desk, operation: str) -> list[str]:
    return [a.code or a.state for a in desk.actions(operation)]


def keys(desk: Desk) -> list[str]:
    return [seen.headers.get("idempotency-key", "") for seen in desk.lab.seen if seen.method == "POST"]


def start_and_die(desk: Desk, operation: str) -> None:
    """A worker commits `started` and dies; whether its request left is not known."""
    with desk.app.database.transaction() as connection:
        action_id = desk.action(operation).action_id
        assert action_store.start(connection, action_id, lease=60, slot_lease=60, worker="dead") is not None
    assert desk.sweep()["lost_writes"] == 0, "a live lease is left alone"
    desk.expire_leases(operation)
    assert desk.sweep()["lost_writes"] == 1


def test_success_stores_the_reference(desk: Desk) -> None:
    operation = desk.submit(one("write"), DONE)
    assert desk.run(operation).state == "COMPLETED"
    action = desk.action(operation)
    assert (action.state, action.external_ref, action.attempts) == ("SUCCEEDED", "r-1", 1)
    assert (desk.view(operation).pending or {})["happened"][0]["external_ref"] == "r-1"


def test_rejected_downstream(desk: Desk) -> None:
    operation = desk.submit(one("write"), DONE)
    desk.lab.will(status=422, json={"code": "FULL"}, effect=False)
    desk.run(operation)
    assert states(desk, operation) == ["FULL"]
    assert desk.call(operation).observation == {"state": "failed", "code": "FULL"}


def test_started_is_committed_before_the_request_leaves(desk: Desk) -> None:
    operation = desk.submit(one("write"), DONE)
    desk.advance(operation)
    desk.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(desk.app, "writes", None))
    worker.start()
    eventually(lambda: bool(desk.lab.seen))
    assert desk.action(operation).state == "STARTED"
    [attempt] = desk.view(operation).attempts
    assert attempt.state == "STARTED"
    assert desk.idle("writes"), "no other worker may start it"
    desk.lab.released.set()
    worker.join(60)
    assert desk.action(operation).state == "SUCCEEDED"


# --- nothing was sent ----------------------------------------------------------------------------------------------


def test_nothing_sent_is_tried_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = desk.submit(one("write"), DONE)
    desk.advance(operation)
    with monkeypatch.context() as away:
        away.setenv("LAB_URL", refusing_url())
        desk.step("writes")
    action = desk.action(operation)
    assert (action.state, action.attempts) == ("READY", 1)
    assert desk.run(operation).state == "COMPLETED"
    assert [a.state for a in desk.view(operation).attempts] == ["NOT_SENT", "SUCCEEDED"]
    assert len(desk.lab.effects) == 1


def test_nothing_sent_too_often_is_a_failure(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = desk.submit(one("write"), DONE)
    monkeypatch.setenv("LAB_URL", refusing_url())
    assert desk.run(operation).state == "COMPLETED"
    action = desk.action(operation)
    assert (action.state, action.code, action.attempts) == ("FAILED", "TOOL_UNREACHABLE", 3)


def test_nothing_sent_says_nothing_of_an_earlier_try(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may still arrive, so that later ones that never left do not make it a failure."""
    operation = desk.submit(one("keyed"), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    monkeypatch.setenv("LAB_URL", refusing_url())
    assert desk.run(operation).state == "RECONCILING"
    action = desk.action(operation)
    assert (action.state, action.review, action.attempts) == ("UNKNOWN", True, 3)
    assert [a.state for a in desk.view(operation).attempts] == ["UNKNOWN", "NOT_SENT", "NOT_SENT"]
    assert len(desk.lab.effects) == 1


def test_a_refusal_of_a_repeat_may_be_our_own_doing(desk: Desk) -> None:
    """The first request may have been applied, and be why the second is refused: that is no proof of nothing."""
    operation = desk.submit(one("flag"), DONE)
    desk.lab.will(cut=True)
    desk.lab.will(status=409, json={"code": "VERSION_CHANGED"}, effect=False)
    desk.advance(operation)
    desk.step("writes")
    desk.hurry(operation)
    desk.step("writes")
    desk.hurry(operation)
    desk.step("writes")
    assert desk.action(operation).state == "UNKNOWN"
    assert len(desk.lab.effects) == 1


def test_a_repeat_that_waited_longer_than_the_key_is_kept_does_not_start(desk: Desk) -> None:
    operation = desk.submit(one("keyed"), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    desk.hurry(operation)
    desk.step("writes")
    assert desk.action(operation).state == "READY"
    desk.sql("UPDATE actions SET started_at = started_at - interval '2 days' WHERE operation_id = :o", o=operation)
    desk.hurry(operation)
    desk.step("writes")
    assert (desk.action(operation).state, len(desk.lab.seen)) == ("UNKNOWN", 1)


# --- unknown -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [{"cut": True}, {"cut": True, "effect": False}, {"status": 503}, {"body": b"<html>"}])
def test_without_handler_or_contract_an_operator_must_settle_it(desk: Desk, plan: dict[str, Any]) -> None:
    operation = desk.submit(one("write"), DONE)
    desk.lab.will(**plan)
    view = desk.run(operation)
    action = desk.action(operation)
    assert (view.state, action.state, action.review) == ("RECONCILING", "UNKNOWN", True)
    assert desk.idle("writes")
    desk.sweep()
    assert len(desk.lab.seen) == 1, "it is never sent again"
    assert len(desk.requests(operation)) == 1, "and the model is not told that it is over"


def test_a_lost_worker_leaves_it_unknown(desk: Desk) -> None:
    operation = desk.submit(one("write"), DONE)
    desk.advance(operation)
    start_and_die(desk, operation)
    action = desk.action(operation)
    assert (action.state, action.review, desk.view(operation).state) == ("UNKNOWN", True, "RECONCILING")
    assert desk.lab.seen == []


def test_a_downstream_that_enforces_the_key_is_asked_again_under_it(desk: Desk) -> None:
    operation = desk.submit(one("keyed"), DONE)
    desk.lab.will(cut=True)
    desk.lab.will(effect=False)  # it remembers the key and replays its answer
    assert desk.run(operation).state == "COMPLETED"
    action = desk.action(operation)
    assert (action.state, action.attempts) == ("SUCCEEDED", 2)
    assert keys(desk) == [action.idempotency_key] * 2
    assert len(desk.lab.effects) == 1


def test_a_key_that_is_forgotten_protects_nothing(desk: Desk) -> None:
    operation = desk.submit(one("brief"), DONE)
    desk.lab.will(cut=True)
    desk.run(operation)
    action = desk.action(operation)
    assert (action.state, action.review, len(desk.lab.seen)) == ("UNKNOWN", True, 1)


def test_resending_ends_at_the_limit(desk: Desk) -> None:
    operation = desk.submit(one("keyed"), DONE)
    for _ in range(5):
        desk.lab.will(cut=True)
    desk.run(operation)
    action = desk.action(operation)
    assert (action.state, action.review, len(desk.lab.seen)) == ("UNKNOWN", True, 3)


def test_a_declared_overwrite_may_be_repeated(desk: Desk) -> None:
    operation = desk.submit(one("flag"), DONE)
    desk.lab.will(status=503)
    assert desk.run(operation).state == "COMPLETED"
    assert desk.action(operation).attempts == 2


# --- reconciliation ------------------------------------------------------------------------------------------------


def test_the_effect_is_found(desk: Desk) -> None:
    operation = desk.submit(one("checked"), DONE)
    desk.lab.will(cut=True)
    desk.lab.will(json={"id": "r-9", "text": "found"})
    assert desk.run(operation).state == "COMPLETED"
    action = desk.action(operation)
    assert (action.state, action.external_ref, action.attempts) == ("SUCCEEDED", "r-9", 1)
    assert desk.lab.seen[1].path == f"/by-key/{action.idempotency_key}"
    assert desk.call(operation).observation == {"state": "succeeded", "data": {"id": "r-9", "text": "found"}}


def test_a_recorded_refusal_is_proof(desk: Desk) -> None:
    operation = desk.submit(one("checked"), DONE)
    desk.lab.will(cut=True, effect=False)
    desk.lab.will(status=409, json={"code": "FULL"})
    assert desk.run(operation).state == "COMPLETED"
    assert states(desk, operation) == ["FULL"]


def test_not_found_is_no_proof(desk: Desk) -> None:
    """A late request can still arrive: it is asked about again, then an operator must settle it."""
    operation = desk.submit(one("checked"), DONE)
    desk.lab.will(cut=True, effect=False)
    for _ in range(50):
        desk.lab.will(status=404)
    view = desk.run(operation)
    action = desk.action(operation)
    assert (view.state, action.state, action.review) == ("RECONCILING", "UNKNOWN", True)
    assert len(keys(desk)) == 1
    assert len(desk.audit(operation, "action.checked")) == desk.app.settings.check_limit


def test_pending_is_followed_up(desk: Desk) -> None:
    operation = desk.submit(one("checked"), DONE)
    desk.lab.will(status=202, json={"id": "job-9"})
    desk.advance(operation)
    desk.step("writes")
    action = desk.action(operation)
    assert (action.state, action.external_ref, desk.view(operation).state) == ("PENDING", "job-9", "RECONCILING")
    desk.lab.will(status=404)  # no trace of it yet: it stays pending
    desk.hurry(operation)
    desk.step("writes")
    assert desk.action(operation).state == "PENDING"
    desk.lab.will(json={"id": "r-9", "text": "done"})
    assert desk.run(operation).state == "COMPLETED"


def test_a_check_whose_worker_died_is_made_again(desk: Desk) -> None:
    operation = desk.submit(one("checked"), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    desk.hurry(operation)
    with desk.app.database.autocommit() as connection:
        assert action_store.claim_check(connection, desk.action(operation).action_id, lease=60) is not None
    assert desk.idle("writes")
    desk.expire_leases(operation)
    desk.lab.will(json={"id": "r-9"})
    assert desk.run(operation).state == "COMPLETED"


def test_a_late_result_of_a_zombie_is_evidence_only(desk: Desk) -> None:
    operation = desk.submit(one("write"), DONE)
    desk.advance(operation)
    desk.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(desk.app, "writes", None))
    worker.start()
    eventually(lambda: bool(desk.lab.seen))
    desk.expire_leases(operation)
    desk.sweep()
    assert desk.action(operation).state == "UNKNOWN"
    desk.lab.released.set()
    worker.join(60)
    assert desk.action(operation).state == "UNKNOWN"
    [late] = desk.audit(operation, "action.late_result")
    assert late["body"].items() >= {"fence": 1, "outcome": "succeeded", "reference": "r-1"}.items()


# --- the same intent -----------------------------------------------------------------------------------------------


def test_a_repeated_proposal_gets_the_stored_outcome(desk: Desk) -> None:
    operation = desk.submit(one("keyed", text="a"), one("keyed", text="a"), DONE)
    assert desk.run(operation).state == "COMPLETED"
    first, second = desk.view(operation).calls
    assert (first.duplicate, second.duplicate) == (False, True)
    assert (first.action_id, first.observation) == (second.action_id, second.observation)
    assert len(desk.lab.effects) == 1


def test_a_repeat_in_the_same_reply_waits_for_the_outcome(desk: Desk) -> None:
    operation = desk.submit(calls(call("keyed", text="a"), call("keyed", text="a")), DONE)
    desk.advance(operation)
    assert [c.state for c in desk.view(operation).calls] == ["WAITING", "WAITING"]
    assert desk.run(operation).state == "COMPLETED"
    assert [c.state for c in desk.view(operation).calls] == ["SUCCEEDED", "SUCCEEDED"]
    assert len(desk.lab.effects) == 1


def test_the_same_intent_with_other_arguments_is_a_conflict(desk: Desk) -> None:
    operation = desk.submit(one("keyed", text="a", size=1), one("keyed", text="a", size=2), DONE)
    desk.run(operation)
    assert desk.view(operation).calls[1].code == "CONFLICTING_INTENT"
    assert len(desk.lab.effects) == 1


def test_after_a_failure_the_same_intent_is_a_new_request_with_a_new_key(desk: Desk) -> None:
    operation = desk.submit(one("keyed", text="a"), one("keyed", text="a"), DONE)
    desk.lab.will(status=422, json={"code": "FULL"}, effect=False)
    desk.run(operation)
    assert states(desk, operation) == ["FULL", "SUCCEEDED"]
    assert len(set(keys(desk))) == 2


def test_another_operation_is_another_intent(desk: Desk) -> None:
    for _ in range(2):
        assert desk.run(desk.submit(one("keyed", text="a"), DONE)).state == "COMPLETED"
    assert len(set(keys(desk))) == 2


def test_an_egress_read_is_dispatched_as_an_action(desk: Desk) -> None:
    operation = desk.submit(one("export"), DONE)
    assert desk.run(operation).state == "COMPLETED"
    assert (desk.action(operation).effect, desk.view(operation).usage.writes) == ("read", 0)


# --- order within a turn -------------------------------------------------------------------------------------------


def test_writes_follow_the_reads_one_at_a_time(desk: Desk) -> None:
    operation = desk.submit(calls(call("write", text="1"), call("look"), call("write", text="2")), DONE)
    desk.advance(operation)
    assert desk.idle("writes")
    desk.step("reads")
    desk.step("writes")
    assert [a.state for a in desk.actions(operation)] == ["SUCCEEDED", "READY"]
    desk.step("writes")
    assert [seen.path for seen in desk.lab.effects] == ["/notes/1", "/notes/2"]


@pytest.mark.parametrize("plan", [{"status": 422, "json": {"code": "FULL"}, "effect": False}, {"cut": True}])
def test_after_a_failed_or_unknown_write_the_next_is_not_dispatched(desk: Desk, plan: dict[str, Any]) -> None:
    operation = desk.submit(calls(call("write", text="1"), call("write", text="2"), call("careful")), DONE)
    desk.lab.will(**plan)
    desk.run(operation)
    assert states(desk, operation)[1:] == ["EARLIER_WRITE_NOT_DONE"] * 2
    assert len(desk.lab.seen) == 1
    assert desk.view(operation).open_approvals == [], "nobody is asked about what will not happen"


def test_independent_writes_are_free(desk: Desk) -> None:
    operation = desk.submit(calls(call("look"), call("aside", text="1"), call("aside", text="2")), DONE)
    desk.advance(operation)
    desk.lab.will(status=422, json={"code": "FULL"}, effect=False)
    desk.step("writes")
    desk.step("writes")
    assert states(desk, operation) == ["FULL", "SUCCEEDED"]


def test_what_a_turn_was_denied_before_does_not_stop_its_new_writes(desk: Desk) -> None:
    """A repeated proposal of a denied action gets its stored answer; its place in the turn is where it stands now."""
    operation = desk.submit(one("careful"), calls(call("write"), call("careful")), DONE)
    desk.advance(operation)
    commands.deny(desk.app, desk.approval(operation), by="boss")
    assert desk.run(operation).state == "COMPLETED"
    assert states(desk, operation) == ["APPROVAL_DENIED", "SUCCEEDED"]


def test_a_limited_write_waits_for_its_slot(desk: Desk) -> None:
    first, second = desk.submit(one("single"), DONE), desk.submit(one("single"), DONE)
    desk.advance(first)
    desk.advance(second)
    start_and_die(desk, first)
    assert desk.idle("writes"), "its request may still be running"
    desk.sql("UPDATE slots SET lease_until = clock_timestamp() - interval '1 second' WHERE tool = 'single'")
    desk.step("writes")
    assert desk.action(second).state == "SUCCEEDED"


# --- asked again just before the start -----------------------------------------------------------------------------


def test_authorization_that_was_withdrawn(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = desk.submit(one("careful"), DONE)
    desk.advance(operation)
    commands.approve(desk.app, desk.approval(operation), by="boss")
    monkeypatch.setitem(lab.FACTS, "allowed", False)
    desk.run(operation)
    assert (states(desk, operation), desk.lab.seen) == (["NOT_YOURS"], [])
    assert desk.view(operation).approvals[0].state == "REVOKED"


def test_a_resource_that_changed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = desk.submit(one("careful"), DONE)
    desk.advance(operation)
    commands.approve(desk.app, desk.approval(operation), by="boss")
    monkeypatch.setitem(lab.FACTS, "version", "v2")
    desk.run(operation)
    assert (states(desk, operation), desk.lab.seen) == (["RESOURCE_CHANGED"], [])


def test_a_tool_that_changed(desk: Desk) -> None:
    operation = desk.submit(one("careful"), DONE)
    desk.advance(operation)
    commands.approve(desk.app, desk.approval(operation), by="boss")
    desk.app.registry._tools["careful"] = replace(desk.app.registry._tools["careful"], version="2")
    desk.run(operation)
    assert (states(desk, operation), desk.lab.seen) == (["TOOL_CHANGED"], [])


@pytest.mark.parametrize(
    ("column", "code"),
    [('arguments = \'{"text":"other","size":0}\'', "ACTION_CHANGED"), ("revision = 2", "SUPERSEDED")],
)
def test_an_action_that_was_altered(desk: Desk, column: str, code: str) -> None:
    operation = desk.submit(one("careful"), DONE)
    desk.advance(operation)
    commands.approve(desk.app, desk.approval(operation), by="boss")
    statement = f"UPDATE actions SET {column} WHERE operation_id = '{operation}'"
    with desk.app.database.transaction() as connection:
        connection.exec_driver_sql(statement)
    desk.run(operation)
    assert (states(desk, operation), desk.lab.seen) == ([code], [])


def test_a_deadline_that_passed(desk: Desk) -> None:
    operation = desk.submit(one("write"), DONE)
    desk.advance(operation)
    desk.sql("UPDATE operations SET deadline = clock_timestamp() WHERE operation_id = :o", o=operation)
    desk.step("writes")
    assert (states(desk, operation), desk.lab.seen) == (["DEADLINE"], [])
