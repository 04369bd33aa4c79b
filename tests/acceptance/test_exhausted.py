"""Budgets at their exact edges, and an exhausted one never passes for success, whatever the model says.

`tests/orchestrator/test_budgets.py` has each budget alone; here they meet fan-out, pauses and restarts.
"""

import threading
from collections import Counter
from typing import Any

import pytest

from orchestrator import commands, dispatch
from policy.profile import Budgets, Prices
from store import calls as call_store
from store import operations
from tests.acceptance.desks import restarted, sent
from tests.orchestrator.desk import DONE, Desk, call, calls

BOAST = {"text": "All done: everything was written."}


def looks(*names: str) -> dict[str, Any]:
    return calls(*(call("look", text=name) for name in names))


def codes(desk: Desk, operation: str) -> Counter[str]:
    return Counter(c.code or c.state for c in desk.view(operation).calls)


def together(desk: Desk, queue: str, workers: int = 4) -> None:
    """Everything that is due in the queue, by several workers at once."""

    def work() -> None:
        while dispatch.run_one(desk.app, queue, None):
            pass

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


# --- no false success ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "budget", "reason"),
    [
        (looks("a", "b"), {"calls": 1}, "CALL_BUDGET"),
        (looks("a", "b"), {"calls_per_tool": {"look": 1}}, "CALL_BUDGET"),
        (calls(call("write", text="a"), call("write", text="b")), {"writes": 1}, "WRITE_BUDGET"),
        (calls(call("look"), call("write")), {"writes": 0}, "WRITE_BUDGET"),
    ],
)
def test_an_exhausted_budget_with_no_false_success(
    desk: Desk, script: dict[str, Any], budget: dict[str, Any], reason: str
) -> None:
    """Something that the model asked for was refused for a budget: its cheerful answer is kept, and not a success."""
    view = desk.run(desk.submit(script, BOAST, budgets=Budgets(**budget)))
    assert (view.state, view.reason, view.final_text) == ("INCOMPLETE", reason, BOAST["text"])
    assert reason in [c.code for c in view.calls] or "TOOL_CALL_BUDGET" in [c.code for c in view.calls]


@pytest.mark.parametrize(
    "budget",
    [{"turns": 2}, {"calls": 1}, {"writes": 0}, {"output_tokens": 21}, {"input_tokens": 1}, {"result_bytes": 256},
     {"cost_usd": 0.000001}, {"no_progress_turns": 1}],
)  # fmt: skip
def test_no_budget_lets_an_unmade_write_pass_for_done(desk: Desk, budget: dict[str, Any]) -> None:
    desk.lab.will(json={"id": "1", "text": "x" * 300})
    operation = desk.submit(
        looks("a"), looks("a"), looks("a"), BOAST, BOAST, BOAST,
        budgets=Budgets(**budget), prices=Prices(input=1000.0), required_tools=("write",),
    )  # fmt: skip
    view = desk.run(operation)
    assert view.state == "INCOMPLETE"
    assert (view.pending or {})["happened"] == []
    assert desk.lab.effects == []


def test_the_partial_outcome_and_the_pending_work_are_recorded(desk: Desk) -> None:
    """One write happened, one is unknown, one waits for a person, one was refused, when the time is over."""
    script = calls(call("aside", text="1"), call("aside", text="2"), call("aside", text="3"), call("careful"))
    operation = desk.submit(script, BOAST)
    desk.advance(operation)
    desk.lab.will(json={"id": "r-1"})
    desk.lab.will(cut=True)
    desk.lab.will(status=422, json={"code": "FULL"}, effect=False)
    for _ in range(3):
        desk.step("writes")
    desk.sql("UPDATE operations SET deadline = clock_timestamp() WHERE operation_id = :o", o=operation)
    desk.sweep()
    view = desk.view(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "DEADLINE")
    record = {kind: [row["tool"] for row in rows] for kind, rows in (view.pending or {}).items()}
    assert record == {"happened": ["aside"], "unresolved": ["aside"], "failed": ["aside"], "not_started": ["careful"]}


def test_the_last_permitted_turn_asks_without_tools_and_takes_none(desk: Desk) -> None:
    """A model that calls a tool all the same, on its last turn, gets nothing done."""
    operation = desk.submit(looks("a"), looks("b"), budgets=Budgets(turns=2))
    view = desk.run(operation)
    assert [request.tools_off() for request in sent(desk, operation)] == [False, True]
    assert (view.turns, len(view.calls)) == (2, 1)


# --- under parallel fan-out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 9, 10, 11])
def test_calls_under_fan_out(desk: Desk, limit: int) -> None:
    """Reserved when the reply is judged, before anything runs: ten proposals never become more than the budget."""
    operation = desk.submit(looks(*"abcdefghij"), DONE, budgets=Budgets(calls=limit, parallel=16))
    desk.advance(operation)
    together(desk, "reads")
    ran = min(10, limit)
    desk.run(operation)
    assert len(desk.lab.seen) == ran
    assert desk.view(operation).usage.calls == ran
    assert codes(desk, operation)["SUCCEEDED"] == ran


