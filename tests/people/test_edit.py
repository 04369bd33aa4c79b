"""Approve with other arguments: another action, with a digest and a key of its own, and the model knows."""

import json
from typing import Any

import pytest

from orchestrator import auditing, commands
from orchestrator.domain.errors import ConfigError, Conflict, UserError
from policy.profile import ApprovalRule
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import CAREFUL, approval, at_approval, at_once, observations, outcomes, refused, submit

ASKS = calls(CAREFUL)
LESS = {"text": "a", "size": 3}


def test_the_edited_request_runs_and_the_model_is_told(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    [old] = hall.actions(operation)
    new_id = commands.approve(hall.app, asked, by="boss", reason="less", arguments=LESS)
    assert hall.run(operation).state == "COMPLETED"
    [effect] = hall.lab.effects
    assert json.loads(effect.body) == {"size": 3}
    edited, new = hall.actions(operation)
    assert (edited.action_id, edited.state, edited.code) == (old.action_id, "REJECTED", "EDITED")
    assert (new.action_id, new.state, new.arguments) == (new_id, "SUCCEEDED", LESS)
    assert new.idempotency_key != old.idempotency_key
    assert effect.headers["idempotency-key"] == new.idempotency_key
    [told] = observations(hall, operation)
    assert told["state"] == "succeeded"
    assert (told["edited_by_person"], told["arguments_used"]) == (True, LESS)
    shown = [item for item in hall.requests(operation)[-1]["input"] if item.get("type") == "function_call_output"]
    assert json.loads(shown[0]["output"]) == told


def test_both_approvals_say_what_happened(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    commands.approve(hall.app, asked, by="boss", arguments=LESS)
    first, second = hall.view(operation).approvals
    assert (first.state, [d.decision for d in first.decisions]) == ("REVOKED", ["EDIT"])
    assert (second.state, [d.decision for d in second.decisions]) == ("APPROVED", ["APPROVE"])
    assert (second.arguments, second.expires_at) == (LESS, first.expires_at)
    assert first.action_digest != second.action_digest
    [entry] = hall.audit(operation, "approval.edited")
    assert (entry["body"]["digest"], entry["body"]["new_digest"]) == (first.action_digest, second.action_digest)
    with pytest.raises(Conflict, match="the approval is REVOKED"):
        commands.approve(hall.app, asked, by="other")


def test_the_same_arguments_are_no_edit(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    commands.approve(hall.app, asked, by="boss", arguments={"size": 5, "text": "a"})
    assert hall.run(operation).state == "COMPLETED"
    assert outcomes(hall, operation) == ["SUCCEEDED"]
    assert "edited_by_person" not in observations(hall, operation)[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"size": "many"}, "size"), ({"colour": "red"}, "colour"), ({"size": 2**60}, "range"), ({"size": 1.5}, "size")],
)
def test_an_edit_is_validated_like_a_proposal(hall: Desk, arguments: dict[str, Any], words: str) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    with pytest.raises(UserError, match=words) as caught:
        commands.approve(hall.app, asked, by="boss", arguments=arguments)
    assert caught.value.code == "BAD_ARGUMENTS"
    assert refused(hall, operation, "BAD_ARGUMENTS")
    assert approval(hall, operation).state == "PENDING"


