"""The practice of the first seed: look up the order, draft the refund, wait for approval, submit, explain.

Its six branches on the support example: real shop, real ledger.
"""

from typing import Any

import pytest

from examples.support.script import ORDER_ID, script
from orchestrator import commands
from orchestrator.domain.errors import Conflict
from tests.orchestrator.desk import DONE, call, calls
from tests.orchestrator.test_support import Support


def play(support: Support, *changed: tuple[int, dict[str, Any]], extra: tuple[dict[str, Any], ...] = ()) -> str:
    """The scenario's own turns, some of them replaced, `extra` before the last."""
    turns = script()["turns"]
    for index, turn in changed:
        turns[index] = turn
    support.model.add({"id": support.tenant, "turns": [*turns[:-1], *extra, turns[-1]]})
    return support.begin()


def approve(support: Support, operation: str) -> None:
    assert support.run(operation).state == "WAITING_APPROVAL"
    commands.approve(support.app, support.approval(operation), by="boss")


def test_branch_1_ids_are_of_their_own_kind(support: Support) -> None:
    """Response, call, operation, action, attempt, approval and idempotency key: none stands in for another."""
    operation = play(support)
    approve(support, operation)
    view = support.run(operation)
    refund = view.actions[1]
    [approval] = view.approvals
    [attempt] = [a for a in view.attempts if a.action_id == refund.action_id]
    [proposed] = [c for c in view.calls if c.action_id == refund.action_id]
    response = next(r.response_id for r in view.requests if r.turn == proposed.turn)
    ids = [
        operation, refund.action_id, refund.idempotency_key, approval.approval_id, attempt.attempt_id, proposed.call_id,
        response,
    ]  # fmt: skip
    assert len(set(ids)) == len(ids)
    assert approval.action_id == refund.action_id
    [row] = support.refunds()
    assert row.key == refund.idempotency_key, "the downstream knows the key and none of the other ids"
    [bound] = support.sql(
        "SELECT binding FROM calls WHERE call_id = :c AND operation_id = :o", c=proposed.call_id, o=operation
    )
    assert {operation, refund.idempotency_key, proposed.call_id, response} <= set(map(str, bound["binding"].values()))


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_branch_2_api_max_tokens(support: Support, turn: int) -> None:
    """INCOMPLETE(TRUNCATED) in any turn; what had happened until then is in the record, and nothing is submitted."""
    operation = play(support, (turn, {"truncated": "I will now"}))
    if turn == 3:
        approve(support, operation)
    view = support.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "TRUNCATED")
    happened = [row["tool"] for row in (view.pending or {})["happened"]]
    assert happened == [[], [], ["draft_refund"], ["draft_refund", "submit_refund"]][turn]
    assert len(support.refunds()) == (turn == 3)


def test_branch_3_an_unknown_tool(support: Support) -> None:
    """RESULTS_READY with an error envelope; the loop goes on and the task is done all the same."""
    operation = play(support, extra=(calls(call("wire_money", iban="DE00")),))
    approve(support, operation)
    view = support.run(operation)
    assert (view.state, view.calls[-1].code, view.calls[-1].state) == ("COMPLETED", "UNKNOWN_TOOL", "REJECTED")
    assert len(support.refunds()) == 1


def test_branch_4_an_expired_approval(support: Support) -> None:
    """The model is told and goes on; nobody can approve any more, and nothing was refunded."""
    operation = play(support, extra=(DONE,))
    assert support.run(operation).state == "WAITING_APPROVAL"
    approval = support.approval(operation)
    support.tamper(
        "approvals", "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 s' WHERE operation_id = :o",
        o=operation,
    )  # fmt: skip
    support.sweep()
    view = support.run(operation)
    assert (view.calls[-1].code, view.actions[1].state) == ("APPROVAL_EXPIRED", "REJECTED")
    assert view.state != "WAITING_APPROVAL"
    assert support.refunds() == []
    with pytest.raises(Conflict, match=r"(?i)expired"):
        commands.approve(support.app, approval, by="boss")


@pytest.mark.parametrize("fault", ["cut_after_effect", "garbage"])
def test_branch_5_submission_times_out_where_the_downstream_succeeded(support: Support, fault: str) -> None:
    """RECONCILING, not failure; found by the key, reported once it is established, and never sent again."""
    operation = play(support)
    approve(support, operation)
    support.fault("POST /refunds", fault)
    asked = len(support.model.requests(support.tenant))
    support.step("writes")
    view = support.view(operation)
    assert (view.state, view.actions[1].state, view.calls[-1].observation) == ("RECONCILING", "UNKNOWN", None)
    assert len(support.model.requests(support.tenant)) == asked
    view = support.run(operation)
    assert (view.state, view.actions[1].state, view.actions[1].attempts) == ("COMPLETED", "SUCCEEDED", 1)
    assert len(support.refunds()) == 1


def test_branch_6_the_identical_call_again(support: Support) -> None:
    """A new call id, the same refund: it gets the stored outcome, no new approval, no second payment."""
    again = script()["turns"][2]
    operation = play(support, extra=(again,))
    approve(support, operation)
    view = support.run(operation)
    first, second = [c for c in view.calls if c.tool == "submit_refund"]
    assert (view.state, second.duplicate, first.call_id != second.call_id) == ("COMPLETED", True, True)
    assert (first.action_id, first.observation) == (second.action_id, second.observation)
    assert (len(view.approvals), len(support.refunds())) == (1, 1)
    [entry] = support.audit(operation, "turn.proposed")[-1:]
    [proposal] = entry["body"]["calls"]
    assert (proposal["duplicate"], proposal["contacted"], proposal["key"]) == (
        True,
        False,
        view.actions[1].idempotency_key,
    )


def test_the_whole_practice_without_trouble(support: Support) -> None:
    operation = play(support)
    approve(support, operation)
    view = support.run(operation)
    assert (view.state, view.turns) == ("COMPLETED", 4)
    assert ORDER_ID in (view.final_text or "")
    assert len(support.refunds()) == 1
