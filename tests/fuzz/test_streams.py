"""Accumulators under hypothesis: any split gives the same reply, no cut proposes what was not complete."""

import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.base import Completion
from adapters.registry import ADAPTERS
from tests.fuzz.targets import END_MARKS, Recorded, any_bytes, recorded_streams
from tests.shared import shared

APIS = sorted(ADAPTERS)
STREAMS = [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in recorded_streams()] or [
    pytest.param(None, id="absent")
]


@cache
def recorded(path: Path | None) -> Recorded:
    shared("wire")
    assert path is not None
    return Recorded(path)


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    return [body[a:b] for a, b in pairwise(places)]


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 61])
def test_pieces_of_one_size(path: Path | None, size: int) -> None:
    stream = recorded(path)
    whole = stream.play([stream.body])
    assert stream.play(stream.body[i : i + size] for i in range(0, len(stream.body), size)) == whole


@pytest.mark.parametrize("path", STREAMS)
@given(cuts=st.lists(st.integers(min_value=0, max_value=2**20), max_size=12))
@settings(max_examples=25, deadline=None)
def test_any_split_gives_the_same_reply(path: Path | None, cuts: list[int]) -> None:
    stream = recorded(path)
    assert stream.play(pieces(stream.body, cuts)) == stream.play([stream.body])


@pytest.mark.parametrize("path", STREAMS)
def test_every_line_ending_gives_the_same_reply(path: Path | None) -> None:
    stream = recorded(path)
    plain = stream.body.replace(b"\r\n", b"\n")
    for ending in (b"\r\n", b"\r"):
        body = plain.replace(b"\n", ending)
        assert stream.play([body]) == stream.play([plain])
        assert stream.play(body[i : i + 1] for i in range(len(body))) == stream.play([plain])


@pytest.mark.parametrize("path", STREAMS)
def test_no_cut_proposes_what_was_not_complete(path: Path | None) -> None:
    """Every length of small streams; of large ones the last bytes and some before them."""
    stream = recorded(path)
    whole = stream.play([stream.body])
    size = len(stream.body)
    lengths = set(range(max(0, size - 400), size)) | set(random.Random(size).sample(range(size), min(size, 200)))
    for length in lengths:
        prefix = stream.body[:length]
        reply = stream.play([prefix])
        if reply.completion is Completion.TOOL_PROPOSALS:
            assert END_MARKS[stream.api] in prefix
            assert reply.calls == whole.calls
        elif END_MARKS[stream.api] not in prefix:
            assert reply.completion in (Completion.API_FAILURE, whole.completion)


@pytest.mark.parametrize("api", APIS)
@given(chunks=st.lists(st.binary(max_size=60), max_size=8))
@settings(deadline=None)
def test_random_bytes(api: str, chunks: list[bytes]) -> None:
    any_bytes(api, chunks)
    any_bytes(api, [b"data: ", *chunks])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=6) | st.just("\ud83d"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_WORDS = (
    *("type", "id", "index", "delta", "item", "output_index", "item_id", "response", "status", "output", "error"),
    *("choices", "message", "content", "tool_calls", "function", "name", "arguments", "finish_reason", "usage"),
    *("candidates", "parts", "functionCall", "finishReason", "content_block", "partial_json", "step", "interaction"),
)
_TYPES = (
    *("response.created", "response.output_item.added", "response.output_item.done", "response.output_text.delta"),
    *("response.function_call_arguments.done", "response.completed", "response.incomplete", "response.failed", "error"),
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"),
    *("message_stop", "step.start", "step.delta", "step.stop", "interaction.completed", "function_call", "tool_use"),
    *("message", "custom_tool_call", "completed", "tool_calls", "stop", "STOP", "requires_action"),
)
_NEAR = st.recursive(
    st.sampled_from(_TYPES) | _JSON,
    lambda inner: st.dictionaries(st.sampled_from(_WORDS), inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=16,
)


@pytest.mark.parametrize("api", APIS)
@given(events=st.lists(st.tuples(st.sampled_from(_TYPES) | st.just(""), _NEAR), max_size=6))
@settings(deadline=None)
def test_events_that_nearly_mean_something(api: str, events: list[tuple[str, Any]]) -> None:
    lines = [f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events]
    any_bytes(api, lines)


@pytest.mark.parametrize("path", STREAMS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_damaged_streams_keep_the_promises(path: Path | None, data: st.DataObject) -> None:
    """Lines lost, repeated and out of order, bytes changed: the promises that `play` checks still hold."""
    stream = recorded(path)
    lines = stream.body.split(b"\n")
    order = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=40))
    stream.play([b"\n\n".join(lines[i] for i in order) + b"\n\n"])
    body = bytearray(stream.body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=5)):
        body[place] = data.draw(st.integers(0, 255))
    stream.play([bytes(body)])
