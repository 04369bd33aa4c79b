"""Streams of Anthropic Messages, cut and split anywhere, and streams that break the contract."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Completion, HttpResponse, ModelRequest, Progress, Reply
from adapters.registry import adapter_for
from tests.shared import SHARED, shared
from tests.wire import http_response, model_request, reply_of

API = "anthropic-messages"
ADAPTER = adapter_for(API)
CALLS, REFUSAL, CUT, FAILED = (
    Completion.TOOL_PROPOSALS,
    Completion.REFUSAL,
    Completion.TRUNCATED,
    Completion.API_FAILURE,
)


def _load(path: Path | None) -> dict[str, Any]:
    shared("wire")
    assert path is not None
    recorded: dict[str, Any] = json.loads(path.read_text())
    return recorded


def _streams() -> list[Any]:
    found = [path for path in sorted((SHARED / "wire" / API).glob("*.json")) if '"stream": "' in path.read_text()]
    return [pytest.param(path, id=path.stem) for path in found] or [pytest.param(None, id="absent")]


def _played(recorded: dict[str, Any], chunks: list[bytes]) -> tuple[Reply, list[Progress], bool]:
    response = http_response(recorded)
    accumulator = ADAPTER.accumulator(HttpResponse(200, response.headers, b""), model_request(recorded))
    progress = [piece for chunk in chunks for piece in accumulator.feed(chunk)]
    done = accumulator.done
    return accumulator.finish(), progress, done


def _joined(progress: list[Progress]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for piece in progress:
        joined[piece.kind] = joined.get(piece.kind, "") + (piece.name or piece.text)
    return joined


@pytest.mark.parametrize("path", _streams())
@given(data=st.data())
def test_any_split_gives_the_same_reply(path: Path, data: st.DataObject) -> None:
    recorded = _load(path)
    body = http_response(recorded).body
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    whole, told, _ = _played(recorded, [body])
    split, told_split, _ = _played(recorded, chunks)
    assert split == whole
    assert _joined(told_split) == _joined(told)


@pytest.mark.parametrize("path", _streams())
def test_byte_by_byte_and_with_other_line_ends(path: Path) -> None:
    recorded = _load(path)
    body = http_response(recorded).body
    whole, told, _ = _played(recorded, [body])
    assert _played(recorded, [bytes([byte]) for byte in body])[0] == whole
    crlf = body.replace(b"\n", b"\r\n")
    assert _played(recorded, [crlf[:7], crlf[7:]])[0] == whole
    assert whole.completion is FAILED or _joined(told).get("text", "") == whole.text


@pytest.mark.parametrize("path", _streams())
def test_a_cut_stream_proposes_nothing(path: Path) -> None:
    """At every length: either the whole reply, with its end seen, or an interrupted one."""
    recorded = _load(path)
    body = http_response(recorded).body
    whole, _, _ = _played(recorded, [body])
    for length in range(0, len(body), 1 if len(body) < 4000 else 7):
        reply, _, done = _played(recorded, [body[:length]])
        if reply.completion is FAILED:
            assert (reply.calls, reply.items) == ((), ())
            assert reply.failure is not None
            assert reply.failure.retryable
        else:
            assert reply == whole
            assert done or b'"message_stop"' in body[:length]


def _events(*events: dict[str, Any]) -> Reply:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    accumulator = ADAPTER.accumulator(HttpResponse(200, {"request-id": "req_1"}, b""), _REQUEST)
    accumulator.feed(body)
    return accumulator.finish()


def _delta(index: int, piece: str) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "input_json_delta", "partial_json": piece},
    }


_REQUEST = ModelRequest("m", "", ())
START = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3}}}
OPEN = {
    "type": "content_block_start",
    "index": 0,
    "content_block": {"type": "tool_use", "id": "c", "name": "ping", "input": {}},
}
CLOSE = {"type": "content_block_stop", "index": 0}
STOP = {"type": "message_stop"}


def _end(reason: str | None = "tool_use", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def test_a_sound_stream_with_odd_things_in_between() -> None:
    news = {"type": "brand_new_event", "index": 0, "x": [1]}
    found = _events(START, {"type": "ping"}, OPEN, news, _delta(0, ""), CLOSE, _end(output_tokens=5), _end(), STOP)
    assert (found.completion, found.calls[0].arguments_text) == (CALLS, "{}")
    assert (found.response_id, found.request_id, found.model) == ("msg_1", "req_1", "m")
    assert (found.usage.input, found.usage.output, found.usage.cached) == (3, 5, None)
    assert _events(START, OPEN, CLOSE, _end(), STOP, {"type": "error", "error": {}}).completion is CALLS


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ((START, OPEN, CLOSE, STOP), "INTERRUPTED"),  # no stop reason
        ((START, OPEN, CLOSE, _end()), "INTERRUPTED"),  # no end
        ((START, OPEN, CLOSE, _end(None), STOP), "INTERRUPTED"),
        ((), "INTERRUPTED"),
        ((START, OPEN, _end(), STOP), "UNEXPECTED_SHAPE"),  # the call was never completed
        ((OPEN, CLOSE, _end(), STOP), "UNEXPECTED_SHAPE"),  # the beginning is missing
        ((START, OPEN, _delta(1, "{}"), CLOSE, _end(), STOP), "UNEXPECTED_SHAPE"),
        ((START, OPEN, CLOSE, _delta(0, "{}"), _end(), STOP), "UNEXPECTED_SHAPE"),
        ((START, OPEN, OPEN, CLOSE, _end(), STOP), "UNEXPECTED_SHAPE"),
        ((START, START, OPEN, CLOSE, _end(), STOP), "UNEXPECTED_SHAPE"),
        (({"type": "error", "error": {"type": "overloaded_error"}},), "OVERLOADED"),
        ((START, OPEN, CLOSE, _end(), {"type": "error", "error": {"type": "api_error"}}, STOP), "SERVER_ERROR"),
    ],
)
def test_an_unsound_stream_proposes_nothing(events: Any, code: str) -> None:
    found = _events(*events)
    assert (found.completion, found.calls, found.items) == (FAILED, (), ())
    assert found.failure is not None
    assert found.failure.code == code


def test_cut_and_refused_calls_are_no_proposals_and_a_pause_keeps_its_blocks() -> None:
    for reason, completion in (("max_tokens", CUT), ("refusal", REFUSAL)):
        assert _events(START, OPEN, _delta(0, '{"a": "'), _end(reason), STOP).completion is completion
    assert _events(START, OPEN, _end("pause_turn"), STOP).completion is FAILED  # what we have is not what was said


@pytest.mark.parametrize(
    ("pieces", "text", "kept"),
    [
        (('{"a"', ":1}"), '{"a":1}', {"a": 1}),
        (('{"a":1,"a":2}',), '{"a":1,"a":2}', {"a": 2}),
        (('{"a":',), '{"a":', {"INVALID_JSON": '{"a":'}),
        (("[1]",), "[1]", {"INVALID_JSON": "[1]"}),
        (("", ""), "{}", {}),
    ],
)
def test_argument_text_is_what_was_streamed(pieces: tuple[str, ...], text: str, kept: dict[str, Any]) -> None:
    found = _events(START, OPEN, *(_delta(0, piece) for piece in pieces), CLOSE, _end(), STOP)
    assert found.calls[0].arguments_text == text
    assert found.items[0]["input"] == kept


def test_a_server_that_does_not_stream_is_read_whole() -> None:
    recorded = _load(SHARED / "wire" / API / "parallel-calls-001.json")
    body = json.dumps(recorded["response"], indent=1).encode()
    reply, progress, _ = _played(recorded, [body[:100], body[100:]])
    assert reply == reply_of(recorded)
    assert not progress


@given(body=st.binary(max_size=300) | st.lists(st.sampled_from([START, OPEN, CLOSE, STOP, _end(), 3, None])).map(str))
def test_random_bytes_never_raise_and_never_propose(body: bytes | str) -> None:
    accumulator = ADAPTER.accumulator(HttpResponse(200, {}, b""), _REQUEST)
    accumulator.feed(body if isinstance(body, bytes) else body.encode())
    assert accumulator.finish().completion is FAILED


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
_KINDS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "error")
_NEAR = st.fixed_dictionaries(
    {"type": st.sampled_from([*_KINDS, "message_stop"])},
    optional={
        "index": st.sampled_from([0, 1]) | _JSON,
        "message": _JSON | st.just(START["message"]),
        "content_block": _JSON | st.just(OPEN["content_block"]),
        "delta": _JSON | st.fixed_dictionaries({"type": st.just("input_json_delta"), "partial_json": _JSON}),
        "usage": _JSON,
        "error": _JSON,
    },
)


@given(events=st.lists(_NEAR | st.sampled_from([START, OPEN, CLOSE, _end(), STOP]), max_size=9))
def test_near_miss_streams_keep_their_promises(events: list[Any]) -> None:
    found = _events(*events)
    assert bool(found.calls) == (found.completion is CALLS)
    if found.calls:
        kinds = [event["type"] for event in events]
        assert "message_stop" in kinds
        assert kinds.index("content_block_stop") < kinds.index("message_stop")
