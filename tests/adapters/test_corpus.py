"""Every recorded, unstreamed exchange of the OpenAI-like formats lands where the ordered list of states says."""

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
from tests.wire import describe, http_response, model_request, reply_of, supported

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
    "text": FINAL,
    "truncated": CUT,
    "truncated-call": CUT,
    "unicode-args": CALLS,
    "unicode-text": FINAL,
}
# One file of a scenario differs from the others of its name: only reasoning came before the limit.
EXPECTED_FILE = {"openai-responses/empty-text-001": CUT}


def _files() -> list[Any]:
    found = [path for folder in FOLDERS for path in sorted((SHARED / "wire" / folder).glob("*.json"))]
    plain = [path for path in found if supported(json.loads(path.read_text()))]
    return [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in plain] or [
        pytest.param(None, id="absent")
    ]


@pytest.mark.parametrize("path", _files())
def test_state_and_calls(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    reply = reply_of(recorded)
    expected = EXPECTED_FILE.get(f"{path.parent.name}/{path.stem}", EXPECTED[recorded["scenario"]])
    assert reply.completion is expected
    assert (reply.failure is not None) == (expected is FAILED)
    observed = recorded["observed"] or {}
    if expected is CALLS:
        assert [(c.call_id, c.name) for c in reply.calls] == [(c["id"], c["name"]) for c in observed["calls"]]
        if recorded["scenario"] != "custom-tool":
            assert [c.arguments_text for c in reply.calls] == [c["arguments"] for c in observed["calls"]]
    else:
        assert reply.calls == ()
    if observed:
        assert len(reply.text) == (observed["text_length"] or 0)
        assert (reply.refusal is not None) == bool(observed["refusal"])


@pytest.mark.parametrize("path", _files())
def test_items_are_carried_unchanged(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    body = recorded["response"]
    reply = reply_of(recorded)
    if recorded["status"] >= 400 or body.get("error"):
        assert reply.items == ()
    elif "output" in body:
        assert list(reply.items) == body["output"]
    else:
        message = body["choices"][0].get("message")
        assert list(reply.items) == ([message] if message else [])


RETRYABLE = {"error-429": True, "error-500": True, "error-503": True, "failed": True}


@pytest.mark.parametrize("path", _files())
def test_retryable_and_boundary(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    failure = reply_of(recorded).failure
    if failure is None:
        return
    billing = "billing" in json.dumps(recorded["response"]) and recorded["status"] == 429
    assert failure.retryable == (RETRYABLE.get(recorded["scenario"], False) and not billing)
    if recorded["status"] == 401 or billing:
        assert failure.boundary is Boundary.PROVIDER_AUTH
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


def test_wire_reports_streams_and_other_formats_as_unsupported() -> None:
    stream = shared("wire") / "anthropic-messages" / "one-call-stream-001.json"
    shown = describe("f", json.loads(stream.read_text()))
    assert shown == {"file": "f", "completion": None, "unsupported": "anthropic-messages (stream)"}


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