def test_an_edit_is_authorized_like_a_proposal(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    lab.FACTS["allowed"] = False
    with pytest.raises(Conflict, match="NOT_YOURS") as caught:
        commands.approve(hall.app, asked, by="boss", arguments=LESS)
    assert caught.value.code == "FORBIDDEN"
    assert refused(hall, operation, "FORBIDDEN")


def test_an_edit_needs_the_tool(hall: Desk) -> None:
    _, asked = at_approval(hall, ASKS, DONE)
    del hall.app.registry._tools["careful"]
    with pytest.raises(ConfigError, match="TURNQUEUE_MODULES"):
        commands.approve(hall.app, asked, by="boss", arguments=LESS)


def test_an_edit_may_need_more_people(hall: Desk) -> None:
    """The rules are asked again with the new arguments; the editor is the first of them."""
    rules = [ApprovalRule(tools=("careful",), over={"size": 100}, approvers=2)]
    operation, asked = at_approval(hall, ASKS, DONE, rules=rules)
    commands.approve(hall.app, asked, by="ann", arguments={"text": "a", "size": 101})
    assert hall.view(operation).state == "WAITING_APPROVAL"
    [open_one] = hall.view(operation).open_approvals
    assert (open_one.approvers, [d.by for d in open_one.decisions]) == (2, ["ann"])
    commands.approve(hall.app, open_one.approval_id, by="ben")
    assert hall.run(operation).state == "COMPLETED"
    assert outcomes(hall, operation) == ["EDITED", "SUCCEEDED"]


def test_an_edit_never_needs_fewer_people(hall: Desk) -> None:
    rules = [ApprovalRule(tools=("careful",), over={"size": 4}, approvers=2)]
    operation, asked = at_approval(hall, ASKS, DONE, rules=rules)
    commands.approve(hall.app, asked, by="ann", arguments=LESS)
    assert hall.view(operation).state == "WAITING_APPROVAL"


def test_an_edit_of_an_edit(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE, rules=[ApprovalRule(approvers=2)])
    commands.approve(hall.app, asked, by="ann", arguments={"text": "a", "size": 1})
    commands.approve(hall.app, hall.approval(operation), by="ben", arguments={"text": "a", "size": 2})
    commands.approve(hall.app, hall.approval(operation), by="cia")
    assert hall.run(operation).state == "COMPLETED"
    assert outcomes(hall, operation) == ["EDITED", "EDITED", "SUCCEEDED"]
    assert [json.loads(effect.body) for effect in hall.lab.effects] == [{"size": 2}]


def test_proposing_the_original_again_gets_the_edited_outcome(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, ASKS, DONE)
    commands.approve(hall.app, asked, by="boss", arguments=LESS)
    assert hall.run(operation).state == "COMPLETED"
    first, second = hall.view(operation).calls
    assert second.duplicate
    assert second.observation == first.observation
    assert len(hall.lab.effects) == 1


def test_an_edit_into_another_action_of_the_operation(hall: Desk) -> None:
    script = calls(call("careful", text="a"), call("careful", text="b"))
    operation = submit(hall, script, DONE)
    hall.advance(operation)
    first, second = hall.view(operation).approvals
    with pytest.raises(Conflict) as caught:
        commands.approve(hall.app, second.approval_id, by="boss", arguments=first.arguments)
    assert caught.value.code == "CONFLICTING_INTENT"


def test_its_place_in_the_order_is_kept(hall: Desk) -> None:
    operation = submit(hall, calls(CAREFUL, call("write", text="later")), DONE)
    hall.advance(operation)
    assert hall.idle("writes")
    commands.approve(hall.app, hall.approval(operation), by="boss", arguments=LESS)
    assert hall.run(operation).state == "COMPLETED"
    assert [effect.path for effect in hall.lab.effects] == ["/notes/a", "/notes/later"]


def test_an_edit_keeps_the_budgets(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    before = hall.view(operation).usage
    commands.approve(hall.app, asked, by="boss", arguments=LESS)
    after = hall.view(operation).usage
    assert (after.calls, after.writes) == (before.calls, before.writes)


def test_the_changed_resource_of_an_edit(hall: Desk) -> None:
    """An edit is judged anew, so it is bound to the resource as it is now."""
    operation, asked = at_approval(hall, ASKS, DONE)
    lab.FACTS["version"] = "v2"
    commands.approve(hall.app, asked, by="boss", arguments=LESS)
    assert hall.run(operation).state == "COMPLETED"
    assert outcomes(hall, operation) == ["EDITED", "SUCCEEDED"]


def test_an_edit_races_a_plain_approval(hall: Desk) -> None:
    for _ in range(20):
        operation, asked = at_approval(hall, ASKS, DONE)
        done = at_once(
            lambda asked=asked: commands.approve(hall.app, asked, by="ann"),  # type: ignore[misc]
            lambda asked=asked: commands.approve(hall.app, asked, by="ben", arguments=LESS),  # type: ignore[misc]
        )
        assert sum(done) == 1
        sent = len(hall.lab.effects)
        assert hall.run(operation).state == "COMPLETED"
        assert len(hall.lab.effects) == sent + 1


def test_the_audit_of_an_edit_verifies(hall: Desk) -> None:
    operation, asked = at_approval(hall, ASKS, DONE)
    commands.approve(hall.app, asked, by="boss", arguments=LESS)
    hall.run(operation)
    report = auditing.verify(hall.app.database, operation_id=operation)
    assert report.findings == []
