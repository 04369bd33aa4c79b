"""Ours against Anthropic's SDK: its types take what we send, it reads the recordings as we do, and it talks to the
scripted server. Where the two disagree, on calls that were cut, the SDK repairs what must not be run."""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from adapters.anthropic_schema import strict_form
from adapters.arguments import parse_arguments
from adapters.base import Completion, Endpoint, HttpResponse, ModelRequest, Reply, ToolChoice, ToolDeclaration
from adapters.registry import adapter_for
from examples.scripted_model.process import ScriptedModel
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import ModelReply, Notice, Observation, TranscriptItem, UserText
from tests.shared import SHARED, shared
from tests.wire import http_response, reply_of, streamed

anthropic = pytest.importorskip("anthropic")
params = pytest.importorskip("anthropic.types.message_create_params")
# The SDK warns about models by their name and about its own fields.
pytestmark = pytest.mark.filterwarnings("ignore")

API = "anthropic-messages"
ADAPTER = adapter_for(API)
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^A"}, "n": {"type": ["integer", "null"]}},
    "required": ["id"],
    "additionalProperties": False,
}
TOOLS = (ToolDeclaration("orders.get", "Get.", SCHEMA), ToolDeclaration("ping", "Ping.", {"type": "object"}))


def _paths() -> list[Any]:
    found = sorted((SHARED / "wire" / API).glob("*.json"))
    return [pytest.param(path, id=path.stem) for path in found] or [pytest.param(None, id="absent")]


def _load(path: Path | None) -> dict[str, Any]:
    shared("wire")
    assert path is not None
    recorded: dict[str, Any] = json.loads(path.read_text())
    return recorded


def _kept(reply: Reply) -> ModelReply:
    return ModelReply(API, reply.response_id, reply.text, reply.calls, reply.items)


# --- what we send ----------------------------------------------------------------------------------------------------

FOREIGN = ModelReply("openai-chat", "r", "So:", (ProposedCall("f:0", "ping", "{}"), ProposedCall("b", "ping", "{")))
SEEN = (Observation("f:0", "ping", "ok"), Observation("b", "ping", "bad", is_error=True))
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"output_schema": SCHEMA, "max_output_tokens": 9, "parameters": {"stop_sequences": ["END"]}},
    "thinking": {"parameters": {"thinking": {"type": "enabled", "budget_tokens": 2000}, "container": "box"}},
    "hosted": {"parameters": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}},
    "foreign": {"items": (UserText("Go"), FOREIGN, *SEEN, Notice("Last turn."))},
    "named": {"tool_choice": ToolChoice("named", ("ping",)), "parallel": False},
    "any": {"tool_choice": ToolChoice("required")},
    "none": {"tool_choice": ToolChoice("none")},
    "allowed": {"tool_choice": ToolChoice("allowed", ("orders.get",))},
    "stream": {"stream": True},
}


# Kept: what they return is validated while it is read.
_TYPES = {
    False: TypeAdapter[Any](params.MessageCreateParamsNonStreaming),
    True: TypeAdapter[Any](params.MessageCreateParamsStreaming),
}


def _fits(request: ModelRequest) -> Any:
    """Validate against the SDK's types, strictly and to the last block: iterables are read to their end."""
    body = json.loads(ADAPTER.to_request(request, Endpoint("http://h")).body)
    read = _read(_TYPES[request.stream].validate_python(body))
    assert read.keys() == body.keys()
    # Every tool and every message survives with all of its fields; none was dropped as unknown.
    assert read.get("tools") == body.get("tools")
    assert read["messages"] == body["messages"]
    return body


def _read(value: Any) -> Any:
    if isinstance(value, BaseModel):  # the union also has the types of replies
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: _read(member) for name, member in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_read(member) for member in value]
    return value


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_requests_fit_the_types(name: str) -> None:
    changes = {"items": (UserText("Go"),), **REQUESTS[name]}
    _fits(ModelRequest("claude-sonnet-4-5", "Be brief.", tools=TOOLS, **changes))


