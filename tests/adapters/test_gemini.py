"""Both Gemini formats against their recordings: every file in the right state with the right calls, in any split."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.arguments import parse_arguments
from adapters.base import Boundary, Completion, HttpResponse, ModelRequest, Progress, Reply
from adapters.registry import adapter_for
from orchestrator.domain.transcript import UserText
from tests.shared import SHARED, shared

CALLS, FINAL, REFUSAL = Completion.TOOL_PROPOSALS, Completion.FINAL_TEXT, Completion.REFUSAL
CUT, PAUSED, FAILED = Completion.TRUNCATED, Completion.PAUSED, Completion.API_FAILURE
APIS = {
    "gemini-generate": "gemini-generate",
    "vertex-generate": "gemini-generate",
    "gemini-interactions": "gemini-interactions",
}
REQUEST = ModelRequest("m", "", (UserText("recorded"),))

# scenario -> state; by reasoning from the ordered list, not from what the adapters do.
EXPECTED = {
    "blocked-step-error": REFUSAL,  # its error says that safety settings blocked it
    "budget-exceeded": CUT,
    "cached-usage": FINAL,
    "content-filter": REFUSAL,
    "continuation": PAUSED,
    "empty-args": CALLS,
    "empty-text": FINAL,
    "error-400": FAILED,
    "error-400-array": FAILED,
    "error-403": FAILED,
    "error-404": FAILED,
    "error-429": FAILED,
    "error-500": FAILED,
    "error-503": FAILED,
    "error-504": FAILED,
    "failed": FAILED,
    "json-array": FINAL,
    "malformed-function-call": FAILED,
    "nonterminal": PAUSED,
    "one-call": CALLS,
    "parallel-calls": CALLS,
    "parallel-results-final": FINAL,
    "partial-args": CALLS,
    "reasoning-call": CALLS,
    "reasoning-parallel-calls": CALLS,
    "reasoning-results-final": FINAL,
    "reasoning-text": FINAL,
    "requires-continuation": PAUSED,
    "results-final": FINAL,
    "results-more-calls": CALLS,
    "server-tool": FINAL,
    "server-tool-and-call": CALLS,
    "stream-error": FAILED,
    "stream-interrupted": FAILED,
    "text": FINAL,
    "truncated": CUT,
    "unicode-args": CALLS,
    "unicode-text": FINAL,
}
# The rare finish reasons share a name.
ODD = {"UNEXPECTED_TOOL_CALL": FAILED, "OTHER": FAILED, "RECITATION": REFUSAL, "SAFETY": REFUSAL}
RETRYABLE = {"error-429", "error-500", "error-503", "error-504", "failed", "stream-error", "stream-interrupted"}


def paths(streams: bool | None = None) -> list[Any]:
    found = [path for folder in ("gemini-generate", "gemini-interactions") for path in _folder(folder, streams)]
    return found or [pytest.param(None, id="absent")]


def _folder(folder: str, streams: bool | None) -> list[Any]:
    return [
        pytest.param(path, id=f"{folder}/{path.stem}")
        for path in sorted((SHARED / "wire" / folder).glob("*.json"))
        if streams is None or streams == ("stream" in json.loads(path.read_text()))
    ]


def recording(path: Path | None) -> dict[str, Any]:
    shared("wire")
    assert path is not None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def scenario(recorded: dict[str, Any]) -> str:
    return re.sub(r"-stream$", "", recorded["scenario"])


def accumulate(api: str, *pieces: bytes, request: ModelRequest = REQUEST) -> tuple[Reply, list[Progress]]:
    accumulator = adapter_for(api).accumulator(HttpResponse(200, {}, b""), replace(request, stream=True))
    progress = [told for piece in pieces for told in accumulator.feed(piece)]
    return accumulator.finish(), progress


def reply_of(recorded: dict[str, Any]) -> Reply:
    api = APIS[recorded["api"]]
    if "stream" in recorded:
        return accumulate(api, recorded["stream"].encode())[0]
    body = recorded["response"]
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = {name.lower(): value for name, value in recorded["response_headers"].items()}
    return adapter_for(api).from_response(HttpResponse(recorded["status"], headers, raw), REQUEST)


@pytest.mark.parametrize("path", paths())
def test_state_calls_and_text(path: Path | None) -> None:
    recorded = recording(path)
    reply, observed = reply_of(recorded), recorded["observed"] or {}
    name = scenario(recorded)
    expected = ODD[observed["finish"]] if name == "odd-finish" else EXPECTED[name]
    assert reply.completion is expected
    assert (reply.failure is not None) == (expected is FAILED)
    if expected is CALLS:
        seen = [(call.name, parse_arguments(call.arguments_text)) for call in reply.calls]
        assert seen == [(call["name"], _object(call["arguments"])) for call in observed["calls"]]
        for call, told in zip(reply.calls, observed["calls"], strict=True):
            assert call.call_id == told["id"] if told["id"] else re.fullmatch("[0-9a-z]{9}", call.call_id)
        assert len({call.call_id for call in reply.calls}) == len(reply.calls)
    else:
        assert reply.calls == ()
    if observed:
        assert len(reply.text) == (observed["text_length"] or 0)


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


@pytest.mark.parametrize("path", paths())
def test_usage(path: Path | None) -> None:
    """Thoughts count as output and cached tokens are part of the input; what is not told is unknown."""
    recorded = recording(path)
    told, usage = (recorded["observed"] or {}).get("usage") or {}, reply_of(recorded).usage
    generate = APIS[recorded["api"]] == "gemini-generate"
    said = told.get("candidatesTokenCount" if generate else "total_output_tokens")
    thought = told.get("thoughtsTokenCount" if generate else "total_thought_tokens")
    assert usage.input == told.get("promptTokenCount" if generate else "total_input_tokens")
    assert usage.cached == told.get("cachedContentTokenCount" if generate else "total_cached_tokens")
    assert usage.reasoning == thought
    assert usage.output == (None if said is None and thought is None else (said or 0) + (thought or 0))


@pytest.mark.parametrize("path", paths())
def test_failures_say_whether_to_repeat(path: Path | None) -> None:
    recorded = recording(path)
    failure = reply_of(recorded).failure
    if failure is None:
        return
    assert failure.retryable == (scenario(recorded) in RETRYABLE)
    if recorded["status"] == 403:
        assert failure.boundary is Boundary.PROVIDER_AUTH
    assert re.fullmatch("[A-Z_]+", failure.code)


def test_delays_are_read_from_body_and_header() -> None:
    for name, seconds in (("gemini-generate/error-429-002", 48), ("gemini-interactions/error-429-001", 31)):
        failure = reply_of(recording(shared("wire") / f"{name}.json")).failure
        assert failure is not None
        assert (failure.code, failure.retry_after) == ("RATE_LIMITED", seconds)


def test_quota_of_the_day_and_bad_keys_are_not_repeated() -> None:
    quota = {"@type": "QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
    retry = {"@type": "RetryInfo", "retryDelay": "7s"}
    key = {"@type": "ErrorInfo", "reason": "API_KEY_INVALID"}
    cases = (
        (429, "RESOURCE_EXHAUSTED", [quota, retry], "QUOTA_EXHAUSTED"),
        (400, "INVALID_ARGUMENT", [key], "AUTHENTICATION"),
    )
    for status, name, details, code in cases:
        body = json.dumps({"error": {"code": status, "message": "m", "status": name, "details": details}}).encode()
        failure = adapter_for("gemini-generate").from_response(HttpResponse(status, {}, body), REQUEST).failure
        assert failure is not None
        assert (failure.boundary, failure.code, failure.retryable) == (Boundary.PROVIDER_AUTH, code, False)


@pytest.mark.parametrize("path", paths(streams=False))
def test_items_are_carried_unchanged(path: Path | None) -> None:
    recorded = recording(path)
    body, reply = recorded["response"], reply_of(recorded)
    ours = [item for item in reply.items if "turnqueue_continuation" not in item]
    if reply.failure is not None:
        assert reply.items == ()
    elif isinstance(body, list):  # a stream without SSE: the parts of its responses, one after the other
        parts = [part for chunk in body for part in chunk["candidates"][0]["content"]["parts"]]
        assert ours == [{"role": "model", "parts": parts}]
    elif "steps" in body:
        assert ours == body["steps"]
    else:
        content = (body.get("candidates") or [{}])[0].get("content") or {}
        assert ours == ([content] if content.get("parts") else [])


def test_signatures_of_a_stream_stay_where_they_were() -> None:
    """An empty text part at the end may be all that a signature has."""
    reply = reply_of(recording(shared("wire") / "gemini-generate" / "server-tool-stream-002.json"))
    (content,) = reply.items
    assert [sorted(part) for part in content["parts"]] == [
        ["executableCode", "thoughtSignature"],
        ["codeExecutionResult"],
        ["text"],
        ["text", "thoughtSignature"],
    ]
    steps = reply_of(recording(shared("wire") / "gemini-interactions" / "server-tool-and-call-stream-001.json")).items
    assert steps == (
        {
            "id": "mkutnkgn",
            "signature": "c2ln",
            "type": "google_search_call",
            "arguments": {"queries": ["largest mountain in Europe"]},
        },
        {"call_id": "mkutnkgn", "signature": "c2ln", "type": "google_search_result", "is_error": False},
        {"type": "thought", "signature": "c2ln"},
        {
            "id": "ktr5aysg",
            "type": "function_call",
            "name": "get_weather",
            "arguments": {"location": "Mount Elbrus, Russia"},
        },
    )


def test_calls_in_pieces_become_whole_calls() -> None:
    """Eight parts are four calls; the signature stays with the one that had it."""
    reply = reply_of(recording(shared("wire") / "gemini-generate" / "partial-args-stream-002.json"))
    (content,) = reply.items
    assert [part["functionCall"] for part in content["parts"] if "functionCall" in part] == [
        {"name": "read_theme"},
        *({"name": "read_screen", "args": {"id": letter}} for letter in "ABC"),
    ]
    signed = [part["functionCall"]["name"] for part in content["parts"] if "thoughtSignature" in part]
    assert signed == ["read_theme"]


def test_an_array_where_a_stream_was_asked_for() -> None:
    """Without `alt=sse` the body is a JSON array; an error is its last element."""
    recorded = recording(shared("wire") / "gemini-generate" / "json-array-stream-001.json")
    body = json.dumps(recorded["response"], indent=1).encode()
    assert accumulate("gemini-generate", body)[0] == reply_of(recorded)
    for length in range(len(body)):
        assert accumulate("gemini-generate", body[:length])[0].completion is FAILED
    error = [*recorded["response"][:1], {"error": {"code": 503, "message": "m", "status": "UNAVAILABLE"}}]
    failure = accumulate("gemini-generate", json.dumps(error).encode())[0].failure
    assert failure is not None
    assert (failure.code, failure.retryable) == ("OVERLOADED", True)


# --- any split, any cut ----------------------------------------------------------------------------------------------


def _text(progress: list[Progress]) -> dict[str, str]:
    return {kind: "".join(told.text for told in progress if told.kind == kind) for kind in ("text", "reasoning")}


@pytest.mark.parametrize("path", paths(streams=True))
@settings(max_examples=25)
@given(data=st.data())
def test_any_split_gives_the_same_reply(path: Path | None, data: st.DataObject) -> None:
    recorded = recording(path)
    api, body = APIS[recorded["api"]], recorded["stream"].encode()
    places = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
    whole, told = accumulate(api, body)
    split, seen = accumulate(api, *pieces)
    assert split == whole
    assert _text(seen) == _text(told)


@pytest.mark.parametrize("path", paths(streams=True))
def test_byte_by_byte_gives_the_same_reply(path: Path | None) -> None:
    recorded = recording(path)
    api, body = APIS[recorded["api"]], recorded["stream"].encode()
    assert accumulate(api, *(body[i : i + 1] for i in range(len(body)))) == accumulate(api, body)


@pytest.mark.parametrize("path", paths(streams=True))
@settings(max_examples=40)
@given(data=st.data())
def test_a_cut_stream_never_proposes(path: Path | None, data: st.DataObject) -> None:
    """Only blanks or what follows the completion event may be missing from a stream that still says something."""
    recorded = recording(path)
    api, body = APIS[recorded["api"]], recorded["stream"].encode()
    length = data.draw(st.integers(0, len(body)))
    whole, _ = accumulate(api, body)
    cut, _ = accumulate(api, body[:length])
    if cut.completion is not FAILED:
        assert cut == whole
    else:
        assert cut.calls == ()
        assert cut.items == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_CALL = st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "args", "id", "willContinue", "partialArgs"), _JSON))
_PART = st.fixed_dictionaries({}, optional={"functionCall": _CALL | _JSON, "text": _JSON, "thought": _JSON}) | _JSON
_CHUNK = st.fixed_dictionaries(
    {
        "candidates": st.lists(
            st.fixed_dictionaries(
                {"content": st.fixed_dictionaries({"parts": st.lists(_PART, max_size=3) | _JSON})},
                optional={"finishReason": st.sampled_from(["STOP", "MAX_TOKENS", "CONTINUATION", "NEW"]) | _JSON},
            ),
            max_size=2,
        )
    },
    optional={"error": _JSON, "promptFeedback": _JSON, "usageMetadata": _JSON},
)
_STEP = st.fixed_dictionaries(
    {"type": st.sampled_from(["function_call", "model_output", "thought"]) | _JSON},
    optional=dict.fromkeys(("id", "name", "arguments", "content", "signature", "error"), _JSON),
)
_EVENT = st.fixed_dictionaries(
    {"event_type": st.sampled_from(["step.start", "step.delta", "step.stop", "interaction.completed", "error"])},
    optional={
        "index": st.integers(0, 2) | _JSON,
        "step": _STEP,
        "delta": st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "arguments_delta", "thought_summary", "text_annotation_delta"]) | _JSON},
            optional=dict.fromkeys(("text", "arguments", "content", "annotations"), _JSON),
        ),
        "interaction": st.fixed_dictionaries(
            {"status": st.sampled_from(["completed", "requires_action", "failed", "incomplete"]) | _JSON},
            optional=dict.fromkeys(("id", "usage", "errors", "continuation_token"), _JSON),
        ),
    },
)


@given(chunks=st.lists(_CHUNK, max_size=4))
def test_near_miss_chunks_keep_their_promises(chunks: list[Any]) -> None:
    body = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)
    reply, _ = accumulate("gemini-generate", body)
    assert bool(reply.calls) == (reply.completion is CALLS)
    assert not reply.calls or (reply.raw_reason == "STOP" and all(call.name for call in reply.calls))
    for chunk in chunks:
        plain = json.dumps(chunk).encode()
        adapter_for("gemini-generate").from_response(HttpResponse(200, {}, plain), REQUEST)


@given(events=st.lists(_EVENT, max_size=6), steps=st.lists(_STEP, max_size=3), status=_JSON)
def test_near_miss_interactions_keep_their_promises(events: list[Any], steps: list[Any], status: Any) -> None:
    body = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    reply, _ = accumulate("gemini-interactions", body)
    assert bool(reply.calls) == (reply.completion is CALLS)
    for said in (status, "requires_action", "completed"):
        plain = json.dumps({"id": "v1", "status": said, "steps": steps}).encode()
        whole = adapter_for("gemini-interactions").from_response(HttpResponse(200, {}, plain), REQUEST)
        assert not whole.calls or (said == "requires_action" and all(call.name for call in whole.calls))


@pytest.mark.parametrize("api", ["gemini-generate", "gemini-interactions"])
@given(body=st.binary(max_size=200))
def test_random_bytes_are_a_failure(api: str, body: bytes) -> None:
    assert accumulate(api, body)[0].completion is FAILED
