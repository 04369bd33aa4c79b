"""An error at COMMIT means unknown, never failed: what was done is found out; nothing is done twice or forgotten."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from examples.scripted_model.process import ScriptedModel
from executors.registry import Registry
from orchestrator import commands, dispatch, settling, turn
from orchestrator.app import App
from orchestrator.domain.errors import CommitUnknown, Unavailable
from orchestrator.settings import Settings
from store import db
from store.db import Database
from store.migrate import migrate
from tests.chaos.proxy import Proxy, target, through
from tests.chaos.world import wait_until
from tests.executors.downstream import Downstream, downstream
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls

pytestmark = pytest.mark.usefixtures("migrated")
LOST = {"commit": 1.0}  # every COMMIT is durable and its answer lost
STOPPED = {"uncommitted": 1.0}  # no COMMIT arrives


@pytest.fixture(scope="module")
def migrated(database_url: str) -> None:
    database = Database(database_url, 2)
    migrate(database)
    database.close()


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as running:
        yield running


@pytest.fixture
def lab_server() -> Iterator[Downstream]:
    with downstream() as running:
        yield running


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(target(database_url), seed=1, postgres=True) as running:
        yield running


@pytest.fixture
def desk(
    proxy: Proxy, database_url: str, broker_url: str, model: ScriptedModel, lab_server: Downstream,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:  # fmt: skip
    """The application behind the proxy."""
    monkeypatch.setenv("LAB_URL", lab_server.url)
    monkeypatch.setenv("LAB_MODEL_URL", f"{model.url}/v1")
    registry = Registry()
    registry.add(*lab.TOOLS)
    url = through(database_url, proxy.address)
    app = App(Settings(database_url=url, broker_url=broker_url, lease_seconds=60.0, hint_limit=100_000), registry)
    app.sync_slots()
    opened = Desk(app, model, lab_server)
    for table in ("operations", "calls", "actions"):  # what earlier tests left is not due in this one
        opened.sql(f"UPDATE {table} SET wake_at = NULL WHERE wake_at IS NOT NULL")
    yield opened
    app.close()


@pytest.fixture(params=[LOST, STOPPED], ids=["durable", "not durable"])
def lost_once(request: pytest.FixtureRequest, proxy: Proxy) -> Callable[[], None]:
    """Lose the next COMMIT: this answer, or this request."""
    [kind] = request.param

    def lose() -> None:
        proxy.control(faults={kind: 1.0}, times=1)

    return lose


def kinds(desk: Desk, operation: str) -> list[str]:
    rows = desk.sql("SELECT kind FROM audit WHERE operation_id = :o ORDER BY seq", o=operation)
    return [row["kind"] for row in rows]


# --- everything lost -----------------------------------------------------------------------------------------------


def test_an_operation_of_which_no_commit_is_answered(desk: Desk, proxy: Proxy) -> None:
    """Not one attempt more, nothing late, nothing unknown: also a write that nobody could be asked about."""
    turns = (
        calls(call("look", text="a"), call("narrow", text="b"), call("write", text="c")),
        calls(call("careful", text="d"), call("keyed", text="e")),
    )
    answered = proxy.control(faults=LOST)["commits"]
    operation = desk.submit(*turns, DONE)
    assert desk.run(operation).state == "WAITING_APPROVAL"
    commands.approve(desk.app, desk.approval(operation), by="bob")
    assert desk.run(operation).state == "COMPLETED"
    assert [action.state for action in desk.actions(operation)] == ["SUCCEEDED"] * 3
    assert {action.attempts for action in desk.actions(operation)} == {1}
    assert (len(desk.lab.effects), len(desk.lab.seen)) == (3, 5)
    said = kinds(desk, operation)
    assert not {"turn.lost", "action.unknown", "action.late_result", "approval.refused"} & set(said)
    expected = {"operation.submitted": 1, "turn.proposed": 2, "call.settled": 5, "action.started": 3}
    assert {kind: said.count(kind) for kind in expected} == expected
    assert proxy.counts()["commit"] >= 13
    assert proxy.counts()["commits"] == answered


# --- each verb -----------------------------------------------------------------------------------------------------

Verb = Callable[[Desk, str], Any]


def _unknown(desk: Desk) -> str:
    operation = desk.submit(calls(call("write")), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    assert desk.action(operation).state == "UNKNOWN"
    return operation


def _waiting(desk: Desk) -> str:
    operation = desk.submit(calls(call("careful")), DONE)
    desk.advance(operation)
    return operation


def _asking(desk: Desk) -> str:
    question = call("ask_user", question="Which?", choices=["a", "b"])
    operation = desk.submit(calls(question), DONE, tools=("ask_user",))
    desk.advance(operation)
    return operation


def _paid(desk: Desk) -> str:
    operation = desk.submit(calls(call("patient")), DONE)
    assert desk.run(operation).state == "COMPLETED"
    return operation


def _resolve(desk: Desk, operation: str) -> None:
    settling.resolve(
        desk.app, desk.action(operation).action_id, settling.Verdict("not_applied", "looked it up"), by="olga"
    )


def _compensate(desk: Desk, operation: str) -> None:
    settling.compensate(desk.app, desk.actions(operation)[0].action_id, arguments={"text": "x"}, by="olga")


# What it needs, what is done, and the entry that must be there once.
VERBS: dict[str, tuple[Callable[[Desk], str], Verb, str]] = {
    "approve": (_waiting, lambda desk, o: commands.approve(desk.app, desk.approval(o), by="bob"), "approval.approved"),
    "deny": (_waiting, lambda desk, o: commands.deny(desk.app, desk.approval(o), by="bob"), "approval.denied"),
    "answer": (_asking, lambda desk, o: commands.answer(desk.app, o, "a", by="alice"), "question.answered"),
    "amend": (_waiting, lambda desk, o: commands.amend(desk.app, o, "No, the other."), "operation.amended"),
    "cancel": (_waiting, lambda desk, o: commands.cancel(desk.app, o), "operation.cancel_requested"),
    "resolve": (_unknown, _resolve, "action.resolved"),
    "compensate": (_paid, _compensate, "action.compensating"),
}
REFUSALS = {"approval.refused", "question.refused"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_commit_is_lost_is_done_once(verb: str, desk: Desk, lost_once: Callable[[], None]) -> None:
    prepare, do, entry = VERBS[verb]
    operation = prepare(desk)
    lost_once()
    do(desk, operation)
    said = kinds(desk, operation)
    assert said.count(entry) == 1
    assert not REFUSALS & set(said)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_cannot_be_looked_up_says_so(
    verb: str, desk: Desk, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, do, entry = VERBS[verb]
    operation = prepare(desk)
    monkeypatch.setattr(db, "LOOK_SECONDS", 0.3)
    proxy.control(faults=LOST, times=1, then={"drop": 1.0})
    with pytest.raises(CommitUnknown, match=f"may have been saved.*{operation}") as error:
        do(desk, operation)
    assert (error.value.code, error.value.operation_id) == ("COMMIT_UNKNOWN", operation)
    proxy.heal(reset=False)
    assert kinds(desk, operation).count(entry) == 1


# --- submit --------------------------------------------------------------------------------------------------------


def submission(desk: Desk, key: str | None = None) -> commands.Submission:
    """Of a profile that is known; the pool's connections are warm after it."""
    profile = desk.scripts[desk.submit(DONE)]
    return commands.submission(
        profile=profile, input="Please.", tenant="acme", subject="alice", idempotency_key=key
    )  # fmt: skip


