"""Resolve, complete, compensate: evidence from people and downstreams, each audited, none of it sending by itself."""

from typing import Any

import pytest

from orchestrator import settling
from orchestrator.completion import token
from orchestrator.domain.errors import Conflict, NotFound, TurnqueueError, UserError
from orchestrator.settling import Completed, Verdict
from tests.orchestrator.desk import DONE, Desk, call, calls

KEY = "LAB_COMPLETION_KEY"


@pytest.fixture(autouse=True)
def signing_key(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    monkeypatch.setenv(KEY, "k" * 40)
    monkeypatch.setattr(desk.app, "settings", desk.app.settings.model_copy(update={"completion_key_env": KEY}))


def unknown(desk: Desk, tool: str = "write") -> tuple[str, str]:
    operation = desk.submit(calls(call(tool)), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    assert desk.action(operation).state == "UNKNOWN"
    return operation, desk.action(operation).action_id


def pending(desk: Desk) -> tuple[str, str, str]:
    operation = desk.submit(calls(call("checked")), DONE)
    desk.lab.will(status=202, json={"id": "job-9"})
    desk.advance(operation)
    desk.step("writes")
    action = desk.action(operation)
    assert action.state == "PENDING"
    sealed = token(desk.app.settings, action.action_id, action.idempotency_key)
    assert sealed is not None
    return operation, action.action_id, sealed


def refused(kind: type[TurnqueueError], code: str, work: Any) -> None:
    with pytest.raises(kind) as error:
        work()
    assert error.value.code == code


# --- resolve -------------------------------------------------------------------------------------------------------


def test_an_operator_confirms_it(desk: Desk) -> None:
    operation, action_id = unknown(desk)
    verdict = Verdict("succeeded", "REF-7", {"id": "REF-7", "text": "found in the ledger"})
    assert settling.resolve(desk.app, action_id, verdict, by="olga") == "SUCCEEDED"
    assert desk.run(operation).state == "COMPLETED"
    assert desk.action(operation).external_ref == "REF-7"
    assert desk.call(operation).observation["data"]["text"] == "found in the ledger"
    [entry] = desk.audit(operation, "action.resolved")
    assert (entry["actor"], entry["body"]["verdict"], entry["body"]["evidence"]) == (
        "operator:olga",
        "succeeded",
        "REF-7",
    )
    assert len(desk.lab.seen) == 1, "nothing was sent for it"


def test_a_confirmation_without_the_result_says_so_to_the_model(desk: Desk) -> None:
    operation, action_id = unknown(desk)
    settling.resolve(desk.app, action_id, Verdict("succeeded", "REF-7"), by="olga")
    told = desk.call(operation).observation
    assert (told["state"], told["data"], told["reference"]) == ("succeeded", None, "REF-7")


def test_an_operator_rules_it_out(desk: Desk) -> None:
    operation, action_id = unknown(desk)
    assert settling.resolve(desk.app, action_id, Verdict("not_applied", "ticket 5"), by="olga") == "FAILED"
    assert desk.run(operation).state == "COMPLETED"
    assert desk.call(operation).observation["code"] == "NOT_APPLIED"


def test_a_retry_is_refused_where_it_could_be_applied_twice(desk: Desk) -> None:
    _, action_id = unknown(desk)
    retry = Verdict("retry", "they say try again")
    refused(Conflict, "RETRY_UNSAFE", lambda: settling.resolve(desk.app, action_id, retry, by="olga"))


def test_a_retry_of_an_enforced_key_goes_out_under_the_same_key(desk: Desk) -> None:
    operation = desk.submit(calls(call("keyed")), DONE)
    for _ in range(3):
        desk.lab.will(cut=True, effect=False)
    desk.run(operation)
    action = desk.action(operation)
    assert (action.state, action.review, action.attempts) == ("UNKNOWN", True, 3)
    assert settling.resolve(desk.app, action.action_id, Verdict("retry", "fixed"), by="olga") == "READY"
    assert desk.run(operation).state == "COMPLETED"
    assert {seen.headers["idempotency-key"] for seen in desk.lab.seen} == {action.idempotency_key}


@pytest.mark.parametrize(
    ("verdict", "by", "code"),
    [(Verdict("not_applied", " "), "olga", "BAD_FIELD"), (Verdict("not_applied", "seen"), " ", "BAD_FIELD")],
)
def test_who_and_why_must_be_said(desk: Desk, verdict: Verdict, by: str, code: str) -> None:
    _, action_id = unknown(desk)
    refused(UserError, code, lambda: settling.resolve(desk.app, action_id, verdict, by=by))


def test_only_what_is_uncertain_can_be_resolved(desk: Desk) -> None:
    operation = desk.submit(calls(call("write")), DONE)
    desk.run(operation)
    done = desk.action(operation).action_id
    verdict = Verdict("not_applied", "no")
    refused(Conflict, "NOT_UNCERTAIN", lambda: settling.resolve(desk.app, done, verdict, by="olga"))
    refused(NotFound, "UNKNOWN_ACTION", lambda: settling.resolve(desk.app, "act_none", verdict, by="olga"))
    refused(NotFound, "UNKNOWN_ACTION", lambda: settling.resolve(desk.app, done, verdict, by="olga", tenant="other"))


def test_after_the_end_it_is_evidence_in_the_terminal_record(desk: Desk) -> None:
    from orchestrator import commands

    operation, action_id = unknown(desk)
    commands.cancel(desk.app, operation)
    assert [row["state"] for row in (desk.view(operation).pending or {})["unresolved"]] == ["UNKNOWN"]
    settling.resolve(desk.app, action_id, Verdict("succeeded", "REF-7"), by="olga")
    record = desk.view(operation).pending or {}
    assert [row["external_ref"] for row in record["happened"]] == ["REF-7"]
    assert (desk.view(operation).state, record["unresolved"]) == ("CANCELLED", [])


# --- absent --------------------------------------------------------------------------------------------------------


def test_absent_counts_only_after_a_while(desk: Desk) -> None:
    """The first request may still be on its way; until then it stays unknown, though the key would protect it."""
    operation = desk.submit(calls(call("patient")), DONE)
    desk.lab.will(cut=True, effect=False)
    desk.advance(operation)
    desk.step("writes")
    desk.lab.will(status=404)
    desk.hurry(operation)
    desk.step("writes")
    assert desk.action(operation).state == "UNKNOWN"
    desk.sql("UPDATE attempts SET started_at = started_at - interval '1 minute' WHERE operation_id = :o", o=operation)
    desk.lab.will(status=404)
    assert desk.run(operation).state == "COMPLETED"
    assert [seen.method for seen in desk.lab.seen] == ["POST", "GET", "GET", "POST"]


# --- completion callbacks ------------------------------------------------------------------------------------------


def test_a_downstream_reports_success_once(desk: Desk) -> None:
    operation, action_id, sealed = pending(desk)
    report = Completed({"id": "r-9", "text": "done"})
    assert settling.complete(desk.app, action_id, sealed, report) == "SUCCEEDED"
    refused(Conflict, "ALREADY_SETTLED", lambda: settling.complete(desk.app, action_id, sealed, report))
    assert desk.run(operation).state == "COMPLETED"
    assert desk.action(operation).external_ref == "r-9"


def test_a_downstream_reports_a_refusal(desk: Desk) -> None:
    operation, action_id, sealed = pending(desk)
    assert settling.complete(desk.app, action_id, sealed, Completed(code="card declined!")) == "FAILED"
    assert desk.call(operation).observation["code"] == "CARD_DECLINED"


def test_tokens_are_signed_for_one_action_and_expire(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _, action_id, sealed = pending(desk)
    _, other, _ = pending(desk)
    report = Completed({"id": "r-9"})
    refused(UserError, "TOKEN_BAD", lambda: settling.complete(desk.app, other, sealed, report))
    refused(UserError, "TOKEN_BAD", lambda: settling.complete(desk.app, action_id, sealed[:-2] + "xx", report))
    refused(UserError, "TOKEN_BAD", lambda: settling.complete(desk.app, action_id, "", report))
    refused(UserError, "BAD_FIELD", lambda: settling.complete(desk.app, action_id, sealed, Completed()))
    refused(UserError, "BAD_FIELD", lambda: settling.complete(desk.app, action_id, sealed, Completed({"id": 5})))
    monkeypatch.setattr(desk.app, "settings", desk.app.settings.model_copy(update={"completion_seconds": -1.0}))
    refused(UserError, "TOKEN_EXPIRED", lambda: settling.complete(desk.app, action_id, sealed, report))


# --- compensation --------------------------------------------------------------------------------------------------


def done(desk: Desk) -> tuple[str, str]:
    operation = desk.submit(calls(call("patient")), DONE)
    assert desk.run(operation).state == "COMPLETED"
    return operation, desk.action(operation).action_id


def test_an_operator_undoes_what_happened_as_an_action_of_its_own(desk: Desk) -> None:
    operation, action_id = done(desk)
    undoing = settling.compensate(desk.app, action_id, arguments={"text": "undo"}, by="olga")
    desk.step("writes")
    first, second = desk.actions(operation)
    assert (second.action_id, second.tool, second.state) == (undoing, "undo", "SUCCEEDED")
    assert second.idempotency_key != first.idempotency_key
    assert [row["tool"] for row in (desk.view(operation).pending or {})["happened"]] == ["patient", "undo"]
    [entry] = desk.audit(operation, "action.compensating")
    assert (entry["actor"], entry["body"]["undoes"]) == ("operator:olga", action_id)


def test_a_failed_compensation_is_visible(desk: Desk) -> None:
    operation, action_id = done(desk)
    desk.lab.will(status=409, json={"code": "TOO_LATE"})
    settling.compensate(desk.app, action_id, arguments={}, by="olga")
    desk.step("writes")
    record = desk.view(operation).pending or {}
    assert [(row["tool"], row["state"]) for row in record["failed"]] == [("undo", "FAILED")]


def test_what_cannot_be_undone(desk: Desk) -> None:
    operation = desk.submit(calls(call("write")), DONE)
    desk.run(operation)
    plain = desk.action(operation).action_id
    refused(UserError, "NO_COMPENSATION", lambda: settling.compensate(desk.app, plain, arguments={}, by="olga"))
    _, open_action = unknown(desk)
    refused(Conflict, "NOT_SUCCEEDED", lambda: settling.compensate(desk.app, open_action, arguments={}, by="olga"))
    _, action_id = done(desk)
    refused(
        UserError, "BAD_FIELD", lambda: settling.compensate(desk.app, action_id, arguments={"size": "x"}, by="olga")
    )
