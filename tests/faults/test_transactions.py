"""F11: a transaction that the database refuses is run again, and nothing but the transaction."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from orchestrator import commands, dispatch, settling
from orchestrator.domain.errors import Unavailable
from tests.faults import tools
from tests.faults.locks import session
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually

TRIES = 5


def deadlock(database_url: str, action_id: str, operation: str, work: Callable[[], Any]) -> None:
    """`work` locks the operation and then the action; another session does the reverse, and PostgreSQL ends `work`'s
    transaction: it is the first to have waited for long enough to look."""
    with session(database_url) as other:
        other.run("SET LOCAL deadlock_timeout = '60s'")
        other.run("SELECT 1 FROM actions WHERE action_id = %s FOR UPDATE", action_id)
        worker = threading.Thread(target=work)
        worker.start()
        other.wait_for_waiters()
        other.run(
            "SELECT 1 FROM operations WHERE operation_id = %s FOR UPDATE", operation
        )  # returns: the victim let go
        other.holder.commit()
        worker.join(60)


def deadlocks(desk: Desk) -> int:
    """How many the server has resolved in this database so far, as its statistics know."""
    desk.sql("SELECT pg_stat_clear_snapshot()")
    return int(desk.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0]["deadlocks"])


def test_a_deadlock_at_the_start_of_a_write(bench: Desk, database_url: str) -> None:
    operation, before = bench.submit(calls(call("write", text="a")), DONE), deadlocks(bench)
    bench.advance(operation)
    due = bench.action(operation).action_id
    deadlock(database_url, due, operation, lambda: dispatch.run_one(bench.app, "writes", due))
    eventually(lambda: deadlocks(bench) == before + 1)
    [attempt] = bench.view(operation).attempts
    assert (bench.action(operation).state, attempt.number) == ("SUCCEEDED", 1)
    assert len(bench.audit(operation, "action.started")) == len(bench.lab.seen) == 1


def test_a_deadlock_at_the_record_of_an_outcome(bench: Desk, database_url: str) -> None:
    """The request has been answered; it is not sent again to have the answer recorded."""
    operation, before = bench.submit(calls(call("write", text="a")), DONE), deadlocks(bench)
    bench.advance(operation)
    due = bench.action(operation).action_id
    bench.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(bench.app, "writes", due))
    worker.start()
    eventually(lambda: bool(bench.lab.seen))
    deadlock(database_url, due, operation, bench.lab.released.set)
    worker.join(60)
    eventually(lambda: deadlocks(bench) == before + 1)
    assert (bench.action(operation).state, len(bench.lab.seen)) == ("SUCCEEDED", 1)
    assert len(bench.audit(operation, "action.succeeded")) == 1
    assert bench.run(operation).state == "COMPLETED"


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
def test_it_is_tried_again_so_often_and_no_more(bench: Desk, sqlstate: str) -> None:
    tried: list[str] = []

    def work(connection: Connection) -> None:
        tried.append(connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
        connection.execute(text("CREATE TABLE leftover (n int)"))
        connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{sqlstate}'; END $$"))

    with pytest.raises(Unavailable) as caught:
        bench.app.database.transact(work)
    assert caught.value.code == "DATABASE_BUSY"
    assert len(set(tried)) == len(tried) == TRIES, "each in a transaction of its own"
    assert bench.sql("SELECT to_regclass('leftover') AS it") == [{"it": None}]


def test_a_lock_that_is_held_for_too_long(bench: Desk, database_url: str) -> None:
    operation, tried = bench.submit(DONE), threading.Event()

    def work(connection: Connection) -> str:
        connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
        try:
            locked = "SELECT state FROM operations WHERE operation_id = :o FOR UPDATE"
            return str(connection.execute(text(locked), {"o": operation}).scalar_one())
        finally:
            tried.set()

    found: list[str] = []
    with session(database_url) as other:
        other.run("SELECT 1 FROM operations WHERE operation_id = %s FOR UPDATE", operation)
        worker = threading.Thread(target=lambda: found.append(bench.app.database.transact(work)))
        worker.start()
        assert tried.wait(30)
    worker.join(60)
    assert found == ["READY"]


# --- no I/O inside of a transaction --------------------------------------------------------------------------------


@pytest.fixture
def seen(bench: Desk, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """The most transactions that were open at each kind of moment at which something outside may be asked."""
    most: dict[str, int] = {}
    url = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as watcher:
        open_now = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"

        def look(name: str) -> None:
            ours = "backend_type = 'client backend' AND pid <> pg_backend_pid()"  # and not a vacuum's
            row = watcher.execute(f"{open_now} AND {ours}").fetchone()
            assert row is not None
            most[name] = max(most.get(name, 0), row[0])

        def requested(request: httpx.Request) -> None:
            look("model" if request.url.path.startswith("/v1") else request.method)

        monkeypatch.setattr(tools, "WATCH", [look])
        for client in (bench.app.model_http, bench.app.tool_http):
            client.event_hooks = {"request": [requested]}
        yield most


def test_nobody_is_asked_while_a_transaction_is_open(bench: Desk, seen: dict[str, int]) -> None:
    """Every hook and request in the life of a write: it waits for no lock, so that it may be as slow as it likes."""
    operation = bench.submit(calls(call("watched", text="a")), DONE, tools=("watched",))
    bench.advance(operation)
    commands.approve(bench.app, bench.approval(operation), by="boss", arguments={"text": "b"})
    bench.lab.will(cut=True)
    bench.step("writes")
    bench.hurry(operation)
    bench.lab.will(json={"id": "r-1"})
    bench.step("writes")
    happened = bench.actions(operation)[-1]
    assert (happened.state, happened.arguments["text"]) == ("SUCCEEDED", "b")
    settling.compensate(bench.app, happened.action_id, arguments={}, by="boss")
    bench.step("writes")
    assert bench.run(operation).state == "COMPLETED"
    names = ("authorize", "resource_version", "approval", "model", "POST", "GET")
    assert seen == dict.fromkeys(names, 0)