@pytest.mark.parametrize("path", _paths())
def test_what_was_recorded_fits_when_it_is_sent_back(path: Path | None) -> None:
    """Except blocks that the SDK's own request type does not know (a beta's)."""
    reply = reply_of(_load(path))
    if reply.completion not in (Completion.TOOL_PROPOSALS, Completion.FINAL_TEXT, Completion.PAUSED):
        return
    if any(item["type"].startswith("advisor") or item.get("name") == "advisor" for item in reply.items):
        return
    results = [Observation(call.call_id, call.name, "ok") for call in reply.calls]
    items: tuple[TranscriptItem, ...] = (UserText("Go"), _kept(reply), *results)
    _fits(ModelRequest("claude-sonnet-4-5", "", items, TOOLS))


def test_the_sdks_own_transform_leaves_our_strict_schemas_alone() -> None:
    for entry in json.loads((shared("workloads") / "schemas" / "schemas.json").read_text()):
        form = strict_form(entry["parameters"])
        if form.strict:
            assert anthropic.transform_schema(form.schema) == form.schema, entry["id"]


# --- what we read ----------------------------------------------------------------------------------------------------


class _Replay(ThreadingHTTPServer):
    answer = HttpResponse(200, {}, b"")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, _Replay)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = self.server.answer
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

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


def _client(url: str) -> Any:
    return anthropic.Anthropic(api_key="key", base_url=url, max_retries=0)


def _ask(sdk: Any, *, stream: bool, **more: Any) -> Any:
    """The SDK's whole message in either mode."""
    asked = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "x"}], **more}
    if not stream:
        return sdk.messages.create(**asked)
    with sdk.messages.stream(**asked) as events:
        return events.get_final_message()


def _agree(ours: Reply, theirs: Any) -> None:
    assert ours.text == "".join(block.text for block in theirs.content if block.type == "text")
    assert ours.raw_reason == theirs.stop_reason
    assert (ours.response_id, ours.model) == (theirs.id, theirs.model)
    usage = theirs.usage
    cache = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert ours.usage.input == usage.input_tokens + cache
    assert ours.usage.output == usage.output_tokens
    calls = [(block.id, block.name, block.input) for block in theirs.content if block.type == "tool_use"]
    if ours.completion is Completion.TOOL_PROPOSALS:
        assert [(c.call_id, c.name, parse_arguments(c.arguments_text)) for c in ours.calls] == calls
    else:
        assert ours.calls == ()


@pytest.mark.parametrize("path", _paths())
def test_recordings_read_the_same(replay: _Replay, path: Path | None) -> None:
    recorded = _load(path)
    ours, scenario = reply_of(recorded), recorded["scenario"].removesuffix("-stream")
    response = http_response(recorded)
    kind = "text/event-stream" if streamed(recorded) else "application/json"
    replay.answer = HttpResponse(response.status, {"content-type": kind}, response.body)
    with _client(f"http://127.0.0.1:{replay.server_port}") as sdk:
        if recorded["status"] >= 400 or scenario == "stream-error":
            with pytest.raises(anthropic.APIStatusError):
                _ask(sdk, stream=streamed(recorded))
            assert ours.completion is Completion.API_FAILURE
        elif scenario == "stream-interrupted":
            # The SDK takes what it has for a message; or it stumbles over the cut line.
            assert ours.completion is Completion.API_FAILURE
        else:
            _agree(ours, _ask(sdk, stream=streamed(recorded)))


def test_the_sdk_makes_an_argument_object_of_a_call_that_was_cut(replay: _Replay) -> None:
    recorded = _load(shared("wire") / API / "truncated-call-stream-001.json")
    replay.answer = HttpResponse(200, {"content-type": "text/event-stream"}, http_response(recorded).body)
    with _client(f"http://127.0.0.1:{replay.server_port}") as sdk:
        theirs = _ask(sdk, stream=True)
    (call,) = [block for block in theirs.content if block.type == "tool_use"]
    assert isinstance(call.input, dict)
    ours = reply_of(recorded)
    assert (ours.completion, ours.calls) == (Completion.TRUNCATED, ())


