"""A person's decision: on one exact action, once, in time."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import commands
from orchestrator.domain.errors import Conflict
from tests.executors.downstream import refusing_url
from tests.orchestrator.desk import DONE, Desk, call, calls

ASKS = calls(call("careful", text="a"))


@pytest.fixture
def waiting(desk: Desk) -> str:
    """An operation that waits for a person."""
    operation = desk.submit(ASKS, DONE)
    assert desk.advance(operation).state == "WAITING_APPROVAL"
    return operation


def expire(desk: Desk, operation: str) -> None:
    desk.sql(
        "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 second' WHERE operation_id = :o", o=operation
    )


def outcome(desk: Desk, operation: str) -> str:
    action = desk.action(operation)
    return action.code or action.state


def test_waiting_holds_nothing(desk: Desk, waiting: str) -> None:
    assert desk.idle("writes")
    [row] = desk.sql("SELECT wake_at, lease_until FROM operations WHERE operation_id = :o", o=waiting)
    assert row == {"wake_at": None, "lease_until": None}
    [approval] = desk.view(waiting).approvals
    assert (approval.tool, approval.arguments, approval.requester) == ("careful", {"text": "a", "size": 0}, "alice")


def test_approved(desk: Desk, waiting: str) -> None:
    approval = desk.approval(waiting)
    assert commands.approve(desk.app, approval, by="boss", reason="fine") == desk.action(waiting).action_id
    assert desk.view(waiting).state == "EXECUTING"
    assert desk.run(waiting).state == "COMPLETED"
    [decided] = desk.view(waiting).approvals
    assert (decided.state, decided.decided_by, decided.decision_reason) == ("CONSUMED", "boss", "fine")
    [entry] = desk.audit(waiting, "approval.approved")
    assert (entry["actor"], entry["body"]["digest"]) == ("approver:boss", decided.action_digest)


def test_denied(desk: Desk, waiting: str) -> None:
    commands.deny(desk.app, desk.approval(waiting), by="boss")
    assert desk.run(waiting).state == "COMPLETED"
    assert (outcome(desk, waiting), desk.lab.seen) == ("APPROVAL_DENIED", [])
    assert desk.call(waiting).observation == {"state": "rejected", "code": "APPROVAL_DENIED"}


def test_expired(desk: Desk, waiting: str) -> None:
    approval = desk.approval(waiting)
    expire(desk, waiting)
    for verb in (commands.approve, commands.deny):
        with pytest.raises(Conflict, match="the approval expired at") as caught:
            verb(desk.app, approval, by="boss")
        assert caught.value.code == "NOT_PENDING"
    assert desk.sweep()["expired_approvals"] == 1
    assert desk.sweep()["expired_approvals"] == 0
    assert desk.run(waiting).state == "COMPLETED"
    assert (outcome(desk, waiting), desk.lab.seen) == ("APPROVAL_EXPIRED", [])


def test_approved_and_expired_before_the_start(desk: Desk, waiting: str) -> None:
    commands.approve(desk.app, desk.approval(waiting), by="boss")
    expire(desk, waiting)
    desk.run(waiting)
    assert (outcome(desk, waiting), desk.lab.seen) == ("APPROVAL_EXPIRED", [])


def test_approved_and_swept_before_the_start(desk: Desk, waiting: str) -> None:
    commands.approve(desk.app, desk.approval(waiting), by="boss")
    expire(desk, waiting)
    assert desk.sweep()["expired_approvals"] == 1
    desk.run(waiting)
    assert (outcome(desk, waiting), desk.lab.seen) == ("APPROVAL_EXPIRED", [])


def test_after_an_expiry_the_same_may_be_asked_again(desk: Desk) -> None:
    operation = desk.submit(ASKS, ASKS, DONE)
    desk.advance(operation)
    expire(desk, operation)
    desk.sweep()
    desk.advance(operation)
    commands.approve(desk.app, desk.approval(operation), by="boss")
    assert desk.run(operation).state == "COMPLETED"
    assert [a.code or a.state for a in desk.actions(operation)] == ["APPROVAL_EXPIRED", "SUCCEEDED"]


def test_after_a_denial_the_same_is_not_asked_again(desk: Desk) -> None:
    operation = desk.submit(ASKS, ASKS, DONE)
    desk.advance(operation)
    commands.deny(desk.app, desk.approval(operation), by="boss")
    assert desk.run(operation).state == "COMPLETED"
    assert len(desk.view(operation).approvals) == 1
    assert [c.code for c in desk.view(operation).calls] == ["APPROVAL_DENIED"] * 2


@pytest.mark.parametrize("first", [commands.approve, commands.deny])
@pytest.mark.parametrize("second", [commands.approve, commands.deny])
def test_decided_twice(desk: Desk, waiting: str, first: Callable[..., Any], second: Callable[..., Any]) -> None:
    approval = desk.approval(waiting)
    first(desk.app, approval, by="boss")
    with pytest.raises(Conflict, match="by boss; only a PENDING one can be decided") as caught:
        second(desk.app, approval, by="other")
    assert caught.value.code == "NOT_PENDING"
    assert desk.view(waiting).approvals[0].decided_by == "boss"


def test_decided_after_its_use(desk: Desk, waiting: str) -> None:
    approval = desk.approval(waiting)
    commands.approve(desk.app, approval, by="boss")
    desk.run(waiting)
    with pytest.raises(Conflict, match="the approval is CONSUMED"):
        commands.approve(desk.app, approval, by="boss")


def test_decided_after_cancel(desk: Desk, waiting: str) -> None:
    approval = desk.approval(waiting)
    commands.cancel(desk.app, waiting)
    with pytest.raises(Conflict, match="the approval is REVOKED"):
        commands.approve(desk.app, approval, by="boss")
    assert (desk.view(waiting).state, outcome(desk, waiting)) == ("CANCELLED", "CANCELLED")


def test_a_retry_of_the_same_action_needs_no_second_approval(
    desk: Desk, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.approve(desk.app, desk.approval(waiting), by="boss")
    with monkeypatch.context() as away:
        away.setenv("LAB_URL", refusing_url())
        desk.step("writes")
    assert desk.view(waiting).approvals[0].state == "CONSUMED"
    assert desk.run(waiting).state == "COMPLETED"
    assert (desk.action(waiting).attempts, len(desk.lab.effects)) == (2, 1)


def test_without_a_free_slot_the_approval_stays_usable(desk: Desk, waiting: str) -> None:
    """Starting takes approval and slot together or neither."""
    commands.approve(desk.app, desk.approval(waiting), by="boss")
    desk.sql("UPDATE actions SET limited = true WHERE operation_id = :o", o=waiting)
    assert desk.idle("writes")
    assert desk.view(waiting).approvals[0].state == "APPROVED"
    desk.sql("UPDATE actions SET limited = false WHERE operation_id = :o", o=waiting)
    assert desk.run(waiting).state == "COMPLETED"


@pytest.mark.parametrize("round_number", range(5))
def test_approve_deny_and_cancel_race(desk: Desk, waiting: str, round_number: int) -> None:
    """One of them wins; what the rows say afterwards fits together."""
    approval = desk.approval(waiting)
    verbs: list[Callable[[], Any]] = [
        lambda: commands.approve(desk.app, approval, by="boss"),
        lambda: commands.deny(desk.app, approval, by="boss"),
        lambda: commands.cancel(desk.app, waiting),
    ] * 2
    barrier, done = threading.Barrier(len(verbs)), [False] * len(verbs)

    def run(index: int) -> None:
        barrier.wait(60)
        try:
            verbs[index]()
            done[index] = True
        except Conflict:
            pass

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(verbs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(done[i] for i in (0, 1, 3, 4)) <= 1, "one decision"
    assert done[2] + done[5] == 1, "one cancel"
    view = desk.run(waiting)
    assert (view.state, desk.lab.seen) == ("CANCELLED", [])
    assert outcome(desk, waiting) in ("CANCELLED", "APPROVAL_DENIED")
