"""Every way to use an approval for something else than it was given for: refused, and in the audit with its code."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator import commands
from orchestrator.domain.errors import Conflict, NotFound
from policy.profile import ApprovalRule
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import CAREFUL, approval, at_approval, at_once, outcomes, refused, submit

ASKS = calls(CAREFUL)


def approved(hall: Desk, *turns: Any, **changed: Any) -> str:
    operation, asked = at_approval(hall, *(turns or (ASKS, DONE)), **changed)
    commands.approve(hall.app, asked, by="boss")
    return operation


def not_started(hall: Desk, operation: str, code: str) -> None:
    """It was refused at the start, nothing was sent, and both rows and audit say why."""
    hall.run(operation)
    assert hall.lab.seen == []
    assert outcomes(hall, operation)[0] == code
    assert [entry["body"]["code"] for entry in hall.audit(operation, "action.rejected")][:1] == [code]
    assert all(asked.state in ("REVOKED", "EXPIRED", "CONSUMED") for asked in hall.view(operation).approvals)
    assert hall.audit(operation, "action.started") == []


def test_changed_argument(hall: Desk) -> None:
    operation = approved(hall)
    hall.sql("UPDATE actions SET arguments = arguments || '{\"size\": 500}' WHERE operation_id = :o", o=operation)
    not_started(hall, operation, "ACTION_CHANGED")


def test_changed_argument_with_its_digests(hall: Desk) -> None:
    """Somebody who can write to the tables makes the action's own digest fit; the approval's does not."""
    operation = approved(hall)
    hall.sql("UPDATE approvals SET action_digest = 'other' WHERE operation_id = :o", o=operation)
    not_started(hall, operation, "APPROVAL_INVALID")


def test_changed_policy(hall: Desk) -> None:
    operation = approved(hall)
    spec = hall.app.registry._tools["careful"]
    hall.app.registry._tools["careful"] = replace(spec, scopes=frozenset())
    hall.app.registry._tools["careful"] = replace(spec, approval=lambda args, principal: True)
    not_started(hall, operation, "POLICY_CHANGED")


def test_changed_tool_version(hall: Desk) -> None:
    operation = approved(hall)
    hall.app.registry._tools["careful"] = replace(hall.app.registry._tools["careful"], version="2")
    not_started(hall, operation, "TOOL_CHANGED")


def test_changed_resource(hall: Desk) -> None:
    operation = approved(hall)
    lab.FACTS["version"] = "v2"
    not_started(hall, operation, "RESOURCE_CHANGED")


def test_authority_lost_meanwhile(hall: Desk) -> None:
    operation = approved(hall)
    lab.FACTS["allowed"] = False
    not_started(hall, operation, "NOT_YOURS")


def test_expired(hall: Desk) -> None:
    operation = approved(hall)
    hall.sql(
        "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 second' WHERE operation_id = :o", o=operation
    )
    not_started(hall, operation, "APPROVAL_EXPIRED")


def test_an_expiry_that_was_moved(hall: Desk) -> None:
    """The expiry is part of what was decided."""
    operation = approved(hall)
    hall.sql("UPDATE approvals SET expires_at = expires_at + interval '1 year' WHERE operation_id = :o", o=operation)
    not_started(hall, operation, "APPROVAL_INVALID")


@pytest.mark.parametrize("change", ["approvers = 0 + 1, separate = true", "nonce = 'x'", "requester = 'bob'"])
def test_an_approval_that_was_rewritten(hall: Desk, change: str) -> None:
    operation = approved(hall)
    hall.sql(f"UPDATE approvals SET {change} WHERE operation_id = :o", o=operation)
    not_started(hall, operation, "APPROVAL_INVALID")


def test_rewritten_before_the_decision(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    hall.sql("UPDATE actions SET arguments = '{}', digest = 'other' WHERE operation_id = :o", o=operation)
    with pytest.raises(Conflict) as caught:
        commands.approve(hall.app, asked, by="boss")
    assert caught.value.code == "APPROVAL_INVALID"
    assert refused(hall, operation, "APPROVAL_INVALID")


def test_approved_by_nobody(hall: Desk) -> None:
    """A row that says APPROVED is not enough: the decisions must be there."""
    operation, _ = at_approval(hall, ASKS, DONE)
    hall.sql("UPDATE approvals SET state = 'APPROVED', decided_by = 'boss' WHERE operation_id = :o", o=operation)
    hall.sql("UPDATE actions SET state = 'READY', wake_at = clock_timestamp() WHERE operation_id = :o", o=operation)
    not_started(hall, operation, "APPROVAL_INVALID")


def test_approval_removed(hall: Desk) -> None:
    operation = approved(hall)
    hall.tamper("decisions", "DELETE FROM decisions")
    hall.sql("DELETE FROM approvals WHERE operation_id = :o", o=operation)
    not_started(hall, operation, "APPROVAL_MISSING")


def test_used_again(hall: Desk) -> None:
    """Replay: the action is put back as if it had never run."""
    operation = approved(hall)
    hall.step("writes")
    assert (outcomes(hall, operation), len(hall.lab.effects)) == (["SUCCEEDED"], 1)
    hall.sql(
        "UPDATE actions SET state = 'READY', attempts = 0, observation = NULL, settled_at = NULL, started_at = NULL, "
        "wake_at = clock_timestamp() - interval '1 hour' WHERE operation_id = :o", o=operation,
    )  # fmt: skip
    hall.step("writes")
    assert (outcomes(hall, operation), len(hall.lab.effects)) == (["APPROVAL_USED"], 1)
    assert hall.audit(operation, "action.rejected")[0]["body"]["code"] == "APPROVAL_USED"


def test_used_for_another_call(hall: Desk) -> None:
    """The approval of one action, moved to another one of the same tool."""
    script = calls(call("careful", text="a"), call("careful", text="b"))
    operation = submit(hall, script, DONE)
    hall.advance(operation)
    first, second = hall.view(operation).approvals
    commands.approve(hall.app, first.approval_id, by="boss")
    hall.tamper("decisions", "SELECT 1")
    hall.sql("UPDATE approvals SET state = 'REVOKED' WHERE approval_id = :a", a=second.approval_id)
    hall.sql(
        "UPDATE approvals SET action_id = :to, action_digest = :d WHERE approval_id = :a",
        to=second.action_id, d=second.action_digest, a=first.approval_id,
    )  # fmt: skip
    hall.sql("UPDATE actions SET state = 'READY' WHERE action_id = :a", a=second.action_id)
    hall.run(operation)
    assert hall.lab.seen == []
    assert "SUCCEEDED" not in outcomes(hall, operation)
    assert outcomes(hall, operation)[0] == "APPROVAL_MISSING"


def test_moved_to_another_action(hall: Desk) -> None:
    operation = approved(hall, calls(call("careful", text="b")), DONE)
    other, asked = at_approval(hall, calls(call("careful", text="b")), DONE)
    [given] = hall.view(operation).approvals
    [wanted] = hall.view(other).approvals
    hall.sql("UPDATE approvals SET state = 'REVOKED' WHERE approval_id = :a", a=asked)
    hall.sql(
        "UPDATE approvals SET action_id = :to, action_digest = :d, operation_id = :o WHERE approval_id = :a",
        to=wanted.action_id, d=wanted.action_digest, o=other, a=given.approval_id,
    )  # fmt: skip
    hall.sql("UPDATE actions SET state = 'READY', wake_at = now() WHERE action_id = :a", a=wanted.action_id)
    hall.run(other)
    assert (outcomes(hall, other), hall.lab.seen) == (["APPROVAL_INVALID"], [])


def test_other_tenant(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    for verb in (commands.approve, commands.deny):
        with pytest.raises(NotFound) as caught:
            verb(hall.app, asked, by="mallory", tenant="initech")
        assert caught.value.code == "UNKNOWN_APPROVAL"
    with pytest.raises(NotFound):
        commands.approve(hall.app, asked, by="mallory", tenant="initech", arguments={"text": "b"})
    assert [e["body"]["code"] for e in hall.audit(operation, "approval.refused")] == ["OTHER_TENANT"] * 3
    assert approval(hall, operation).decisions == []


@pytest.mark.parametrize("verb", [commands.approve, commands.deny])
def test_decided_too_late(hall: Desk, verb: Any) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    hall.sql(
        "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 second' WHERE operation_id = :o", o=operation
    )
    with pytest.raises(Conflict, match="expired at"):
        verb(hall.app, asked, by="boss")
    assert refused(hall, operation, "NOT_PENDING")


def test_the_requester_may_not(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE, rules=[ApprovalRule(separate=True)])
    for given in (None, {"text": "b"}):
        with pytest.raises(Conflict, match="somebody else must approve") as caught:
            commands.approve(hall.app, asked, by=" alice ", arguments=given)
        assert caught.value.code == "SAME_PRINCIPAL"
    assert refused(hall, operation, "SAME_PRINCIPAL")
    commands.approve(hall.app, asked, by="boss")
    assert hall.run(operation).state == "COMPLETED"


def test_the_requester_may_deny(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE, rules=[ApprovalRule(separate=True)])
    commands.deny(hall.app, asked, by="alice")
    assert hall.run(operation).state == "COMPLETED"
    assert outcomes(hall, operation) == ["APPROVAL_DENIED"]


# --- races ---------------------------------------------------------------------------------------------------------


def test_200_races_of_approve_and_cancel(hall: Desk) -> None:
    """Exactly one of them decides whether it may start: approved first and then cancelled, or cancelled only."""
    for _ in range(200):
        operation, asked = at_approval(hall, ASKS, DONE)
        approving, cancelling = at_once(
            lambda asked=asked: commands.approve(hall.app, asked, by="boss"),  # type: ignore[misc]
            lambda operation=operation: commands.cancel(hall.app, operation),  # type: ignore[misc]
        )
        assert cancelling
        [row] = hall.view(operation).approvals
        assert row.state == "REVOKED"
        assert (row.decided_by == "boss") is approving
        assert refused(hall, operation, "NOT_PENDING") is not approving
        assert (outcomes(hall, operation), hall.view(operation).state) == (["CANCELLED"], "CANCELLED")
    assert hall.idle("writes")
    assert hall.lab.seen == []


def test_races_of_approve_and_deny(hall: Desk) -> None:
    for _ in range(40):
        operation, asked = at_approval(hall, ASKS, DONE)
        done = at_once(
            lambda asked=asked: commands.approve(hall.app, asked, by="boss"),  # type: ignore[misc]
            lambda asked=asked: commands.deny(hall.app, asked, by="chief"),  # type: ignore[misc]
        )
        assert sum(done) == 1
        assert refused(hall, operation, "NOT_PENDING")
        expected = ("APPROVED", "READY") if done[0] else ("DENIED", "APPROVAL_DENIED")
        assert (approval(hall, operation).state, outcomes(hall, operation)[0]) == expected
        commands.cancel(hall.app, operation)
