"""python -m tests.wire FILE...: what the adapters make of recorded exchanges, one JSON line per exchange.

A `.json` file holds one exchange, a `.jsonl` file one a line (named `FILE:ID`). `arguments` is the parsed object, or
null with `argument_error` for a call that must not be dispatched: its text is not acceptable, or nobody offered it.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import HttpResponse, ModelRequest, Reply, ToolChoice, ToolDeclaration
from adapters.documents import as_list, as_object, as_text
from adapters.registry import ADAPTERS, adapter_for
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import UserText

# The recordings name who speaks a format; several servers speak one.
APIS = {
    "openai-responses": "openai-responses",
    "azure-responses": "openai-responses",
    "compat-responses": "openai-responses",
    "openai.responses": "openai-responses",
    "openai-chat": "openai-chat",
    "azure-chat": "openai-chat",
    "compat-chat": "openai-chat",
    "openai.chat_completions": "openai-chat",
    "anthropic-messages": "anthropic-messages",
    "anthropic.messages": "anthropic-messages",
    "gemini-generate": "gemini-generate",
    "vertex-generate": "gemini-generate",
    "gemini-interactions": "gemini-interactions",
}


_PATHS = {"/responses": "openai-responses", "/chat/completions": "openai-chat", "/messages": "anthropic-messages"}


def supported(recorded: dict[str, Any]) -> str | None:
    """The adapter's name for a recorded exchange, or None where there is none."""
    api = APIS.get(recorded["api"])
    if recorded["api"] == "error":  # refused requests, of any format or none: failures are read alike in all of them
        path = as_text(recorded.get("path"))
        api = next((name for end, name in _PATHS.items() if path.endswith(end)), "openai-chat")
    return api if api in ADAPTERS else None


def model_request(recorded: dict[str, Any]) -> ModelRequest:
    """What is known of the request in neutral form; the recorded one may be null."""
    body = as_object(recorded.get("request"))
    limits = ("max_output_tokens", "max_completion_tokens", "max_tokens")
    limit = next((body[name] for name in limits if isinstance(body.get(name), int)), None)
    return ModelRequest(
        model=as_text(body.get("model")) or "unknown",
        instructions=as_text(body.get("instructions")),
        items=(UserText("recorded"),),
        tools=tuple({tool.name: tool for tool in _tools(body)}.values()),
        tool_choice=ToolChoice("none") if _tools_off(body) else ToolChoice(),
        max_output_tokens=limit,
        stream=streamed(recorded),
    )


def _tools(body: dict[str, Any]) -> Iterator[ToolDeclaration]:
    for entry in map(as_object, as_list(body.get("tools"))):
        declared = as_list(entry.get("functionDeclarations")) or as_list(entry.get("function_declarations"))
        for tool in map(as_object, declared or [entry.get("function") or entry]):
            schema = as_object(tool.get("parameters") or tool.get("input_schema") or tool.get("parametersJsonSchema"))
            if as_text(tool.get("name")):
                yield ToolDeclaration(tool["name"], as_text(tool.get("description")), schema)


def _tools_off(body: dict[str, Any]) -> bool:
    """OpenAI's "none", Anthropic's {"type": "none"}, Gemini's mode NONE."""
    choice = body.get("tool_choice") or as_object(body.get("generation_config")).get("tool_choice")
    mode = as_object(as_object(body.get("toolConfig")).get("functionCallingConfig")).get("mode")
    return choice == "none" or as_object(choice).get("type") == "none" or mode == "NONE"


def streamed(recorded: dict[str, Any]) -> bool:
    """Whether the reply came as a stream: a refused request has a plain body even then."""
    return recorded["status"] < 300 and isinstance(_stream(recorded), str)


def _stream(recorded: dict[str, Any]) -> Any:
    return recorded.get("response_text") if recorded.get("stream") is True else recorded.get("stream")


def http_response(recorded: dict[str, Any]) -> HttpResponse:
    """The recorded answer; for a stream, its whole body."""
    body = _stream(recorded) if streamed(recorded) else recorded.get("response", recorded.get("response_text"))
    if body is None:  # a refused request whose body was kept under the other name
        body = _stream(recorded)
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = {name.lower(): str(value) for name, value in as_object(recorded.get("response_headers")).items()}
    if recorded.get("content_type"):
        headers["content-type"] = recorded["content_type"]
    return HttpResponse(recorded["status"], headers, raw)


def reply_of(recorded: dict[str, Any]) -> Reply:
    """As the transport would get it: streams through the accumulator, everything else whole."""
    api = supported(recorded)
    assert api is not None
    adapter, response, request = adapter_for(api), http_response(recorded), model_request(recorded)
    if not streamed(recorded):
        return adapter.from_response(response, request)
    accumulator = adapter.accumulator(HttpResponse(response.status, response.headers, b""), request)
    accumulator.feed(response.body)
    return accumulator.finish()


def describe(name: str, recorded: dict[str, Any]) -> dict[str, Any]:
    if supported(recorded) is None:
        return {"file": name, "completion": None, "unsupported": recorded["api"]}
    reply, request = reply_of(recorded), model_request(recorded)
    return {
        "file": name,
        "completion": reply.completion.value,
        "retryable": reply.failure.retryable if reply.failure else None,
        "calls": [_call(call, request) for call in reply.calls],
        "text": reply.text,
        "refusal": reply.refusal,
        "usage": {"input": reply.usage.input, "output": reply.usage.output},
        "raw_reason": reply.raw_reason,
    }


def _call(call: ProposedCall, request: ModelRequest) -> dict[str, Any]:
    shown: dict[str, Any] = {"call_id": call.call_id, "name": call.name, "arguments": None}
    if request.tool_choice.mode == "none":
        return {**shown, "argument_error": "TOOL_NOT_OFFERED"}
    if request.tools and call.name not in {tool.name for tool in request.tools}:
        return {**shown, "argument_error": "UNKNOWN_TOOL"}
    try:
        shown["arguments"] = parse_arguments(call.arguments_text)
    except ArgumentError as error:
        shown["argument_error"] = error.code
    return shown


def exchanges(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The exchanges of a file with their names."""
    if path.suffix != ".jsonl":
        yield str(path), json.loads(path.read_text())
        return
    for line in path.read_text().splitlines():
        recorded = json.loads(line)
        yield f"{path}:{recorded['id']}", recorded


def main() -> None:
    for argument in sys.argv[1:]:
        for name, recorded in exchanges(Path(argument)):
            print(json.dumps(describe(name, recorded)))


if __name__ == "__main__":
    main()
