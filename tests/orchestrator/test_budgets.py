"""Every budget at its edge, counted in the database: the last unit is allowed, the next is not."""

from typing import Any

import pytest

from policy.profile import Budgets, Prices
from tests.orchestrator.desk import DONE, Desk, call, calls


def looks(*names: str) -> dict[str, Any]:
    return calls(*(call("look", text=name) for name in names))


def codes(desk: Desk, operation: str) -> list[str]:
    return [c.code or c.state for c in desk.view(operation).calls]


def stopped(desk: Desk, operation: str, reason: str) -> None:
    """It ended before a further request, with this reason and a turn count that says what was asked."""
    view = desk.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", reason)
    assert view.turns == len(desk.requests(operation)) == len(view.requests)


def test_turns(desk: Desk) -> None:
    operation = desk.submit(looks("a"), looks("b"), DONE, budgets=Budgets(turns=1))
    view = desk.run(operation)
    assert (view.state, view.turns, len(desk.requests(operation))) == ("COMPLETED", 1, 1)
    two = desk.submit(looks("a"), DONE, budgets=Budgets(turns=2))
    assert desk.run(two).state == "COMPLETED"


def test_turn_budget_ends_an_operation_whose_turns_are_used(desk: Desk) -> None:
    operation = desk.submit(looks("a"), DONE, budgets=Budgets(turns=2))
    desk.advance(operation)
    desk.step("reads")
    desk.sql("UPDATE operations SET turn = 2 WHERE operation_id = :o", o=operation)
    desk.tamper("calls", "UPDATE calls SET turn = 1 WHERE operation_id = :o", o=operation)
    view = desk.run(operation)
    assert (view.state, view.reason, view.turns) == ("INCOMPLETE", "TURN_BUDGET", 2)


def test_calls(desk: Desk) -> None:
    operation = desk.submit(looks("a", "b", "c"), DONE, budgets=Budgets(calls=2))
    desk.run(operation)
    assert codes(desk, operation) == ["SUCCEEDED", "SUCCEEDED", "CALL_BUDGET"]
    assert desk.view(operation).usage.calls == 2


def test_calls_are_counted_over_turns(desk: Desk) -> None:
    operation = desk.submit(looks("a", "b"), looks("c", "d"), DONE, budgets=Budgets(calls=3))
    desk.run(operation)
    assert codes(desk, operation) == ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "CALL_BUDGET"]


def test_calls_per_tool(desk: Desk) -> None:
    operation = desk.submit(looks("a"), looks("b", "c"), DONE, budgets=Budgets(calls_per_tool={"look": 2}))
    desk.run(operation)
    assert codes(desk, operation) == ["SUCCEEDED", "SUCCEEDED", "TOOL_CALL_BUDGET"]


def test_writes(desk: Desk) -> None:
    writes = calls(call("write", text="a"), call("write", text="b"))
    operation = desk.submit(writes, calls(call("write", text="c")), DONE, budgets=Budgets(writes=2))
    desk.run(operation)
    assert codes(desk, operation) == ["SUCCEEDED", "SUCCEEDED", "WRITE_BUDGET"]
    assert (desk.view(operation).usage.writes, len(desk.lab.effects)) == (2, 2)


def test_tokens(desk: Desk) -> None:
    used = desk.view(_ended(desk)).usage
    assert used.input_tokens > 0
    assert used.output_tokens > 0
    edge = desk.submit(looks("a"), DONE, budgets=Budgets(input_tokens=used.input_tokens + 1))
    assert desk.run(edge).state == "COMPLETED"
    stopped(desk, desk.submit(looks("a"), DONE, budgets=Budgets(input_tokens=used.input_tokens)), "TOKEN_BUDGET")


def test_output_tokens(desk: Desk) -> None:
    limit = desk.view(_ended(desk)).usage.output_tokens + 50
    for used, ends in ((limit - 1, False), (limit, True)):
        operation = desk.submit(looks("a"), looks("b"), DONE, budgets=Budgets(output_tokens=limit))
        desk.advance(operation)
        desk.step("reads")
        desk.sql("UPDATE operations SET output_tokens = :n WHERE operation_id = :o", n=used, o=operation)
        assert (desk.advance(operation).reason == "TOKEN_BUDGET") == ends
        desk.run(operation)


def _ended(desk: Desk) -> str:
    """An operation after its first turn of the script that the token tests play."""
    operation = desk.submit(looks("a"), DONE)
    desk.advance(operation)
    desk.step("reads")
    return operation


