"""Google's SDK accepts what we send, reads the recordings as we do, and talks to the scripted server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from adapters.arguments import parse_arguments
from adapters.base import Completion, Endpoint
from adapters.registry import adapter_for
from examples.scripted_model.process import ScriptedModel
from orchestrator.domain.transcript import Notice, Observation
from tests.adapters.test_gemini import CALLS, paths, recording, reply_of
from tests.adapters.test_gemini_requests import (
    ACTION,
    FOREIGN,
    FOREIGN_RESULTS,
    GENERATE,
    HELLO,
    INTERACTIONS,
    RESULTS,
    candidate,
    kept,
    reply,
    request,
)

genai = pytest.importorskip("google.genai")
types = pytest.importorskip("google.genai.types")
interactions = pytest.importorskip("google.genai._gaos.types.interactions")
# The SDK warns about its own fields and about replies without text.
pytestmark = pytest.mark.filterwarnings("ignore")

_CALLED = reply(
    GENERATE,
    candidate(
        {"functionCall": {"name": "refund", "args": {"order": "A"}, "id": "abc"}, "thoughtSignature": "c2ln"},
        {"functionCall": {"name": "refund", "args": {"order": "B"}}},
    ),
)
_OBSERVED = [Observation(call.call_id, call.name, '{"n": 1}') for call in _CALLED.calls]
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


# --- what we send ----------------------------------------------------------------------------------------------------

REQUESTS = {
    "plain": request(max_output_tokens=9, output_schema=_SCHEMA, parameters={"temperature": 0.5}),
    "calls": request(HELLO, kept(GENERATE, _CALLED), *_OBSERVED, Notice("Last turn.")),
    "foreign": request(HELLO, FOREIGN, *FOREIGN_RESULTS),
    "steps": request(HELLO, kept(INTERACTIONS, reply(INTERACTIONS, ACTION)), *RESULTS),
    "stream": request(stream=True),
}


def body_of(api: str, name: str) -> Any:
    return json.loads(adapter_for(api).to_request(REQUESTS[name], Endpoint("https://host", "key")).body)


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_generate_requests_fit_the_types(name: str) -> None:
    body = body_of(GENERATE, name)
    for content in body.pop("contents"):
        types.Content.model_validate(content)
    for tool in body.pop("tools"):
        types.Tool.model_validate(tool)
    types.Content.model_validate(body.pop("systemInstruction"))
    types.ToolConfig.model_validate(body.pop("toolConfig"))
    types.GenerationConfig.model_validate(body.pop("generationConfig", {}))
    assert body == {}


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_interactions_requests_fit_the_types(name: str) -> None:
    read = interactions.CreateModelInteraction.model_validate(body_of(INTERACTIONS, name))
    assert not read.model_extra
    assert read.generation_config is None or not read.generation_config.model_extra
    assert all(tool.type == "function" and not tool.model_extra for tool in read.tools)
    assert all(type(step).__name__ != "UnknownStep" and not step.model_extra for step in read.input)


# --- what we read ----------------------------------------------------------------------------------------------------


class _Replay(ThreadingHTTPServer):
    body = b""
    kind = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, _Replay)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", self.server.kind)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def replay() -> Iterator[_Replay]:
    server = _Replay(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def client(url: str, version: str = "v1beta") -> Iterator[Any]:
    opened = genai.Client(api_key="key", http_options={"base_url": url, "api_version": version})
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def replaying(server: _Replay, recorded: dict[str, Any]) -> Iterator[Any]:
    streamed = "stream" in recorded
    server.kind = "text/event-stream" if streamed else "application/json"
    server.body = (recorded["stream"] if streamed else json.dumps(recorded["response"])).encode()
    with client(f"http://127.0.0.1:{server.server_port}") as opened:
        yield opened


def usable(recorded: dict[str, Any]) -> bool:
    """The SDK raises on errors, and reads an array only as a stream of its own kind."""
    return recorded["status"] < 300 and isinstance(recorded.get("response", {}), dict)


@pytest.mark.parametrize("path", [p for p in paths() if "generate" in str(p.id)])
def test_generate_recordings_read_the_same(replay: _Replay, path: Path | None) -> None:
    recorded = recording(path)
    ours = reply_of(recorded)
    if not usable(recorded) or recorded["scenario"] in ("stream-error", "partial-args-stream"):
        return
    config = {"automatic_continuation": False}
    with replaying(replay, recorded) as sdk:
        if "stream" in recorded:
            chunks = list(sdk.models.generate_content_stream(model="m", contents="x", config=config))
        else:
            chunks = [sdk.models.generate_content(model="m", contents="x", config=config)]
    parts = [part for chunk in chunks for part in _parts(chunk)]
    assert ours.text == "".join(part.text for part in parts if part.text and not part.thought)
    if ours.completion is CALLS:
        calls = [part.function_call for part in parts if part.function_call]
        assert [(call.name, call.args or {}) for call in calls] == _calls(ours)
        assert all(call.id in (None, ours.calls[index].call_id) for index, call in enumerate(calls))
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata][-1]
    told = (usage.candidates_token_count, usage.thoughts_token_count)
    assert ours.usage.input == usage.prompt_token_count
    assert ours.usage.output == (None if told == (None, None) else sum(count or 0 for count in told))
    assert ours.usage.cached == usage.cached_content_token_count


def _parts(chunk: Any) -> list[Any]:
    content = chunk.candidates[0].content if chunk.candidates else None
    return (content.parts or []) if content else []


def _calls(ours: Any) -> list[tuple[str, Any]]:
    return [(call.name, parse_arguments(call.arguments_text)) for call in ours.calls]


@pytest.mark.parametrize("path", [p for p in paths() if "interactions" in str(p.id)])
def test_interactions_recordings_read_the_same(replay: _Replay, path: Path | None) -> None:
    recorded = recording(path)
    ours = reply_of(recorded)
    if not usable(recorded) or recorded["scenario"] in ("stream-error", "stream-interrupted"):
        return
    with replaying(replay, recorded) as sdk:
        if "stream" in recorded:
            read = _events(sdk.interactions.create(model="m", input="x", stream=True, automatic_continuation=False))
        else:
            read = _whole(sdk.interactions.create(model="m", input="x", automatic_continuation=False))
    text, calls, status, usage = read
    assert ours.text == text
    if ours.completion is CALLS:
        assert [(c.call_id, c.name, parse_arguments(c.arguments_text)) for c in ours.calls] == calls
    if ours.completion is not Completion.REFUSAL:  # whose reason is the error inside its step
        assert ours.raw_reason == status
    assert ours.usage.input == (usage.total_input_tokens if usage else None)
    assert ours.usage.output == (usage.total_output_tokens + usage.total_thought_tokens if usage else None)


def _whole(read: Any) -> tuple[str, list[tuple[str, str, Any]], str, Any]:
    steps = read.steps or []
    text = [part.text for s in steps if s.type == "model_output" for part in s.content or () if part.type == "text"]
    calls = [(step.id, step.name, step.arguments) for step in steps if step.type == "function_call"]
    return "".join(text), calls, read.status, read.usage


def _events(events: Any) -> tuple[str, list[tuple[str, str, Any]], str, Any]:
    text, started, arguments, last = "", {}, {}, None
    for event in events:
        if event.event_type == "step.start" and event.step.type == "function_call":
            started[event.index] = event.step
        elif event.event_type == "step.delta" and event.delta.type == "arguments_delta":
            arguments[event.index] = arguments.get(event.index, "") + event.delta.arguments
        elif event.event_type == "step.delta" and event.delta.type == "text":
            text += event.delta.text
        elif event.event_type == "interaction.completed":
            last = event.interaction
    assert last is not None
    calls = [(s.id, s.name, json.loads(arguments.get(index, "{}"))) for index, s in started.items()]
    return text, calls, last.status, last.usage


# --- what the scripted server says -----------------------------------------------------------------------------------

SCRIPT = {
    "id": "sdk-gemini",
    "turns": [
        {
            "reasoning": "Hm, let me think.",
            "calls": [
                {"name": "draft", "arguments": {"order": "Ä1"}, "call_id": "c1"},
                {"name": "draft", "arguments": {}},
            ],
        },
        {"calls": [{"name": "submit", "arguments": {"draft_id": "$result.0.id"}}]},
        {"text": "Refunded, with a “quote”."},
    ],
}


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as running:
        running.add(SCRIPT)
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_generate_conversation(model: ScriptedModel, stream: bool) -> None:
    contents = [types.Content(role="user", parts=[types.Part(text="Please. [script:sdk-gemini]")])]
    with client(model.url) as sdk:
        for expected in ([("draft", {"order": "Ä1"}), ("draft", {})], [("submit", {"draft_id": "D"})], []):
            if stream:
                chunks = list(sdk.models.generate_content_stream(model="m", contents=contents))
            else:
                chunks = [sdk.models.generate_content(model="m", contents=contents)]
            parts = [part for chunk in chunks for part in _parts(chunk)]
            calls = [part.function_call for part in parts if part.function_call]
            assert [(call.name, call.args) for call in calls] == expected
            contents.append(types.Content(role="model", parts=parts))
            answers = [types.FunctionResponse(id=c.id, name=c.name, response={"output": {"id": "D"}}) for c in calls]
            contents.append(types.Content(role="user", parts=[types.Part(function_response=a) for a in answers]))
    assert "".join(part.text or "" for part in parts) == SCRIPT["turns"][2]["text"]  # type: ignore[index]
    assert chunks[-1].candidates[0].finish_reason.value == "STOP"
    assert chunks[-1].usage_metadata.candidates_token_count == 15


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_interactions_conversation(model: ScriptedModel, stream: bool, store: bool) -> None:
    said = {"type": "user_input", "content": [{"type": "text", "text": "Please. [script:sdk-gemini]"}]}
    steps: list[Any] = [said]
    previous: dict[str, Any] = {}
    with client(model.url) as sdk:
        for expected in ([("draft", {"order": "Ä1"}), ("draft", {})], [("submit", {"draft_id": "D"})], []):
            asked = {"model": "m", "input": steps, "store": store, **previous}
            if stream:
                text, calls, status, _ = _events(sdk.interactions.create(**asked, stream=True))
                ours = [{"type": "function_call", "id": i, "name": n, "arguments": a} for i, n, a in calls]
            else:
                read = sdk.interactions.create(**asked)
                text, calls, status, _ = _whole(read)
                ours = [step.model_dump(exclude_none=True) for step in read.steps]
            assert [(name, arguments) for _, name, arguments in calls] == expected
            results = [
                {"type": "function_result", "call_id": c[0], "name": c[1], "result": '{"id": "D"}'} for c in calls
            ]
            if store and not stream:
                previous, steps = {"previous_interaction_id": read.id}, results
            else:
                steps = [*steps, *ours, *results]
    assert (text, status) == (SCRIPT["turns"][2]["text"], "completed")  # type: ignore[index]
