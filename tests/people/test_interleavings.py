"""People, the clock and workers in any order: never a started write without a valid approval, used once."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import commands, dispatch, turn
from orchestrator.domain.errors import Conflict
from policy.profile import ApprovalRule
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import submit

SCRIPT = calls(
    call("careful", text="a", size=1), call("careful", text="b", size=2), call("look"), call("ask_user", question="?")
)
STEPS = (
    "approve ann", "approve ben", "approve alice", "deny", "edit", "answer", "amend", "cancel", "expire", "sweep",
    "reads", "writes", "turn",
)  # fmt: skip


def act(hall: Desk, operation: str, step: str, which: int) -> None:
    verb, _, who = step.partition(" ")
    view = hall.view(operation)
    asked = view.approvals[which % len(view.approvals)].approval_id if view.approvals else ""
    match verb:
        case "approve" if asked:
            commands.approve(hall.app, asked, by=who)
        case "deny" if asked:
            commands.deny(hall.app, asked, by="cia")
        case "edit" if asked:
            commands.approve(hall.app, asked, by="dan", arguments={"text": "z", "size": which})
        case "answer":
            commands.answer(hall.app, operation, "x", by="alice")
        case "amend":
            commands.amend(hall.app, operation, "Other.")
        case "cancel":
            commands.cancel(hall.app, operation)
        case "expire" if asked:
            hall.sql(
                "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 s' "
                "WHERE approval_id = :a AND state <> 'CONSUMED'",
                a=asked,
            )
        case "sweep":
            hall.sweep()
        case "turn":
            turn.advance(hall.app, operation)
        case "reads" | "writes":
            dispatch.run_one(hall.app, verb, None)
        case _:
            pass


def check(hall: Desk, operation: str, effects: int) -> None:
    started = hall.sql("SELECT * FROM actions WHERE operation_id = :o AND started_at IS NOT NULL", o=operation)
    assert len(started) == effects
    for action in started:
        approvals = hall.sql("SELECT * FROM approvals WHERE action_id = :a", a=action["action_id"])
        [used] = [approval for approval in approvals if approval["state"] == "CONSUMED"]
        voted = hall.sql("SELECT * FROM decisions WHERE approval_id = :a", a=used["approval_id"])
        assert used["consumed_at"] < used["expires_at"]
        assert used["action_digest"] == action["digest"]
        assert {vote["decision"] for vote in voted} == {"APPROVE"}
        assert {vote["bound_sha256"] for vote in voted} == {used["bound_sha256"]}
        assert len({vote["by"] for vote in voted} - {"alice"}) >= 2
    [row] = hall.sql(
        "SELECT open_calls, open_reads, open_inputs, held_reads, (SELECT count(*) FROM calls c WHERE "
        "c.operation_id = o.operation_id AND c.settled_at IS NULL) AS open FROM operations o WHERE operation_id = :o",
        o=operation,
    )
    assert row["open_calls"] == row["open"], "the counts are those of the rows"


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), min_size=4, max_size=16))
def test_any_order(hall: Desk, steps: list[tuple[str, int]]) -> None:
    before = len(hall.lab.effects)
    operation = submit(hall, SCRIPT, SCRIPT, DONE, rules=[ApprovalRule(approvers=2, separate=True)])
    hall.advance(operation)
    done: list[Any] = []
    for step, which in steps:
        try:
            act(hall, operation, step, which)
            done.append(step)
        except Conflict:
            pass
        check(hall, operation, len(hall.lab.effects) - before)
    for table in ("operations", "calls", "actions"):  # the next example's steps must find nothing of this one
        hall.sql(f"UPDATE {table} SET wake_at = NULL WHERE operation_id = :o AND wake_at IS NOT NULL", o=operation)
