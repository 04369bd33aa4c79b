"""Reports about loops without progress, budgets, and providers that throttle or write half a call."""

from typing import Any

import pytest

from orchestrator import commands, turn
from policy.profile import Budgets, Model
from tests.acceptance.desks import restarted
from tests.orchestrator.desk import DONE, Desk, call, calls

READ = calls(call("look", text="a"))


def codes(desk: Desk, operation: str) -> list[str]:
    return [c.code or c.state for c in desk.view(operation).calls]


@pytest.mark.parametrize("limit", [2, 4])
def test_inc_42_the_same_failing_call_for_ever(desk: Desk, limit: int) -> None:
    for _ in range(40):
        desk.lab.will(status=422, json={"code": "NO_SUCH_FACT"})
    operation = desk.submit(*[READ] * 30, budgets=Budgets(no_progress_turns=limit, turns=40))
    view = desk.run(operation)
    assert (view.state, view.reason, view.turns) == ("INCOMPLETE", "NO_PROGRESS", limit + 2)


def test_inc_43_the_model_ignores_every_warning(desk: Desk) -> None:
    """85 identical malformed calls were planned; the runtime counts, whatever it had said."""
    bad = {"calls": [{"name": "look", "arguments_text": '{"text": '}]}
    operation = desk.submit(*[bad] * 85, budgets=Budgets(turns=100, calls=100))
    view = desk.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "NO_PROGRESS")
    assert view.turns < 10
    assert desk.lab.seen == []


def test_inc_45_ten_parallel_steps_at_99_percent_of_the_budget(desk: Desk) -> None:
    operation = desk.submit(calls(*[call("look", text=str(n)) for n in range(10)]), DONE, budgets=Budgets(calls=100))
    desk.sql("UPDATE operations SET calls_used = 99 WHERE operation_id = :o", o=operation)
    desk.run(operation)
    assert codes(desk, operation) == ["SUCCEEDED"] + ["CALL_BUDGET"] * 9
    assert (desk.view(operation).usage.calls, len(desk.lab.seen)) == (100, 1)


@pytest.mark.parametrize("limit", [1, 7, 16])
def test_inc_46_a_fan_out_of_sixteen_shares_one_budget(desk: Desk, limit: int) -> None:
    sixteen = calls(*[call("aside", text=str(n)) for n in range(16)])
    operation = desk.submit(sixteen, DONE, budgets=Budgets(writes=limit, parallel=16))
    desk.run(operation)
    assert codes(desk, operation) == ["SUCCEEDED"] * limit + ["WRITE_BUDGET"] * (16 - limit)
    assert len(desk.lab.effects) == limit


@pytest.mark.parametrize(
    ("tightest", "ran", "code"),
    [
        ({"calls": 2}, 2, "CALL_BUDGET"),
        ({"calls_per_tool": {"write": 2}}, 2, "TOOL_CALL_BUDGET"),
        ({"writes": 2}, 2, "WRITE_BUDGET"),
    ],
)
def test_inc_47_the_tightest_limit_binds(desk: Desk, tightest: dict[str, Any], ran: int, code: str) -> None:
    """Budgets are attached in one place, the operation's frozen profile, at three levels; each binds in its turn."""
    loose: dict[str, Any] = {"calls": 9, "calls_per_tool": {"write": 8}, "writes": 7}
    five = calls(*[call("write", text=str(n)) for n in range(5)])
    operation = desk.submit(five, DONE, budgets=Budgets(**(loose | tightest)))
    desk.run(operation)
    assert codes(desk, operation) == ["SUCCEEDED"] * ran + [code] * (5 - ran)


