"""Every recorded exchange of the OpenAI-like formats lands where the ordered list of states says."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import Boundary, Completion, HttpResponse, ModelRequest
from adapters.registry import ADAPTERS
from tests.shared import SHARED, shared
from tests.wire import describe, exchanges, http_response, model_request, reply_of

FOLDERS = ("openai-responses", "openai-chat", "azure-chat", "compat-chat")

CALLS, FINAL, REFUSAL = Completion.TOOL_PROPOSALS, Completion.FINAL_TEXT, Completion.REFUSAL
CUT, PAUSED, FAILED = Completion.TRUNCATED, Completion.PAUSED, Completion.API_FAILURE

# scenario -> state; by reasoning from the ordered list, not from what the adapters do.
EXPECTED = {
    "cached-usage": FINAL,
    "calls-finish-stop": CALLS,  # a named tool choice says "stop" with calls
    "cancelled": FAILED,  # known to nobody: the catch-all
    "content-filter": REFUSAL,
    "content-filter-400": REFUSAL,  # Azure's prompt filter
    "custom-tool": CALLS,  # proposed, but can never be dispatched as a function: see below
    "empty-args": CALLS,
    "empty-text": FINAL,
    "error-400": FAILED,
    "error-401": FAILED,
    "error-404": FAILED,
    "error-429": FAILED,
    "error-500": FAILED,
    "error-503": FAILED,
    "error-body-200": FAILED,  # an in-band error comes before everything else
    "failed": FAILED,
    "finish-tool-calls-without-calls": FAILED,
    "huge-args": CALLS,
    "malformed-args": CALLS,  # the turn is sound; its call is refused when its arguments are parsed
    "nonterminal": PAUSED,
    "one-call": CALLS,
    "parallel-calls": CALLS,
    "parallel-results-final": FINAL,
    "reasoning-call": CALLS,
    "reasoning-parallel-calls": CALLS,
    "reasoning-results-final": FINAL,
    "reasoning-text": FINAL,
    "refusal": REFUSAL,
    "results-final": FINAL,
    "results-more-calls": CALLS,
    "server-tool": FINAL,
    "index-gap": CALLS,
    "no-index": CALLS,
    "same-index-parallel": CALLS,
    "stream-error": FAILED,
    "stream-interrupted": FAILED,
    "stream-no-done": CALLS,  # the reason came, only `[DONE]` is missing
    "text": FINAL,
    "truncated": CUT,
    "truncated-call": CUT,
    "unicode-args": CALLS,
    "unicode-text": FINAL,
}
# One file of a scenario differs from the others of its name: only reasoning came before the limit.
EXPECTED_FILE = {"openai-responses/empty-text-001": CUT}


def _scenario(recorded: dict[str, Any]) -> str:
    name: str = recorded["scenario"]
    return name.removesuffix("-stream")


def _files() -> list[Any]:
    found = [path for folder in FOLDERS for path in sorted((SHARED / "wire" / folder).glob("*.json"))]
    return [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in found] or [
        pytest.param(None, id="absent")
    ]


@pytest.mark.parametrize("path", _files())
def test_state_and_calls(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    reply = reply_of(recorded)
    expected = EXPECTED_FILE.get(f"{path.parent.name}/{path.stem}", EXPECTED[_scenario(recorded)])
    assert reply.completion is expected
    assert (reply.failure is not None) == (expected is FAILED)
    observed = recorded["observed"] or {}
    if expected is CALLS:
        assert [(c.call_id, c.name) for c in reply.calls] == [(c["id"], c["name"]) for c in observed["calls"]]
        if _scenario(recorded) != "custom-tool":
            assert [c.arguments_text for c in reply.calls] == [c["arguments"] for c in observed["calls"]]
    else:
        assert reply.calls == ()
    if observed:
        assert len(reply.text) == (observed["text_length"] or 0)
        assert (reply.refusal is not None) == bool(observed["refusal"])


def _usage(raw: dict[str, Any]) -> tuple[Any, Any]:
    return (
        raw.get("prompt_tokens", raw.get("input_tokens")),
        raw.get("completion_tokens", raw.get("output_tokens")),
    )


@pytest.mark.parametrize("path", _files())
def test_usage_is_what_was_reported(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    observed = (recorded["observed"] or {}).get("usage")
    usage = reply_of(recorded).usage
    assert (usage.input, usage.output) == (_usage(observed) if observed else (None, None))


@pytest.mark.parametrize("path", _files())
def test_items_are_carried_unchanged(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    reply = reply_of(recorded)
    if recorded["status"] >= 400 or (reply.completion is FAILED and "stream" in recorded):
        assert reply.items == ()
    elif "stream" in recorded:
        assert _stream_items(recorded["stream"]) in ([], list(reply.items))
    elif recorded["response"].get("error"):
        assert reply.items == ()
    elif "output" in recorded["response"]:
        assert list(reply.items) == recorded["response"]["output"]
    else:
        message = recorded["response"]["choices"][0].get("message")
        assert list(reply.items) == ([message] if message else [])


def _stream_items(stream: str) -> list[Any]:
    """The output of a Responses stream's terminal event; chat streams have no such thing."""
    events = [
        json.loads(line[5:]) for line in stream.splitlines() if line.startswith("data:") and line[5:].strip()[:1] == "{"
    ]
    return list((events[-1].get("response") or {}).get("output") or ())


RETRYABLE = {"error-429": True, "error-500": True, "error-503": True, "failed": True, "stream-interrupted": True}