def of_key(desk: Desk, key: str) -> list[str]:
    rows = desk.sql("SELECT operation_id FROM operations WHERE caller_key = :k", k=key)
    return [row["operation_id"] for row in rows]


def test_submit_without_a_key(desk: Desk, lost_once: Callable[[], None]) -> None:
    asked = submission(desk)
    before = desk.sql("SELECT count(*) AS n FROM operations")[0]["n"]
    lost_once()
    done = commands.submit(desk.app, asked)
    assert done.created
    assert desk.sql("SELECT count(*) AS n FROM operations")[0]["n"] == before + 1
    assert kinds(desk, done.operation_id) == ["operation.submitted"]
    assert desk.app.hints.sent >= 2, "a worker is told"


def test_submit_with_a_key(desk: Desk, lost_once: Callable[[], None], request: pytest.FixtureRequest) -> None:
    asked = submission(desk, request.node.name)
    lost_once()
    first = commands.submit(desk.app, asked)
    again = commands.submit(desk.app, asked)
    assert (first.created, again.created) == (True, False)
    assert of_key(desk, request.node.name) == [first.operation_id] == [again.operation_id]


def test_submit_in_an_envelope(desk: Desk, lost_once: Callable[[], None], request: pytest.FixtureRequest) -> None:
    """It is new to whoever submits it, and the nonce is used up."""
    asked = submission(desk)
    proof = commands.Envelope("desk", request.node.name, 4_000_000_000.0)
    lost_once()
    first = commands.submit(desk.app, asked, proof)
    again = commands.submit(desk.app, asked, proof)
    assert (first.created, first.replayed, again.created, again.replayed) == (True, False, False, True)
    assert again.operation_id == first.operation_id


def test_submit_that_cannot_be_looked_up(desk: Desk, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told where to look, and the same key gives that operation."""
    asked = submission(desk, "lookup")
    monkeypatch.setattr(db, "LOOK_SECONDS", 0.3)
    proxy.control(faults=LOST, times=1, then={"drop": 1.0})
    with pytest.raises(CommitUnknown) as error:
        commands.submit(desk.app, asked)
    proxy.heal(reset=False)
    assert of_key(desk, "lookup") == [error.value.operation_id]
    again = commands.submit(desk.app, asked)
    assert (again.operation_id, again.created) == (error.value.operation_id, False)


def test_submit_when_nothing_can_have_been_saved(desk: Desk, proxy: Proxy) -> None:
    """The database went away before COMMIT: an error that says no, and not perhaps."""
    asked = submission(desk, "never")
    proxy.control(faults={"reset": 1.0})
    with pytest.raises(Unavailable) as error:
        commands.submit(desk.app, asked)
    assert error.value.code == "DATABASE_UNREACHABLE"
    proxy.heal(reset=False)
    assert of_key(desk, "never") == []


def test_what_the_command_line_says(desk: Desk, proxy: Proxy, broker_url: str) -> None:
    url = desk.app.database.url
    environ = {
        "TURNQUEUE_DATABASE_URL": url,
        "TURNQUEUE_BROKER_URL": broker_url,
        "TURNQUEUE_MODULES": "tests.chaos.tools",
    }
    command = [sys.executable, "-m", "orchestrator.cli", "submit", "--profile", "chaos", "--input", "x", "--json"]
    proxy.control(faults=LOST, times=1, then={"drop": 1.0})
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    proxy.heal(reset=False)
    said = json.loads(done.stdout)["error"]
    assert (done.returncode, said["code"]) == (6, "COMMIT_UNKNOWN")
    assert said["operation_id"] in done.stderr
    assert kinds(desk, said["operation_id"]) == ["operation.submitted"]


# --- workers -------------------------------------------------------------------------------------------------------


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
