"""What every parser and accumulator must hold for any input; shared by the hypothesis tests and the atheris target."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from adapters.base import Accumulator, Completion, HttpResponse, ModelRequest, Reply
from adapters.registry import ADAPTERS, adapter_for
from tests.shared import SHARED
from tests.wire import http_response, model_request, streamed, supported

REQUEST = ModelRequest("m", "", (), stream=True)
HEAD = HttpResponse(200, {"content-type": "text/event-stream"}, b"")

# Without these bytes no reply of the format has ended; with them it need not have.
END_MARKS = {
    "openai-responses": b"response.completed",
    "openai-chat": b'"finish_reason"',
    "anthropic-messages": b"message_stop",
    "gemini-generate": b"finishReason",
    "gemini-interactions": b"interaction.completed",
}


def recorded_streams() -> list[Path]:
    """Recorded streams of the formats that have an adapter; empty where the corpus is absent."""
    found = sorted((SHARED / "wire").glob("*/*.json"))
    read = [(path, json.loads(path.read_text())) for path in found]
    return [path for path, recorded in read if supported(recorded) and streamed(recorded)]


class Recorded:
    """One recorded stream, to be played in any pieces."""

    def __init__(self, path: Path) -> None:
        recorded = json.loads(path.read_text())
        api = supported(recorded)
        assert api is not None
        self.api = api
        response = http_response(recorded)
        self.body = response.body
        self._head = HttpResponse(response.status, response.headers, b"")
        self._request = model_request(recorded)

    def play(self, chunks: Iterable[bytes]) -> Reply:
        return play(adapter_for(self.api).accumulator(self._head, self._request), chunks)


def play(accumulator: Accumulator, chunks: Iterable[bytes]) -> Reply:
    """Feed everything, as a transport that does not stop early would, and check what holds for any reply."""
    for chunk in chunks:
        for progress in accumulator.feed(chunk):
            progress.text.encode()  # can be shown and stored
    reply = accumulator.finish()
    assert bool(reply.calls) == (reply.completion is Completion.TOOL_PROPOSALS)
    assert (reply.failure is not None) == (reply.completion is Completion.API_FAILURE)
    assert reply.completion is not Completion.API_FAILURE or reply.items == ()
    _storable([reply.text, reply.refusal, reply.items, [(c.call_id, c.name, c.arguments_text) for c in reply.calls]])
    return reply


def _storable(value: Any) -> None:
    """PostgreSQL takes no NUL and no lone surrogate, canonical JSON no NaN."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    assert "\\u0000" not in text


def any_bytes(api: str, chunks: Sequence[bytes]) -> None:
    """The law for input that no provider wrote."""
    reply = play(ADAPTERS[api].accumulator(HEAD, REQUEST), chunks)
    body = b"".join(chunks)
    assert reply == play(ADAPTERS[api].accumulator(HEAD, REQUEST), [body]), "the split of the bytes decided something"
    if reply.completion is Completion.TOOL_PROPOSALS and body.lstrip().startswith((b"data:", b"event:")):
        assert END_MARKS[api] in body
    ADAPTERS[api].from_response(HttpResponse(200, {}, body), REQUEST)
