"""Ours against OpenAI's SDK: its types take what we send, it reads the recordings as we do, and its client talks to the
scripted server. Where the two disagree, the SDK repairs, glues or rejects what servers really send: named below."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from adapters.base import Completion, Endpoint, ModelRequest, Reply, ToolChoice, ToolDeclaration
from adapters.registry import adapter_for
from examples.scripted_model.process import ScriptedModel
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import ModelReply, Notice, Observation, UserText
from tests.shared import SHARED, shared
from tests.wire import http_response, reply_of, streamed, supported

openai = pytest.importorskip("openai", reason="the dependency group `sdk` is not installed")
httpx2 = pytest.importorskip("httpx2")
chat_params = pytest.importorskip("openai.types.chat.completion_create_params")
responses_params = pytest.importorskip("openai.types.responses.response_create_params")
pytestmark = pytest.mark.filterwarnings("ignore")  # the SDK warns about its own fields

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "n": {"type": ["integer", "null"]}},
    "required": ["id"],
    "additionalProperties": False,
}
TOOLS = (ToolDeclaration("orders.get", "Get.", SCHEMA), ToolDeclaration("ping", "Ping.", {"type": "object"}))
FOLDERS = ("openai-responses", "openai-chat", "azure-chat", "compat-chat")
APIS = ("openai-responses", "openai-chat")


# --- what we send ----------------------------------------------------------------------------------------------------

TYPES = {
    ("openai-chat", False): TypeAdapter[Any](chat_params.CompletionCreateParamsNonStreaming),
    ("openai-chat", True): TypeAdapter[Any](chat_params.CompletionCreateParamsStreaming),
    ("openai-responses", False): TypeAdapter[Any](responses_params.ResponseCreateParamsNonStreaming),
    ("openai-responses", True): TypeAdapter[Any](responses_params.ResponseCreateParamsStreaming),
}
FOREIGN = ModelReply(
    "anthropic-messages", "r", "So:", (ProposedCall("a", "ping", "{}"), ProposedCall("b", "ping", "{"))
)
SEEN = (Observation("b", "ping", "bad", is_error=True), Observation("a", "ping", "ok"))
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"output_schema": SCHEMA, "max_output_tokens": 9, "parameters": {"temperature": 0.5}},
    "foreign": {"items": (UserText("Go"), FOREIGN, *SEEN, Notice("Last turn."))},
    "auto": {},
    "required": {"tool_choice": ToolChoice("required"), "parallel": False},
    "none": {"tool_choice": ToolChoice("none")},
    "named": {"tool_choice": ToolChoice("named", ("ping",))},
    "allowed": {"tool_choice": ToolChoice("allowed", ("orders.get", "ping"), required=True)},
    "loose": {"tools": (ToolDeclaration("any", "Any.", {"type": "object"}, strict=False),)},
}


def _plain(value: Any) -> Any:
    """Iterables are validated while they are read."""
    if isinstance(value, Mapping):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_plain(member) for member in value]
    return value


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("base", ["https://api.openai.com/v1", "http://model.test/v1"])
def test_the_sdk_types_take_our_requests(api: str, stream: bool, name: str, base: str) -> None:
    fields = {"items": (UserText("Hi"),), "tools": TOOLS, **REQUESTS[name]}
    request = ModelRequest("gpt-5", "Be brief.", stream=stream, **fields)
    body = json.loads(adapter_for(api).to_request(request, Endpoint(base)).body)
    assert _plain(TYPES[api, stream].validate_python(body)) == body  # nothing unknown, nothing converted


@pytest.mark.parametrize("folder", ["openai-responses", "openai-chat"])  # others have fields that the SDK does not know
def test_the_sdk_types_take_what_we_carry_back(folder: str) -> None:
    """The next request after a recorded reply, its items as they came."""
    for path in sorted((shared("wire") / folder).glob("*.json")):
        recorded = json.loads(path.read_text())
        reply = reply_of(recorded)
        if reply.completion is not Completion.TOOL_PROPOSALS or "custom" in path.name or "server" in path.name:
            continue
        api = supported(recorded) or ""
        kept = ModelReply(api, reply.response_id, reply.text, reply.calls, reply.items)
        results = [Observation(call.call_id, call.name, "{}") for call in reply.calls]
        request = ModelRequest("gpt-5", "", (UserText("Hi"), kept, *results), TOOLS)
        body = json.loads(adapter_for(api).to_request(request, Endpoint("http://model.test")).body)
        _plain(TYPES[api, False].validate_python(body))
        sent = body.get("input") or body["messages"]
        assert sent[1 : 1 + len(reply.items)] == list(reply.items)


# --- what it reads ---------------------------------------------------------------------------------------------------

# The SDK fails on these (no index, a gap, `type: null`, no message), or glues two calls to one.
BROKEN_FOR_THE_SDK = {
    "azure-chat/content-filter-001",
    "azure-chat/parallel-calls-stream-001",
    "compat-chat/one-call-stream-003",
    "compat-chat/index-gap-stream-001",
    "compat-chat/no-index-stream-001",
    "compat-chat/no-index-stream-002",
    "compat-chat/same-index-parallel-stream-001",
}
READABLE = (Completion.FINAL_TEXT, Completion.TOOL_PROPOSALS, Completion.REFUSAL)


def _client(body: bytes, content_type: str) -> Any:
    def answer(_: Any) -> Any:
        return httpx2.Response(200, headers={"content-type": content_type}, content=body)

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="none", base_url="http://model.test/v1", http_client=transport, max_retries=0)


def _sdk_response(response: Any) -> tuple[str, list[tuple[str, str, str]], tuple[Any, Any]]:
    calls = [(i.call_id, i.name, i.arguments) for i in response.output if i.type == "function_call"]
    usage = response.usage
    return response.output_text, calls, (usage and usage.input_tokens, usage and usage.output_tokens)


def _sdk_completion(completion: Any) -> tuple[str, list[tuple[str, str, str]], tuple[Any, Any]]:
    message = completion.choices[0].message
    calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    usage = completion.usage
    return message.content or "", calls, (usage and usage.prompt_tokens, usage and usage.completion_tokens)


def _read_by_sdk(api: str, client: Any, stream: bool) -> tuple[str, list[tuple[str, str, str]], tuple[Any, Any]]:
    if api == "openai-responses":
        if not stream:
            return _sdk_response(client.responses.create(model="m", input="Hi"))
        events = list(client.responses.create(model="m", input="Hi", stream=True))
        return _sdk_response(events[-1].response)
    said = [{"role": "user", "content": "Hi"}]
    if not stream:
        return _sdk_completion(client.chat.completions.create(model="m", messages=said))
    with client.chat.completions.stream(model="m", messages=said) as events:
        return _sdk_completion(events.get_final_completion())


def _ours(reply: Reply) -> tuple[str, list[tuple[str, str, str]], tuple[Any, Any]]:
    calls = [(call.call_id, call.name, call.arguments_text) for call in reply.calls]
    return reply.text, calls, (reply.usage.input, reply.usage.output)


def _recordings() -> list[Any]:
    found = [path for folder in FOLDERS for path in sorted((SHARED / "wire" / folder).glob("*.json"))]
    named = [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in found if "custom" not in path.name]
    return named or [pytest.param(None, id="absent")]


@pytest.mark.parametrize("path", _recordings())
def test_the_sdk_reads_the_recordings_as_we_do(path: Path | None) -> None:
    shared("wire")
    assert path is not None
    recorded = json.loads(path.read_text())
    reply = reply_of(recorded)
    if reply.completion not in READABLE or recorded["status"] != 200:
        return
    response, stream = http_response(recorded), streamed(recorded)
    api = supported(recorded) or ""
    client = _client(response.body, "text/event-stream" if stream else "application/json")
    ours = _ours(reply)
    try:
        theirs = _read_by_sdk(api, client, stream)
    except openai.ContentFilterFinishReasonError:
        assert reply.completion is Completion.REFUSAL
        return
    except (IndexError, TypeError, AssertionError, AttributeError):
        assert f"{path.parent.name}/{path.stem}" in BROKEN_FOR_THE_SDK
        return
    if f"{path.parent.name}/{path.stem}" in BROKEN_FOR_THE_SDK:
        assert theirs != ours
    else:
        assert theirs == ours


# --- its client against the scripted server --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as running:
        yield running


def _ask(model: ScriptedModel, api: str, stream: bool) -> tuple[str, list[tuple[str, str, str]], tuple[Any, Any]]:
    with openai.OpenAI(api_key="none", base_url=f"{model.url}/v1", max_retries=0) as client:
        kept: Callable[..., Any] = (
            client.responses.create if api == "openai-responses" else client.chat.completions.create
        )
        said = [{"role": "user", "content": "Please. [script:sdk]"}]
        if not stream:
            if api == "openai-responses":
                return _sdk_response(kept(model="m", input=said))
            return _sdk_completion(kept(model="m", messages=said))
        if api == "openai-responses":
            with client.responses.stream(model="m", input=said) as events:
                return _sdk_response(events.get_final_response())
        options = {"include_usage": True}
        with client.chat.completions.stream(model="m", messages=said, stream_options=options) as events:
            return _sdk_completion(events.get_final_completion())


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_client_reads_the_scripted_server(model: ScriptedModel, api: str, stream: bool) -> None:
    calls = [{"name": "get", "arguments": {"id": "ä€😀"}, "call_id": "c1"}, {"name": "ping", "call_id": "c2"}]
    model.add({"id": "sdk", "turns": [{"calls": calls, "reasoning": "Hm."}]})
    text, proposed, usage = _ask(model, api, stream)
    assert [(call_id, name, json.loads(arguments)) for call_id, name, arguments in proposed] == [
        ("c1", "get", {"id": "ä€😀"}),
        ("c2", "ping", {}),
    ]
    assert (text, usage[1]) == ("", 20)
    model.add({"id": "sdk", "turns": [{"text": "Grüße 😀"}]})
    assert _ask(model, api, stream)[0] == "Grüße 😀"
    model.add({"id": "sdk", "turns": [{"text": "no", "fault": {"status": 429}}]})
    with pytest.raises(openai.RateLimitError):
        _ask(model, api, stream)
    model.add({"id": "sdk", "turns": [{"text": "no", "fault": {"error": True}}]})
    if stream:
        with pytest.raises(openai.APIError):
            _ask(model, api, stream)