# --- the scripted server ---------------------------------------------------------------------------------------------

SCRIPT = {
    "id": "trip",
    "turns": [
        {
            "reasoning": "Two of them.",
            "calls": [{"name": "ping", "arguments": {"id": "é"}}, {"name": "ping", "call_id": "toolu_mine"}],
        },
        {"calls": [{"name": "ping", "arguments": {"got": "$result.1.n"}}]},
        {"text": "Done — ok."},
    ],
}
ENDS = {
    "id": "ends",
    "turns": [{"refusal": "I will not."}, {"truncated": "So f"}],
}


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as model:
        yield model


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_talks_to_the_scripted_server(scripted: ScriptedModel, stream: bool) -> None:
    scripted.add(SCRIPT)
    said: list[Any] = [{"role": "user", "content": "Go [script:trip]"}]
    with _client(scripted.url) as sdk:
        first = _ask(sdk, stream=stream, messages=said)
        assert [block.type for block in first.content] == ["thinking", "tool_use", "tool_use"]
        assert [block.input for block in first.content[1:]] == [{"id": "é"}, {}]
        assert first.content[2].id == "toolu_mine"
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": json.dumps({"n": place})}
            for place, block in enumerate(first.content[1:])
        ]
        said += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        second = _ask(sdk, stream=stream, messages=said)
        assert [block.input for block in second.content] == [{"got": 1}]
        off = _ask(sdk, stream=stream, messages=said, tools=[_PING], tool_choice={"type": "none"})
        assert (off.stop_reason, off.content[0].text) == ("end_turn", "(tools are off)")
        with pytest.raises(anthropic.BadRequestError, match="tool_result"):
            _ask(sdk, stream=stream, messages=[*said[:2], {"role": "user", "content": "And?"}])


_PING = {"name": "ping", "input_schema": {"type": "object"}}


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_reads_the_other_ends(scripted: ScriptedModel, stream: bool) -> None:
    scripted.add(ENDS)
    said: list[Any] = [{"role": "user", "content": "Go [script:ends]"}]
    with _client(scripted.url) as sdk:
        refused = _ask(sdk, stream=stream, messages=said)
        assert (refused.stop_reason, refused.stop_details.explanation) == ("refusal", "I will not.")
        said += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Please."}]
        cut = _ask(sdk, stream=stream, messages=said)
        assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "So f")


@pytest.mark.parametrize("stream", [False, True])
def test_our_adapter_and_the_sdk_hear_the_same_from_it(scripted: ScriptedModel, stream: bool) -> None:
    scripted.add({"id": "same", "turns": SCRIPT["turns"][:1]}, {"id": "error", "turns": [_FAULTY]})  # type: ignore[index]
    request = ModelRequest("m", "", (UserText("[script:same]"),), TOOLS, stream=stream)
    sent = ADAPTER.to_request(request, Endpoint(scripted.url, "key"))
    with _client(scripted.url) as sdk:
        theirs = _ask(sdk, stream=stream, messages=[{"role": "user", "content": "[script:same]"}], tools=[_PING])
        with pytest.raises(anthropic.APIStatusError):
            _ask(sdk, stream=stream, messages=[{"role": "user", "content": "[script:error]"}])
    assert [(block.name, block.input) for block in theirs.content if block.type == "tool_use"] == [
        (call.name, parse_arguments(call.arguments_text)) for call in _ours(sent, request).calls
    ]


_FAULTY = {"text": "never heard", "fault": {"status": 529}}


def _ours(sent: Any, request: ModelRequest) -> Reply:
    httpx = pytest.importorskip("httpx")
    with httpx.Client(trust_env=False) as client:
        got = client.post(sent.url, headers=dict(sent.headers), content=sent.body)
    head = HttpResponse(got.status_code, dict(got.headers), b"" if request.stream else got.content)
    if not request.stream:
        return ADAPTER.from_response(head, request)
    accumulator = ADAPTER.accumulator(head, request)
    accumulator.feed(got.content)
    return accumulator.finish()
