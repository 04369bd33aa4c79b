"""Rules of the seeds ("common mistakes", "exam traps", "self-check") for which no other test stands."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from executors.registry import ToolSpec
from orchestrator import commands, dispatch
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import Effect
from policy.profile import Budgets, Model, Profile
from tests.acceptance.desks import restarted, sent
from tests.orchestrator.desk import DONE, Desk, call, calls


@pytest.mark.parametrize(
    ("turn", "state"),
    [
        ({"text": "Done."}, "COMPLETED"),
        ({"refusal": "No."}, "REFUSED"),
        ({"truncated": "It"}, "INCOMPLETE"),
        ({"text": "Done.", "fault": {"status": 401}}, "FAILED"),
        ({"text": "Done.", "fault": {"error": True}}, "FAILED"),
    ],
)
def test_no_tool_call_does_not_mean_completion(desk: Desk, turn: dict[str, Any], state: str) -> None:
    """Five replies without a tool call; one of them is an explicit completion."""
    view = desk.run(desk.submit(turn))
    assert (view.state, view.calls) == (state, [])


def test_an_approval_wait_is_not_kept_in_process_memory(desk: Desk) -> None:
    """Operation, conversation, call, digest, policy version and expiry are rows; another process goes on from them."""
    operation = desk.submit(calls(call("look"), call("careful", text="a")), DONE)
    desk.advance(operation)
    desk.step("reads")
    [saved] = desk.sql(
        "SELECT a.action_digest, a.policy_version, a.expires_at, a.requester FROM approvals a WHERE operation_id = :o",
        o=operation,
    )
    assert all(saved.values())
    with restarted(desk):
        commands.approve(desk.app, desk.approval(operation), by="boss")
        view = desk.run(operation)
    assert (view.state, len(desk.lab.effects)) == ("COMPLETED", 1)
    request = sent(desk, operation)[1]
    assert (len(request.proposals()), len(request.results())) == (2, 2), "the conversation is continued whole"


def test_a_token_cap_is_no_limit_of_the_loop(desk: Desk) -> None:
    """With a small cap on each reply the loop still runs into its own limit, and side effects into theirs."""
    model = desk.recipe("capped", max_output_tokens=64)
    turns = [calls(call("write", text=str(n))) for n in range(9)]
    desk.model.add({"id": "capped", "turns": turns})
    operation = desk.submit(model=model, budgets=Budgets(writes=3, turns=6))
    desk.scripts[operation] = "capped"
    view = desk.run(operation)
    assert (view.state, view.turns, len(desk.lab.effects)) == ("INCOMPLETE", 6, 3)
    assert {request.output_limit() for request in sent(desk, operation)} == {64}


def test_almost_finished_buys_no_further_tool(desk: Desk) -> None:
    turns = [{**calls(call("look", text=str(n)))} for n in range(9)]
    view = desk.run(desk.submit(*turns, budgets=Budgets(turns=3)))
    assert (view.turns, len(desk.lab.seen)) == (3, 2)


_RESULT_WORDS = {
    "openai-responses": "function_call_output", "openai-chat": "tool_call_id", "anthropic-messages": "tool_use_id",
    "gemini-generate": "functionResponse", "gemini-interactions": "function_result",
}  # fmt: skip


def test_each_wire_format_stays_in_its_adapter(desk: Desk) -> None:
    """A result is said in the words of its own API and of no other: Chat's `tool_call_id` is no word of Responses."""
    operation = desk.submit(calls(call("look", "c1")), DONE)
    assert desk.run(operation).state == "COMPLETED"
    said = json.dumps(desk.requests(operation)[1])
    assert [api for api, word in _RESULT_WORDS.items() if f'"{word}"' in said] == [desk.api]


def test_reasoning_items_accompany_tool_outputs(desk: Desk) -> None:
    operation = desk.submit(calls(call("look", "c1")) | {"reasoning": "I must look."}, DONE)
    assert desk.run(operation).state == "COMPLETED"
    assert sent(desk, operation)[1].reasoning_before_its_call()


def test_every_record_names_provider_api_model_and_revision(desk: Desk) -> None:
    operation = desk.submit(calls(call("look", "c1")), DONE)
    desk.run(operation)
    [row] = desk.sql("SELECT binding FROM calls WHERE operation_id = :o", o=operation)
    assert {"provider", "api", "model", "adapter_revision", "response_id", "call_id"} <= row["binding"].keys()
    turns = desk.sql("SELECT api, model, adapter_revision, raw_reason FROM turns WHERE operation_id = :o", o=operation)
    assert all(all(turn.values()) for turn in turns)
    assert {turn["api"] for turn in turns} == {desk.api}


class Loose(BaseModel):
    """Takes what it is given."""

    text: str = ""


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = ""


def test_a_tool_without_a_recovery_policy_cannot_be_registered() -> None:
    """The recovery of a write is decided before its first request leaves: a `create` says how, or that nobody can."""
    fields: dict[str, Any] = {"description": "x", "handler": lambda a, c: None, "result": Loose}
    with pytest.raises(ConfigError, match="idempotency contract or a reconcile handler"):
        ToolSpec(name="t", effect=Effect.CREATE, arguments=Closed, **fields)
    with pytest.raises(ConfigError, match="extra='forbid'"):
        ToolSpec(name="t", effect=Effect.READ, arguments=Loose, **fields)


def test_a_profiles_schema_is_checked_when_it_is_made() -> None:
    fields: dict[str, Any] = {
        "name": "p", "instructions": "x", "model": Model(api="openai-chat", name="m", base_url="$X"),
    }  # fmt: skip
    assert Profile(**fields, output_schema=Closed.model_json_schema()).output_schema is not None
    for broken in ({"type": "objekt"}, {"type": "array"}):
        with pytest.raises(ValueError, match="output_schema"):
            Profile(**fields, output_schema=broken)


@pytest.mark.parametrize("outcome", ["unknown", "pending", "started"])
def test_no_path_reports_success_with_an_unresolved_write(desk: Desk, outcome: str) -> None:
    """Even if the turn's bookkeeping were wrong and the model was asked: its final text meets the open action."""
    operation = desk.submit(calls(call("write")), DONE)
    desk.advance(operation)
    if outcome == "pending":
        desk.lab.will(status=202, json={"id": "job-1"})
    else:
        desk.lab.will(cut=True)
    assert dispatch.run_one(desk.app, "writes", None)
    assert desk.action(operation).state == ("PENDING" if outcome == "pending" else "UNKNOWN")
    if outcome == "started":
        worker = "lease_until = clock_timestamp() + interval '1 h', review = false, settled_at = NULL"
        desk.tamper("actions", f"UPDATE actions SET state = 'STARTED', {worker} WHERE operation_id = '{operation}'")
    # As a bug or a hand in the database would: the call has a result, the operation is due.
    settled = (
        "state = 'SUCCEEDED', settled_at = clock_timestamp(), observation = '{}', binding_sha256 = repeat('0', 64)"
    )
    desk.tamper("calls", f"UPDATE calls SET {settled} WHERE operation_id = '{operation}'")
    desk.tamper(
        "operations", "UPDATE operations SET state = 'RESULTS_READY', open_calls = 0, wake_at = clock_timestamp() "
        f"WHERE operation_id = '{operation}'",
    )  # fmt: skip
    view = desk.advance(operation)
    assert view.state == "FAILED", "altered evidence is noticed before the model is asked"
    assert [row["tool"] for row in (view.pending or {})["unresolved"]] == ["write"]