def test_the_output_budget_limits_each_request(desk: Desk) -> None:
    used = desk.view(_ended(desk)).usage.output_tokens
    operation = desk.submit(looks("a"), DONE, budgets=Budgets(output_tokens=used + 7))
    desk.run(operation)
    assert [body["max_output_tokens"] for body in desk.requests(operation)] == [used + 7, 7]


def test_a_reply_that_the_budget_cut_says_so(desk: Desk) -> None:
    long = {"text": "word " * 200}
    view = desk.run(desk.submit(long, budgets=Budgets(output_tokens=20)))
    assert (view.state, view.reason) == ("INCOMPLETE", "TOKEN_BUDGET")
    assert view.final_text


def test_cost(desk: Desk) -> None:
    prices = Prices(input=1000.0)
    first = desk.submit(looks("a"), DONE, prices=prices)
    desk.advance(first)
    cost = desk.view(first).usage.cost_usd
    assert cost > 0
    stopped(desk, desk.submit(looks("a"), DONE, prices=prices, budgets=Budgets(cost_usd=cost)), "COST_BUDGET")
    enough = desk.submit(looks("a"), DONE, prices=prices, budgets=Budgets(cost_usd=cost + 0.000001))
    assert desk.run(enough).state == "COMPLETED"


def test_result_bytes(desk: Desk) -> None:
    body = {"id": "1", "text": "x" * 400}
    desk.lab.will(json=body)
    measured = desk.submit(looks("a"), DONE)
    desk.run(measured)
    size = desk.view(measured).usage.result_bytes
    assert size > 400
    desk.lab.will(json=body)
    assert desk.run(desk.submit(looks("a"), DONE, budgets=Budgets(result_bytes=size))).state == "COMPLETED"
    desk.lab.will(json=body)
    stopped(desk, desk.submit(looks("a"), DONE, budgets=Budgets(result_bytes=size - 1)), "RESULT_BUDGET")


def test_result_bytes_of_writes_count_too(desk: Desk) -> None:
    desk.lab.will(json={"id": "1", "text": "x" * 400})
    operation = desk.submit(calls(call("write"), call("write")), DONE, budgets=Budgets(result_bytes=900))
    desk.run(operation)
    sizes = [
        len(c["observation"].encode())
        for c in desk.sql("SELECT observation FROM calls WHERE operation_id = :o", o=operation)
    ]
    assert desk.view(operation).usage.result_bytes == sum(sizes)


def test_wall_clock(desk: Desk) -> None:
    late = "UPDATE operations SET deadline = clock_timestamp() - interval '1 second' WHERE operation_id = :o"
    claimed = desk.submit(DONE)
    desk.sql(late, o=claimed)
    view = desk.advance(claimed)
    assert (view.state, view.reason, view.turns, desk.requests(claimed)) == ("INCOMPLETE", "DEADLINE", 0, [])
    swept = desk.submit(calls(call("careful")), DONE)
    desk.advance(swept)
    desk.sql(late, o=swept)
    assert desk.sweep()["deadlines"] >= 1
    view = desk.view(swept)
    assert (view.state, view.reason) == ("INCOMPLETE", "DEADLINE")
    assert [row["tool"] for row in (view.pending or {})["not_started"]] == ["careful"]


def test_no_progress(desk: Desk) -> None:
    again = [looks("a")] * 6
    stopped(desk, desk.submit(*again, budgets=Budgets(no_progress_turns=2)), "NO_PROGRESS")


def test_something_new_starts_the_guard_again(desk: Desk) -> None:
    operation = desk.submit(*[looks("a")] * 3, looks("b"), looks("a"), DONE, budgets=Budgets(no_progress_turns=2))
    assert desk.run(operation).state == "COMPLETED"


@pytest.mark.parametrize("limit", [1, 2])
def test_parallel(desk: Desk, limit: int) -> None:
    """Never more reads of one operation may be due or running than its budget allows."""
    operation = desk.submit(looks("a", "b", "c", "d"), DONE, budgets=Budgets(parallel=limit))
    desk.advance(operation)
    due = (
        "SELECT 1 FROM calls WHERE operation_id = :o "
        "AND (state = 'RUNNING' OR (state = 'READY' AND wake_at IS NOT NULL))"
    )
    for left in (4, 3, 2, 1):
        assert len(desk.sql(due, o=operation)) == min(limit, left)
        desk.step("reads")
    assert desk.sql(due, o=operation) == []
    assert desk.run(operation).state == "COMPLETED"