@pytest.mark.parametrize("headers", [{}, {"retry-after": "60"}])
def test_inc_49_runs_that_hit_a_limit_together_do_not_come_back_together(desk: Desk, headers: dict[str, str]) -> None:
    limited = DONE | {"fault": {"status": 429, "headers": headers}}
    parked = [desk.submit(limited) for _ in range(20)]
    for operation in parked:
        desk.advance(operation)
    waits = desk.sql(
        "SELECT extract(epoch FROM t.replied_at) AS told, extract(epoch FROM o.wake_at) AS wake, "
        "o.wake_at - t.replied_at AS wait FROM operations o JOIN turns t USING (operation_id) "
        "WHERE o.operation_id = ANY(:many)", many=parked,
    )  # fmt: skip
    seconds = sorted(row["wait"].total_seconds() for row in waits)
    assert len({round(s, 3) for s in seconds}) > 15
    if headers:
        assert seconds[0] > 59, "as long as was asked for"
        assert seconds[-1] - seconds[0] > 5, "and spread"


def test_inc_50_a_limit_of_ten_minutes_uses_up_no_attempts(desk: Desk) -> None:
    """Asked far more often than a failing provider would be; the deadline ends it, and the failures that follow
    still have their own limit."""
    limited = DONE | {"fault": {"status": 429, "headers": {"retry-after": "30"}, "times": 25}}
    operation = desk.submit(limited)
    for _ in range(25):
        assert desk.advance(operation).state == "READY"
        assert not turn.advance(desk.app, operation), "no worker waits for it"
        desk.hurry(operation)
    assert desk.advance(operation).state == "COMPLETED"
    broken = desk.submit(DONE | {"fault": {"status": 429, "headers": {"retry-after": "30"}, "times": 8}})
    for _ in range(8):
        desk.advance(broken)
        desk.hurry(broken)
    desk.model.add({"id": desk.scripts[broken], "turns": [DONE | {"fault": {"status": 500}}]})
    view = desk.run(broken)
    assert (view.state, view.reason) == ("FAILED", "PROVIDER_UNAVAILABLE")
    assert len(desk.requests(broken)) == 8 + desk.app.settings.ask_limit


@pytest.mark.parametrize("text", ['{"text": "pay', '{"text": "a", "size": ', "{", '{"text":"a"}}', "not json"])
def test_inc_51_truncated_arguments_never_run_as_empty_ones(desk: Desk, text: str) -> None:
    """Every argument of `write` is optional, so `{}` would be valid."""
    operation = desk.submit({"calls": [{"name": "write", "arguments_text": text}]}, DONE)
    assert desk.run(operation).state == "COMPLETED"
    assert codes(desk, operation) == ["MALFORMED_JSON"]
    assert desk.lab.seen == []
    assert "MALFORMED_JSON" in str(desk.requests(operation)[1]["input"])


@pytest.mark.parametrize("after", range(1, 12))
def test_inc_52_a_stream_that_is_cut(desk: Desk, after: int) -> None:
    """Within the loop, between any two events; tests/fuzz cuts every recorded stream at every byte."""
    name = f"cut-{after}"
    two = calls(call("write", "c1", text="a"), call("write", "c2", text="b"))
    desk.model.add({"id": name, "turns": [two | {"fault": {"cut": "half", "after": after, "times": 1}}, DONE]})
    model = Model(api="openai-responses", name=name, base_url="$LAB_MODEL_URL", stream=True, idle_seconds=5)
    operation = desk.submit(model=model)
    desk.scripts[operation] = name
    assert desk.run(operation).state == "COMPLETED"
    assert [(c.call_id, c.arguments["text"]) for c in desk.view(operation).calls] == [("c1", "a"), ("c2", "b")]
    assert len(desk.lab.effects) == 2


def test_inc_37_a_model_failure_after_the_approval_loses_nothing(desk: Desk) -> None:
    failing = DONE | {"fault": {"status": 503, "times": 3}}
    operation = desk.submit(calls(call("careful")), failing)
    desk.advance(operation)
    commands.approve(desk.app, desk.approval(operation), by="boss")
    desk.step("writes")
    desk.advance(operation)
    with restarted(desk):
        view = desk.run(operation)
    [decided] = view.approvals
    assert (view.state, decided.decided_by, len(desk.lab.effects)) == ("COMPLETED", "boss", 1)
    assert decided.state == "CONSUMED"
