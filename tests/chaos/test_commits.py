"""An error at COMMIT means unknown, never failed: what was done is found out; nothing is done twice or forgotten."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import commands, settling
from orchestrator.completion import token
from orchestrator.domain.errors import CommitUnknown, Unavailable
from store import db
from tests.chaos.lost import LOST, kinds, submission
from tests.chaos.proxy import Proxy
from tests.orchestrator.desk import DONE, Desk, call, calls

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


def _accepted(desk: Desk) -> str:
    operation = desk.submit(calls(call("checked")), DONE)
    desk.lab.will(status=202, json={"id": "job-9"})
    desk.advance(operation)
    desk.step("writes")
    assert desk.action(operation).state == "PENDING"
    return operation


def _complete(desk: Desk, operation: str) -> None:
    action = desk.action(operation)
    sealed = token(desk.app.settings, action.action_id, action.idempotency_key)
    assert sealed is not None
    settling.complete(desk.app, action.action_id, sealed, settling.Completed({"id": "r-9", "text": "done"}))


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
    "complete": (_accepted, _complete, "action.reported"),
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
