"""F22: between the look of the sweeper (or of a reconciliation) and its hand, somebody else was there. F23: a batch."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from orchestrator import commands, dispatch, sweeper, turn
from policy.profile import Model
from store import actions, approvals, operations, questions
from store import calls as call_store
from tests.conftest import redis_client
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import claim, eventually

TABLES = ("operations", "calls", "actions", "attempts", "approvals", "questions", "audit", "slots")
READ = calls(call("look", text="a"))
ALWAYS = "clock_timestamp() + interval '1 hour'"
NOW = "clock_timestamp() - interval '1 second'"


def everything(desk: Desk) -> dict[str, list[Any]]:
    return {table: desk.sql(f"SELECT t::text AS row FROM {table} t ORDER BY 1") for table in TABLES}


def listed(desk: Desk, find: Callable[[Connection, int], Any]) -> Any:
    """What the sweeper has found: one row."""
    with desk.app.database.autocommit() as connection:
        [row] = find(connection, 10)
    return row


def renewed(desk: Desk, table: str, operation: str) -> None:
    """By the worker, which was slow and not dead."""
    desk.sql(f"UPDATE {table} SET lease_until = {ALWAYS} WHERE operation_id = :o", o=operation)


def nothing_comes_of(desk: Desk, repair: Callable[[], bool]) -> None:
    before = everything(desk)
    assert repair() is False
    assert everything(desk) == before


MEANWHILE = ["renewed", "recorded", "swept", "swept_and_claimed"]


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_turn(desk: Desk, meanwhile: str) -> None:
    operation = desk.submit(DONE)
    with desk.app.database.autocommit() as connection:
        held = operations.claim_turn(connection, operation, 60)
    assert held is not None
    desk.expire_leases(operation)
    stale = listed(desk, operations.lost_turns)
    match meanwhile:
        case "renewed":
            renewed(desk, "operations", operation)
        case "recorded":
            with desk.app.leases.hold("operation", operation, held.fence, 1e12) as lease:
                turn._take_turn(desk.app, held, lease)
            assert desk.view(operation).state == "COMPLETED"
        case _:
            assert desk.sweep()["lost_turns"] == 1
            if meanwhile == "swept_and_claimed":
                desk.hurry(operation)
                with desk.app.database.autocommit() as connection:
                    assert operations.claim_turn(connection, operation, 0.0) is not None, "and lost once more"
    nothing_comes_of(desk, lambda: sweeper._lost_turn(desk.app, stale))


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_read(desk: Desk, meanwhile: str) -> None:
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    worker = in_flight(desk, "reads")
    desk.expire_leases(operation)
    stale = listed(desk, call_store.lost)
    match meanwhile:
        case "renewed":
            renewed(desk, "calls", operation)
        case "recorded":
            finish(desk, worker)
            assert desk.call(operation).state == "SUCCEEDED"
        case _:
            assert desk.sweep()["lost_reads"] == 1
            if meanwhile == "swept_and_claimed":
                desk.hurry(operation)
                with desk.app.database.autocommit() as connection:
                    assert claim(connection, lease=0.0) is not None
    nothing_comes_of(desk, lambda: sweeper._lost_read(desk.app, stale))
    finish(desk, worker)


@pytest.mark.parametrize("meanwhile", [*MEANWHILE, "settled"])
def test_a_write(desk: Desk, meanwhile: str) -> None:
    operation = desk.submit(calls(call("checked", text="a")), DONE)
    desk.advance(operation)
    worker = in_flight(desk, "writes")
    desk.expire_leases(operation)
    stale = listed(desk, lambda connection, limit: actions.lost(connection, ["checked"], limit))
    match meanwhile:
        case "renewed":
            renewed(desk, "actions", operation)
        case "recorded":
            finish(desk, worker)
            assert desk.action(operation).state == "SUCCEEDED"
        case _:
            assert desk.sweep()["lost_writes"] == 1
            if meanwhile == "swept_and_claimed":
                desk.hurry(operation)
                with desk.app.database.autocommit() as connection:
                    assert actions.claim_check(connection, stale.action_id, lease=0.0) is not None
            if meanwhile == "settled":
                desk.lab.will(json={"id": "r-1"})
                assert desk.run(operation).state == "COMPLETED"
    nothing_comes_of(desk, lambda: sweeper._lost_write(desk.app, stale))
    finish(desk, worker)


def in_flight(desk: Desk, queue: str) -> threading.Thread:
    """A step whose request has arrived and is not answered."""
    desk.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(desk.app, queue, None))
    worker.start()
    eventually(lambda: bool(desk.lab.seen))
    return worker


def finish(desk: Desk, worker: threading.Thread) -> None:
    desk.lab.released.set()
    worker.join(60)


@pytest.mark.parametrize("meanwhile", ["swept", "cancelled", "started"])
def test_an_approval(desk: Desk, meanwhile: str) -> None:
    operation = desk.submit(calls(call("careful", text="a")), DONE)
    desk.advance(operation)
    asked = desk.approval(operation)
    commands.approve(desk.app, asked, by="boss")
    if meanwhile == "started":  # at the last moment
        with desk.app.database.autocommit() as connection:
            stale = approvals.load(connection, asked)
        desk.step("writes")
        assert desk.action(operation).state == "SUCCEEDED"
    else:
        desk.tamper("approvals", f"UPDATE approvals SET expires_at = {NOW} WHERE approval_id = :a", a=asked)
        stale = listed(desk, approvals.expired)
        if meanwhile == "swept":
            assert desk.sweep()["expired_approvals"] == 1
        else:
            commands.cancel(desk.app, operation)
    assert stale is not None
    nothing_comes_of(desk, lambda: sweeper._expire(desk.app, stale))


@pytest.mark.parametrize("meanwhile", ["swept", "cancelled", "answered"])
def test_a_question(desk: Desk, meanwhile: str) -> None:
    tools = (*(spec.name for spec in lab.TOOLS), "ask_user")
    operation = desk.submit(calls(call("ask_user", question="Which one?")), DONE, tools=tools)
    desk.advance(operation)
    [question] = desk.view(operation).open_questions
    if meanwhile == "answered":
        commands.answer(desk.app, question.question_id, "that one", by="alice")
    past = f"UPDATE questions SET expires_at = {NOW} WHERE question_id = :q"
    desk.sql(past, q=question.question_id)
    if meanwhile == "answered":
        with desk.app.database.autocommit() as connection:
            stale = questions.load(connection, question.question_id)
    else:
        stale = listed(desk, questions.expired)
        if meanwhile == "swept":
            assert desk.sweep()["expired_questions"] == 1
        else:
            commands.cancel(desk.app, operation)
    assert stale is not None
    nothing_comes_of(desk, lambda: sweeper._unanswered(desk.app, stale))


def test_a_deadline(desk: Desk) -> None:
    operation = desk.submit(DONE)
    desk.sql(f"UPDATE operations SET deadline = {NOW} WHERE operation_id = :o", o=operation)
    stale = listed(desk, operations.past_deadline)
    commands.cancel(desk.app, operation)
    nothing_comes_of(desk, lambda: sweeper._deadline(desk.app, stale))


def test_a_reconciliation(desk: Desk) -> None:
    """The first one's question is answered after its lease was over and a second one has settled the action: its
    answer, which says the contrary, changes nothing."""
    operation = desk.submit(calls(call("checked", text="a")), DONE)
    desk.advance(operation)
    desk.lab.will(cut=True)
    desk.step("writes")
    desk.hurry(operation)
    desk.lab.will(wait=True, status=409, json={"code": "NEVER_APPLIED"})
    sent = len(desk.lab.seen)
    first = threading.Thread(target=dispatch.run_one, args=(desk.app, "writes", None))
    first.start()
    eventually(lambda: len(desk.lab.seen) > sent)
    desk.expire_leases(operation)
    desk.lab.will(json={"id": "r-1"})
    desk.step("writes")
    assert desk.action(operation).state == "SUCCEEDED"
    before = everything(desk)
    finish(desk, first)
    assert everything(desk) == before
    assert desk.run(operation).state == "COMPLETED"


def test_a_round_publishes_a_batch(desk: Desk, broker_url: str) -> None:
    """Whatever is due, and however often a round is broken off and made again: each time so many rows, and no more
    messages than may wait."""
    due = 3 * sweeper.BATCH
    operation = desk.submit(DONE, model=Model(api="openai-responses", name="x", base_url="$LAB_MODEL_URL"))
    columns = [row["c"] for row in desk.sql(
        "SELECT column_name AS c FROM information_schema.columns WHERE table_name = 'operations'"
    )]  # fmt: skip
    copied = ", ".join(f"'{operation}_' || n" if column == "operation_id" else column for column in columns)
    desk.sql(
        f"INSERT INTO operations ({', '.join(columns)}) SELECT {copied} FROM operations, generate_series(1, :n) n "
        "WHERE operation_id = :o", o=operation, n=due,
    )  # fmt: skip
    with redis_client(broker_url) as redis:
        redis.delete("turnqueue:orchestrator")
        for _ in range(3):
            assert sweeper.republish(desk.app) == sweeper.BATCH
        assert redis.llen("turnqueue:orchestrator") == desk.app.settings.hint_limit
        redis.delete("turnqueue:orchestrator")
    desk.sql("UPDATE operations SET wake_at = NULL WHERE operation_id LIKE :o", o=f"{operation}%")