@pytest.mark.parametrize("limit", [1, 15, 16, 17])
def test_sixteen_writes_under_fan_out(desk: Desk, limit: int) -> None:
    operation = desk.submit(
        calls(*[call("aside", text=str(n)) for n in range(16)]), DONE, budgets=Budgets(writes=limit)
    )
    desk.advance(operation)
    together(desk, "writes")
    desk.run(operation)
    allowed = min(16, limit)
    assert (len(desk.lab.effects), desk.view(operation).usage.writes) == (allowed, allowed)
    assert codes(desk, operation)["WRITE_BUDGET"] == 16 - allowed


def test_calls_per_tool_under_fan_out(desk: Desk) -> None:
    mixed = calls(*[call(name, text=str(n)) for n in range(5) for name in ("look", "narrow")])
    operation = desk.submit(mixed, DONE, budgets=Budgets(calls_per_tool={"look": 2, "narrow": 4}))
    desk.advance(operation)
    together(desk, "reads")
    desk.run(operation)
    assert codes(desk, operation) == {"SUCCEEDED": 6, "TOOL_CALL_BUDGET": 4}


def test_parallel_under_fan_out(desk: Desk) -> None:
    """Four workers, three permitted: the downstream never sees more than three of the operation at once."""
    operation = desk.submit(looks(*"abcdefgh"), DONE, budgets=Budgets(parallel=3))
    desk.advance(operation)
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.is_set():
            rows = desk.sql(
                "SELECT count(*) AS n FROM calls WHERE operation_id = :o AND state = 'RUNNING'", o=operation
            )
            most = max(most, rows[0]["n"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    while desk.view(operation).state == "EXECUTING":
        together(desk, "reads")
    over.set()
    watcher.join(60)
    assert most <= 3
    assert desk.run(operation).state == "COMPLETED"


@pytest.mark.parametrize("less", [0, 1])
def test_result_bytes_under_fan_out(desk: Desk, less: int) -> None:
    """Results that arrive at the same time are all counted."""
    body = {"id": "1", "text": "x" * 300}
    size = len('{"state":"succeeded","data":{"id":"1","text":""}}') + 300
    for _ in range(8):
        desk.lab.will(json=body)
    operation = desk.submit(looks(*"abcdefgh"), DONE, budgets=Budgets(result_bytes=8 * size - less))
    desk.advance(operation)
    together(desk, "reads")
    view = desk.run(operation)
    assert view.usage.result_bytes == 8 * size
    assert (view.state, view.reason) == (("INCOMPLETE", "RESULT_BUDGET") if less else ("COMPLETED", None))


# --- across a pause ------------------------------------------------------------------------------------------------


def pause(desk: Desk, *turns: dict[str, Any], **budgets: Any) -> str:
    """An operation that has used one call and one write and waits for a person."""
    first = calls(call("look"), call("careful"))
    operation = desk.submit(first, *turns, budgets=Budgets(**budgets), prices=Prices(input=1.0, output=1.0))
    desk.advance(operation)
    desk.step("reads")
    assert desk.view(operation).state == "WAITING_APPROVAL"
    return operation


def resume(desk: Desk, operation: str) -> None:
    commands.approve(desk.app, desk.approval(operation), by="boss")


def test_counts_survive_a_pause_and_a_restart(desk: Desk) -> None:
    operation = pause(desk, DONE)
    before = desk.view(operation).usage
    with restarted(desk):
        assert desk.view(operation).usage == before
        resume(desk, operation)
        after = desk.run(operation)
    assert (after.state, after.usage.calls, after.usage.writes) == ("COMPLETED", before.calls, before.writes)
    assert after.usage.input_tokens > before.input_tokens > 0


@pytest.mark.parametrize("writes", [1, 2])
def test_writes_across_a_pause(desk: Desk, writes: int) -> None:
    operation = pause(desk, calls(call("write")), DONE, writes=writes)
    with restarted(desk):
        resume(desk, operation)
        view = desk.run(operation)
    assert (view.usage.writes, len(desk.lab.effects)) == (writes, writes)
    assert (view.state, view.reason) == (("COMPLETED", None) if writes == 2 else ("INCOMPLETE", "WRITE_BUDGET"))


@pytest.mark.parametrize("limit", [2, 3])
def test_calls_across_a_pause(desk: Desk, limit: int) -> None:
    operation = pause(desk, looks("b", "c"), DONE, calls=limit)
    with restarted(desk):
        resume(desk, operation)
        view = desk.run(operation)
    assert view.usage.calls == limit
    assert sent(desk, operation)[1].tools_off() == (limit == 2)


@pytest.mark.parametrize("budget", ["input_tokens", "output_tokens", "cost_usd", "turns", "result_bytes"])
def test_other_budgets_across_a_pause(desk: Desk, budget: str) -> None:
    """What was used before the pause counts after it: with exactly that as the limit, no further turn is asked."""
    usage = desk.view(pause(desk, DONE)).usage
    used = {
        "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens + 50, "cost_usd": usage.cost_usd,
        "result_bytes": 256, "turns": 2,
    }[budget]  # fmt: skip
    desk.lab.will(json={"id": "1", "text": "x" * 300})
    operation = pause(desk, DONE, **{budget: used})
    if budget == "output_tokens":  # each reply's length is limited by what is left, so none uses up exactly all
        desk.sql("UPDATE operations SET output_tokens = :n WHERE operation_id = :o", n=used, o=operation)
    with restarted(desk):
        resume(desk, operation)
        view = desk.run(operation)
    reasons = {
        "input_tokens": "TOKEN_BUDGET", "output_tokens": "TOKEN_BUDGET", "cost_usd": "COST_BUDGET",
        "result_bytes": "RESULT_BUDGET", "turns": None,
    }  # fmt: skip
    assert view.reason == reasons[budget]
    assert len(desk.requests(operation)) == (2 if budget == "turns" else 1)
    assert [row["tool"] for row in (view.pending or {})["happened"]] == ["careful"], "the partial outcome"


def test_wall_clock_across_a_pause(desk: Desk) -> None:
    """Waiting for a person takes time from the whole: when it is over, the approval starts nothing."""
    operation = pause(desk, BOAST)
    resume(desk, operation)
    desk.sql("UPDATE operations SET deadline = clock_timestamp() WHERE operation_id = :o", o=operation)
    with restarted(desk):
        view = desk.run(operation)
    assert (view.state, view.reason, desk.lab.effects) == ("INCOMPLETE", "DEADLINE", [])
    assert [row["tool"] for row in (view.pending or {})["not_started"]] == ["careful"]


# --- across a worker restart ---------------------------------------------------------------------------------------


def lose_turn(desk: Desk, operation: str) -> None:
    with desk.app.database.autocommit() as connection:
        assert operations.claim_turn(connection, operation, 60) is not None
    desk.expire_leases(operation)
    assert desk.sweep()["lost_turns"] == 1


def test_turns_across_a_restart(desk: Desk) -> None:
    """A turn that was lost was not taken: with one left, one is still asked, and no second."""
    operation = desk.submit(looks("a"), looks("b"), budgets=Budgets(turns=2))
    desk.advance(operation)
    desk.step("reads")
    lose_turn(desk, operation)
    with restarted(desk):
        view = desk.run(operation)
    assert (view.state, view.turns, len(desk.requests(operation))) == ("COMPLETED", 2, 2)


def test_calls_across_a_restart(desk: Desk) -> None:
    """A read that is run again after its worker died is one call."""
    operation = desk.submit(looks("a"), looks("b", "c"), DONE, budgets=Budgets(calls=2))
    desk.advance(operation)
    with desk.app.database.autocommit() as connection:
        lost = call_store.claim(
            connection, hint=None, queue="reads", lease=60, slot_lease=60, worker="dead", fair=False
        )
        assert lost is not None
    desk.expire_leases(operation)
    assert desk.sweep()["lost_reads"] == 1
    with restarted(desk):
        view = desk.run(operation)
    assert (view.usage.calls, [c.code or c.state for c in view.calls]) == (2, ["SUCCEEDED", "SUCCEEDED", "CALL_BUDGET"])
    assert view.reason == "CALL_BUDGET"


def test_writes_across_a_restart(desk: Desk) -> None:
    """A write that is sent again under its key after an uncertain outcome is one write."""
    operation = desk.submit(
        calls(call("keyed", text="a")), calls(call("keyed", text="b")), DONE, budgets=Budgets(writes=1)
    )
    desk.advance(operation)
    desk.lab.will(cut=True)
    desk.step("writes")
    with restarted(desk):
        desk.lab.will(effect=False)  # it remembers the key
        view = desk.run(operation)
    assert (view.usage.writes, view.actions[0].attempts) == (1, 2)
    assert [c.code or c.state for c in view.calls] == ["SUCCEEDED", "WRITE_BUDGET"]
    assert (view.state, view.reason, len(desk.lab.effects)) == ("INCOMPLETE", "WRITE_BUDGET", 1)


def test_tokens_and_cost_across_a_restart(desk: Desk) -> None:
    """A request whose reply was lost with its worker is not counted, one whose reply was recorded is counted once."""
    operation = desk.submit(looks("a"), DONE, prices=Prices(input=1.0))
    desk.advance(operation)
    desk.step("reads")
    used = desk.view(operation).usage
    lose_turn(desk, operation)
    assert desk.view(operation).usage == used
    with restarted(desk):
        view = desk.run(operation)
    recorded = [r for r in view.requests if r.input_tokens is not None]
    assert view.usage.input_tokens == sum(r.input_tokens or 0 for r in recorded)
    assert view.usage.cost_usd == pytest.approx(sum(r.cost_usd or 0 for r in recorded))
