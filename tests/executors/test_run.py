"""Each row of DESIGN section 6's table, over real HTTP, for writes, reads and reconciliation."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from executors.context import Context
from executors.http import MAX_BODY
from executors.outcomes import (
    Absent,
    Accepted,
    Applied,
    NotApplied,
    NotSent,
    Reconciled,
    StillPending,
    ToolRejected,
    ToolUnavailable,
)
from executors.registry import ToolSpec, tool
from executors.run import (
    Broken,
    Lost,
    Nowhere,
    Pending,
    Rejected,
    Succeeded,
    Transient,
    Unsent,
    run_check,
    run_read,
    run_write,
)
from tests.executors.conftest import ContextOf
from tests.executors.downstream import Downstream, refusing_url


class Target(BaseModel):
    model_config = ConfigDict(extra="forbid")
    url: str


class Note(BaseModel):
    id: str
    text: str


def answered(response: Any) -> Any:
    """How a careful handler reads an answer."""
    if response.status_code in (409, 422):
        raise ToolRejected(response.json()["code"], response.json().get("message", ""))
    if response.status_code == 202:
        return Accepted(response.json()["id"])
    if response.status_code >= 500:
        raise ToolUnavailable(f"status {response.status_code}", float(response.headers.get("retry-after", 0)) or None)
    return response.raise_for_status().json()


def look_up(args: Target, key: str, reference: str | None, ctx: Context) -> Reconciled:
    response = ctx.http.get(f"{args.url}/by-key/{key}")
    if response.status_code == 404:
        return Absent()
    body = response.raise_for_status().json()
    match body.pop("state"):
        case "refused":
            return NotApplied("OUT_OF_STOCK", "recorded")
        case "pending":
            return StillPending(body["id"])
        case _:
            return Applied(body, body.get("id"))


@tool(effect="create", reconcile=look_up, reference_field="id")
def write_note(args: Target, ctx: Context) -> Note | Accepted:
    """Write a note."""
    return answered(ctx.http.post(f"{args.url}/notes", json={"text": "x"}))


@tool(effect="read")
def read_note(args: Target, ctx: Context) -> Note:
    """Read a note."""
    return answered(ctx.http.get(f"{args.url}/notes/1"))


def write(server: Downstream, ctx: Context) -> Any:
    return run_write(write_note, {"url": server.url}, ctx)


# --- writes: row by row --------------------------------------------------------------------------------------------


def test_connection_refused_is_proof_that_nothing_was_sent(context: ContextOf) -> None:
    assert run_write(write_note, {"url": refusing_url()}, context()) == Unsent("TOOL_UNREACHABLE")


def test_a_deadline_that_passed_before_sending_is_proof(server: Downstream, context: ContextOf) -> None:
    assert write(server, context(seconds=-1)) == Unsent("TOOL_UNREACHABLE")
    assert server.seen == []


@pytest.mark.parametrize("status", [409, 422])
def test_a_definite_business_rejection(server: Downstream, context: ContextOf, status: int) -> None:
    server.will(status=status, json={"code": "OUT_OF_STOCK", "message": "none left"}, effect=False)
    assert write(server, context()) == Rejected("OUT_OF_STOCK", "none left")


def test_confirmed_by_the_output_schema(server: Downstream, context: ContextOf) -> None:
    outcome = write(server, context())
    assert isinstance(outcome, Succeeded)
    assert outcome.reference == "r-1"
    assert outcome.observation.text == '{"state":"succeeded","data":{"id":"r-1","text":"done"}}'
    assert len(server.effects) == 1


def test_accepted_and_not_final(server: Downstream, context: ContextOf) -> None:
    server.will(status=202, json={"id": "job-9"})
    assert write(server, context()) == Pending("job-9")


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ({"cut": True, "effect": False}, "TOOL_UNAVAILABLE"),  # before the effect, which nobody can know
        ({"cut": True, "effect": True}, "TOOL_UNAVAILABLE"),
        ({"half": True}, "TOOL_UNAVAILABLE"),
        ({"status": 500, "effect": False}, "TOOL_UNAVAILABLE"),
        ({"status": 503}, "TOOL_UNAVAILABLE"),
        ({"body": b"<html>"}, "TOOL_ERROR"),
        ({"body": b'{"id":1}'}, "INVALID_TOOL_RESULT"),
        ({"body": b'"x"'}, "INVALID_TOOL_RESULT"),
        ({"status": 409, "body": b"<html>conflict</html>"}, "TOOL_ERROR"),  # a proxy's word is no contract
        ({"status": 302, "headers": ("Location: /elsewhere",)}, "TOOL_ERROR"),
        ({"body": b"x" * (MAX_BODY + 1)}, "TOOL_UNAVAILABLE"),
    ],
)
def test_no_proof_means_unknown(server: Downstream, context: ContextOf, plan: dict[str, Any], code: str) -> None:
    server.will(**plan)
    assert write(server, context()) == Lost(code)
    assert len(server.seen) == 1, "nothing is sent again and no redirect is followed"


def test_a_timeout_after_sending_is_unknown(server: Downstream, context: ContextOf) -> None:
    server.will(hang=True)
    assert write(server, context(seconds=0.3)) == Lost("TOOL_UNAVAILABLE")
    assert len(server.effects) == 1


@pytest.mark.parametrize("surprise", [ValueError("secret"), ToolUnavailable("x"), KeyError("x"), SystemExit(3)])
def test_a_handler_that_raises_leaves_it_unknown(context: ContextOf, surprise: BaseException) -> None:
    def handler(args: Target, ctx: Context) -> Note:
        raise surprise

    outcome = run_write(replace_handler(write_note, handler), {"url": "-"}, context())
    assert isinstance(outcome, Lost)
    assert "secret" not in outcome.code


def test_not_sent_is_not_believed_after_another_request_has_left(server: Downstream, context: ContextOf) -> None:
    def handler(args: Target, ctx: Context) -> Note:
        ctx.http.post(f"{args.url}/first")
        raise NotSent("the second one did not leave")

    two_steps = replace_handler(write_note, handler)
    assert run_write(two_steps, {"url": server.url}, context()) == Lost("TOOL_UNAVAILABLE")


def test_a_refused_connection_after_another_request_has_left_is_no_proof(
    server: Downstream, context: ContextOf
) -> None:
    def handler(args: Target, ctx: Context) -> Note:
        ctx.http.post(f"{args.url}/first")
        return answered(ctx.http.post(f"{refusing_url()}/second"))

    two_steps = replace_handler(write_note, handler)
    assert run_write(two_steps, {"url": server.url}, context()) == Lost("TOOL_UNAVAILABLE")


def test_a_question_before_the_write_does_not_spoil_the_proof(server: Downstream, context: ContextOf) -> None:
    def handler(args: Target, ctx: Context) -> Note:
        ctx.http.get(f"{args.url}/state")
        return answered(ctx.http.post(f"{refusing_url()}/notes"))

    asks_first = replace_handler(write_note, handler)
    assert run_write(asks_first, {"url": server.url}, context()) == Unsent("TOOL_UNREACHABLE")


def test_the_key_travels_in_every_request(server: Downstream, context: ContextOf) -> None:
    write(server, context(key="tq_1", headers={"Idempotency-Key": "tq_1"}))
    assert server.effects[0].headers["idempotency-key"] == "tq_1"


def test_what_the_downstream_says_is_made_storable(server: Downstream, context: ContextOf) -> None:
    server.will(status=422, json={"code": "NO\0", "message": "token sk-abcdefghij0123456789"})
    assert write(server, context()) == Rejected("NO\ufffd", "token [redacted]")


# --- reads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"status": 503, "headers": ("Retry-After: 7",)}, Transient("TOOL_UNAVAILABLE", 7.0)),
        ({"status": 500}, Transient("TOOL_UNAVAILABLE")),
        ({"cut": True}, Transient("TOOL_UNAVAILABLE")),
        ({"half": True}, Transient("TOOL_UNAVAILABLE")),
        ({"status": 422, "json": {"code": "NOT_YOURS"}}, Rejected("NOT_YOURS", "")),
        ({"body": b"<html>"}, Broken("TOOL_ERROR")),
        ({"body": b"{}"}, Broken("INVALID_TOOL_RESULT")),
        ({"body": b"x" * (MAX_BODY + 1)}, Transient("TOOL_UNAVAILABLE")),
    ],
)
def test_reads(server: Downstream, context: ContextOf, plan: dict[str, Any], expected: Any) -> None:
    server.will(**plan)
    assert run_read(read_note, {"url": server.url}, context()) == expected


def test_a_read_that_works(server: Downstream, context: ContextOf) -> None:
    assert isinstance(run_read(read_note, {"url": server.url}, context()), Succeeded)


def test_a_read_of_nobody_may_be_tried_again(context: ContextOf) -> None:
    assert run_read(read_note, {"url": refusing_url()}, context()) == Transient("TOOL_UNREACHABLE")


def test_a_read_stays_inside_its_deadline(server: Downstream, context: ContextOf) -> None:
    server.will(hang=True)
    assert run_read(read_note, {"url": server.url}, context(seconds=0.3)) == Transient("TOOL_UNAVAILABLE")


# --- reconciliation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"status": 404}, Nowhere()),
        ({"json": {"state": "refused"}}, Rejected("OUT_OF_STOCK", "recorded")),
        ({"json": {"state": "pending", "id": "job-9"}}, Pending("job-9")),
        ({"status": 500}, Lost("CHECK_FAILED")),
        ({"status": 409, "json": {"code": "NO"}}, Lost("CHECK_FAILED")),
        ({"cut": True}, Lost("CHECK_FAILED")),
        ({"json": {"state": "applied", "id": 1}}, Lost("CHECK_FAILED")),  # no confirmation by the output schema
        ({"body": b"<html>"}, Lost("CHECK_FAILED")),
    ],
)
def test_reconciliation(server: Downstream, context: ContextOf, plan: dict[str, Any], expected: Any) -> None:
    server.will(**plan)
    assert run_check(write_note, {"url": server.url}, "tq_1", None, context()) == expected
    assert server.seen[0].path == "/by-key/tq_1"


def test_reconciliation_finds_the_effect(server: Downstream, context: ContextOf) -> None:
    server.will(json={"state": "applied", "id": "r-1", "text": "done"})
    outcome = run_check(write_note, {"url": server.url}, "tq_1", None, context())
    assert isinstance(outcome, Succeeded)
    assert outcome.reference == "r-1"


def test_a_reconcile_handler_cannot_claim_a_rejection_by_raising(context: ContextOf) -> None:
    def handler(args: Target, key: str, reference: str | None, ctx: Context) -> Reconciled:
        raise ToolRejected("NO")

    raising = replace(write_note, reconcile=handler)
    assert run_check(raising, {"url": "-"}, "tq_1", None, context()) == Lost("CHECK_FAILED")


@pytest.mark.parametrize("answer", [None, "applied", {"state": "applied"}])
def test_an_answer_of_another_kind_is_no_evidence(context: ContextOf, answer: Any) -> None:
    odd = replace(write_note, reconcile=lambda *_: answer)
    assert run_check(odd, {"url": "-"}, "tq_1", None, context()) == Lost("CHECK_FAILED")


def test_without_a_handler_nobody_can_be_asked(context: ContextOf) -> None:
    unasked = replace(write_note, reconcile=None, unreconcilable=True)
    assert run_check(unasked, {"url": "-"}, "tq_1", None, context()) == Nowhere()


def replace_handler(spec: ToolSpec, handler: Any) -> ToolSpec:
    return replace(spec, handler=handler)
