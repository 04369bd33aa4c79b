"""Several people must approve, and one of them may refuse."""

import pytest

from orchestrator import commands
from orchestrator.domain.errors import Conflict
from policy.profile import ApprovalRule
from tests.orchestrator.desk import DONE, Desk, calls
from tests.people.scene import CAREFUL, approval, at_approval, at_once, outcomes, refused

THREE = [ApprovalRule(approvers=3)]
ASKS = calls(CAREFUL)


def test_all_of_them(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE, rules=THREE)
    for who in ("ann", "ben"):
        commands.approve(hall.app, asked, by=who, reason=f"{who} says so")
        view = hall.view(operation)
        assert (view.state, view.approvals[0].state) == ("WAITING_APPROVAL", "PENDING")
    assert hall.idle("writes")
    commands.approve(hall.app, asked, by="cia")
    assert hall.run(operation).state == "COMPLETED"
    row = approval(hall, operation)
    assert [(d.by, d.decision, d.reason) for d in row.decisions] == [
        ("ann", "APPROVE", "ann says so"), ("ben", "APPROVE", "ben says so"), ("cia", "APPROVE", ""),
    ]  # fmt: skip
    counted = [
        (e["body"]["by"], e["body"]["approved"], e["body"]["needed"]) for e in hall.audit(operation, "approval.counted")
    ]
    assert counted == [("ann", 1, 3), ("ben", 2, 3)]
    assert (row.approvers, row.state) == (3, "CONSUMED")


def test_one_person_counts_once(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE, rules=THREE)
    commands.approve(hall.app, asked, by="ann")
    for _ in range(3):
        with pytest.raises(Conflict) as caught:
            commands.approve(hall.app, asked, by=" ann")
        assert caught.value.code == "ALREADY_DECIDED"
    assert refused(hall, operation, "ALREADY_DECIDED")
    assert approval(hall, operation).state == "PENDING"


def test_one_refusal_is_enough(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE, rules=THREE)
    commands.approve(hall.app, asked, by="ann")
    commands.approve(hall.app, asked, by="ben")
    commands.deny(hall.app, asked, by="cia", reason="no")
    assert hall.run(operation).state == "COMPLETED"
    assert (outcomes(hall, operation), hall.lab.seen) == (["APPROVAL_DENIED"], [])


def test_ten_at_once(hall: Desk) -> None:
    """As many count as are needed; the others come too late."""
    operation, asked = at_approval(hall, ASKS, DONE, rules=THREE)
    done = at_once(*[lambda i=i: commands.approve(hall.app, asked, by=f"p{i}") for i in range(10)])  # type: ignore[misc]
    assert sum(done) == 3
    assert len(approval(hall, operation).decisions) == 3
    assert hall.run(operation).state == "COMPLETED"
    assert len(hall.lab.effects) == 1


def test_a_decision_cannot_be_changed(hall: Desk) -> None:
    _, asked = at_approval(hall, ASKS, DONE, rules=THREE)
    commands.approve(hall.app, asked, by="ann")
    for statement in ("UPDATE decisions SET by = 'eve'", "DELETE FROM decisions"):
        with pytest.raises(Exception, match="append-only"):
            hall.sql(statement)


def test_forged_decisions_do_not_count(hall: Desk) -> None:
    """Rows written past us name no approval that was asked for."""
    operation, asked = at_approval(hall, ASKS, DONE, rules=THREE)
    for who in ("x", "y"):
        hall.sql(
            "INSERT INTO decisions (approval_id, by, decision, reason, bound_sha256) "
            "VALUES (:a, :by, 'APPROVE', '', 'forged')", a=asked, by=who,
        )  # fmt: skip
    commands.approve(hall.app, asked, by="ann")
    assert approval(hall, operation).state == "PENDING"