@pytest.mark.parametrize("path", _files())
def test_retryable_and_boundary(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    failure = reply_of(recorded).failure
    if failure is None:
        return
    if _scenario(recorded) == "stream-error":
        assert failure.retryable == (
            "server_error" in recorded["stream"] or "InternalServerError" in recorded["stream"]
        )
        return
    billing = "billing" in json.dumps(recorded.get("response")) and recorded["status"] == 429
    assert failure.retryable == (RETRYABLE.get(_scenario(recorded), False) and not billing)
    if recorded["status"] == 401 or billing:
        assert failure.boundary is Boundary.PROVIDER_AUTH
    elif failure.code == "INTERRUPTED":
        assert failure.boundary is Boundary.PROTOCOL
    elif failure.retryable:
        assert failure.boundary is Boundary.PROVIDER_UNAVAILABLE
    assert failure.code.isascii()
    assert failure.code == failure.code.upper()


def test_error_text_is_kept_out_of_codes_and_delays_are_read() -> None:
    recorded = json.loads((shared("wire") / "openai-chat" / "error-429-001.json").read_text())
    failure = reply_of(recorded).failure
    assert failure is not None
    assert (failure.code, failure.retry_after) == ("RATE_LIMITED", 19.842)


def test_custom_tool_calls_have_no_argument_object() -> None:
    for folder in ("openai-responses", "openai-chat"):
        recorded = json.loads((shared("wire") / folder / "custom-tool-001.json").read_text())
        (call,) = reply_of(recorded).calls
        with pytest.raises(ArgumentError) as refused:
            parse_arguments(call.arguments_text)
        assert refused.value.code == "NOT_AN_OBJECT"


def test_wire_reports_unknown_formats_as_unsupported() -> None:
    shown = describe("f", {"api": "carrier-pigeon", "status": 200})
    assert shown == {"file": "f", "completion": None, "unsupported": "carrier-pigeon"}


def test_a_call_that_nobody_offered_is_not_for_dispatch() -> None:
    """A real small model with its habits: calls written as text, and calls although tools were switched off."""
    for name, recorded in exchanges(shared("workloads") / "recorded_llm" / "exchanges.jsonl"):
        shown = describe(name, recorded)
        if "unsupported" in shown:
            continue
        off = model_request(recorded).tool_choice.mode == "none"
        assert (shown["completion"] == CALLS) <= (recorded["turn"] == 1 or off)
        assert all((call["arguments"] is None) == off for call in shown["calls"])
        failed = recorded["status"] >= 400 or not recorded["response_text"]
        assert failed == (shown["completion"] == FAILED)


def test_cut_recorded_bodies_never_propose() -> None:
    """A body that lost its end is a failure at every length, never a shorter list of calls."""
    recorded = json.loads((shared("wire") / "openai-chat" / "parallel-calls-001.json").read_text())
    whole, adapter = http_response(recorded), ADAPTERS["openai-chat"]
    request = model_request(recorded)
    for length in range(len(whole.body)):
        reply = adapter.from_response(HttpResponse(200, whole.headers, whole.body[:length]), request)
        assert reply.completion is FAILED


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
_REQUEST = ModelRequest("m", "", ())


@pytest.mark.parametrize("api", sorted(ADAPTERS))
@given(status=st.sampled_from([200, 204, 302, 400, 429, 500, 599]), body=st.binary(max_size=200))
def test_random_bytes_never_raise_and_never_propose(api: str, status: int, body: bytes) -> None:
    reply = ADAPTERS[api].from_response(HttpResponse(status, {}, body), _REQUEST)
    assert reply.completion is FAILED


@pytest.mark.parametrize("api", sorted(ADAPTERS))
@given(
    status=st.sampled_from([200, 400, 429, 503]),
    document=_JSON,
    headers=st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "x-should-retry", "date"]), st.text(max_size=8)
    ),
)
def test_random_json_never_raises_and_never_proposes(
    api: str, status: int, document: Any, headers: dict[str, str]
) -> None:
    reply = ADAPTERS[api].from_response(HttpResponse(status, headers, json.dumps(document).encode()), _REQUEST)
    assert reply.completion is FAILED


_ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(["function_call", "message", "custom_tool_call", "shell_call", "reasoning"]) | _JSON},
    optional=dict.fromkeys(("call_id", "name", "arguments", "status", "content", "namespace", "caller"), _JSON),
)
_MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "content": _JSON,
        "refusal": _JSON,
        "tool_calls": _JSON | st.lists(st.fixed_dictionaries({"id": _JSON, "function": _JSON})),
    },
)


@given(
    output=st.lists(_ITEM, max_size=4),
    status=st.sampled_from(["completed", "incomplete", "failed", "in_progress"]) | _JSON,
    more=st.dictionaries(st.sampled_from(["id", "usage", "error", "incomplete_details", "model"]), _JSON),
)
def test_near_miss_responses_keep_their_promises(output: list[Any], status: Any, more: dict[str, Any]) -> None:
    body = json.dumps({**more, "output": output, "status": status}).encode()
    reply = ADAPTERS["openai-responses"].from_response(HttpResponse(200, {}, body), _REQUEST)
    assert bool(reply.calls) == (reply.completion is CALLS)
    assert not reply.calls or status == "completed"


@given(message=_MESSAGE | _JSON, reason=st.sampled_from(["stop", "tool_calls", "length", None, "error"]) | _JSON)
def test_near_miss_completions_keep_their_promises(message: Any, reason: Any) -> None:
    body = json.dumps({"choices": [{"message": message, "finish_reason": reason}]}).encode()
    reply = ADAPTERS["openai-chat"].from_response(HttpResponse(200, {}, body), _REQUEST)
    assert bool(reply.calls) == (reply.completion is CALLS)
    assert not reply.calls or reason in ("stop", "tool_calls", "function_call")
