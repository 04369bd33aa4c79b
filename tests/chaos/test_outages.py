"""What workers do when the database goes away in mid-step, hangs, or does not answer a COMMIT."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import Connection, text

from orchestrator import commands, dispatch, turn
from orchestrator.domain.errors import CommitUnknown, Unavailable
from store import db
from store.db import Database
from tests.chaos.lost import LOST, kinds, submission
from tests.chaos.proxy import Proxy
from tests.chaos.world import wait_until
from tests.orchestrator.desk import DONE, Desk, call, calls


def due_write(desk: Desk, tool: str = "write") -> str:
    operation = desk.submit(calls(call(tool)), DONE)
    desk.advance(operation)
    return operation


def paid_once(desk: Desk, operation: str) -> None:
    action = desk.action(operation)
    assert (action.state, action.attempts, len(desk.lab.seen)) == ("SUCCEEDED", 1, 1)
    said = kinds(desk, operation)
    assert (said.count("action.started"), said.count("action.succeeded")) == (1, 1)
    assert not {"action.unknown", "action.late_result"} & set(said)


@pytest.mark.parametrize("tool", ["write", "single"])
def test_a_start_whose_commit_is_lost_goes_on(tool: str, desk: Desk, lost_once: Callable[[], None]) -> None:
    """Nobody could be asked about this write: without the look it would wait for an operator, and was never sent."""
    operation = due_write(desk, tool)
    lost_once()
    desk.step("writes")
    paid_once(desk, operation)


def test_a_start_that_cannot_be_looked_up_sends_nothing(
    desk: Desk, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = due_write(desk)
    monkeypatch.setattr(db, "LOOK_SECONDS", 0.3)
    proxy.control(faults=LOST, times=1, then={"drop": 1.0})
    with pytest.raises(CommitUnknown):
        dispatch.run_one(desk.app, "writes", desk.action(operation).action_id)
    proxy.heal(reset=False)
    assert desk.lab.seen == []
    assert desk.action(operation).state == "STARTED", "it was durable"
    desk.expire_leases(operation)
    desk.sweep()
    assert (desk.action(operation).state, desk.action(operation).review) == ("UNKNOWN", True)


@contextmanager
def while_it_is_sent(desk: Desk, queue: str) -> Iterator[None]:
    """Within the block the downstream has the request of the queue's next row and has not answered."""
    desk.lab.will(wait=True)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(dispatch.run_one, desk.app, queue, None)
        assert wait_until(lambda: len(desk.lab.seen) == 1)
        yield
        assert step.result(60)


def test_an_outcome_whose_commit_is_lost(desk: Desk, lost_once: Callable[[], None]) -> None:
    operation = due_write(desk)
    with while_it_is_sent(desk, "writes"):
        lost_once()
        desk.lab.released.set()
    paid_once(desk, operation)


@pytest.mark.parametrize("tool", ["write", "look"])
def test_an_outcome_waits_for_the_database(tool: str, desk: Desk, proxy: Proxy) -> None:
    """What the downstream said is not forgotten because the database is away when it should be recorded."""
    operation = due_write(desk, tool)
    with while_it_is_sent(desk, "writes" if tool == "write" else "reads"):
        proxy.control(faults={"drop": 1.0}, reset_all=True)
        desk.lab.released.set()
        assert wait_until(lambda: proxy.counts()["drop"] >= 3)
        proxy.heal(reset=False)
    assert desk.call(operation).state == "SUCCEEDED"
    assert len(desk.lab.seen) == 1


def test_a_reply_waits_for_the_database(desk: Desk, proxy: Proxy) -> None:
    """It was paid for: the model is not asked again."""
    operation = desk.submit({"text": "Done.", "fault": {"delay": 0.5}})
    with ThreadPoolExecutor(1) as pool:
        turned = pool.submit(turn.advance, desk.app, operation)
        assert wait_until(lambda: len(desk.requests(operation)) == 1)
        proxy.control(faults={"drop": 1.0}, reset_all=True)
        assert wait_until(lambda: proxy.counts()["drop"] >= 3)
        proxy.heal(reset=False)
        assert turned.result(60)
    assert desk.view(operation).state == "COMPLETED"
    assert len(desk.requests(operation)) == 1


# --- a database that hangs -----------------------------------------------------------------------------------------


def test_nobody_waits_for_ever_for_a_database_that_says_nothing(
    desk: Desk, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and statements and never answers, as a proxy does that has lost its server."""
    asked = submission(desk, "silent")
    monkeypatch.setattr(db, "ANSWER_SECONDS", 0.5)
    proxy.control(faults={"blackhole": 1.0})
    with pytest.raises(Unavailable) as error:
        commands.submit(desk.app, asked)
    assert error.value.code == "DATABASE_UNREACHABLE"
    with pytest.raises(Unavailable):
        turn.advance(desk.app, None)
    proxy.heal(reset=False)
    assert commands.submit(desk.app, asked).created


def test_a_holder_of_a_lock_that_is_cut_off_loses_it(desk: Desk, proxy: Proxy, database_url: str) -> None:
    """A sweeper that is stopped, or whose network has gone, must not keep another one from its work for ever."""
    direct = Database(database_url, 1)

    def free() -> bool:
        with db.exclusive(direct, 77, 60.0) as mine:
            return mine is not None

    with suppress(Unavailable), db.exclusive(desk.app.database, 77, 0.5) as held:
        assert held is not None
        assert not free()
        proxy.control(faults={"blackhole": 1.0})
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(db, "ANSWER_SECONDS", 0.2)
            with pytest.raises(Unavailable):
                db.still_there(held)
        assert wait_until(free)
    direct.close()


# --- a database that is slow ---------------------------------------------------------------------------------------


def test_a_statement_that_takes_too_long_is_no_defect(desk: Desk) -> None:
    with pytest.raises(Unavailable) as error, desk.app.database.transaction() as connection:
        connection.execute(text("SET LOCAL statement_timeout = '50ms'; SELECT pg_sleep(60)"))
    assert error.value.code == "DATABASE_BUSY"


@pytest.mark.parametrize("tries", [1, 2, 100])
def test_a_lock_that_others_hold_is_waited_for_a_few_times(tries: int, desk: Desk) -> None:
    """They let go after so many tries. Each waits for as long as `lock_timeout` says."""
    operation = desk.submit(DONE)
    lock = text("SELECT 1 FROM operations WHERE operation_id = :o FOR UPDATE")
    tried: list[int] = []

    with desk.app.database.transaction() as holder:
        holder.execute(lock, {"o": operation})

        def work(connection: Connection) -> int:
            tried.append(1)
            if len(tried) > tries:
                holder.rollback()
            connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
            connection.execute(lock, {"o": operation})
            return len(tried)

        if tries < 5:
            assert desk.app.database.transact(work) == tries + 1
        else:
            with pytest.raises(Unavailable) as error:
                desk.app.database.transact(work)
            assert (error.value.code, len(tried)) == ("DATABASE_BUSY", 5)
