"""python -m tests.wire FILE...: what the adapters make of recorded exchanges, one JSON line per file."""

import json
import sys
from pathlib import Path
from typing import Any

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import HttpResponse, ModelRequest, Reply, ToolDeclaration
from adapters.documents import as_list, as_object, as_text
from adapters.registry import ADAPTERS, adapter_for
from orchestrator.domain.transcript import UserText

# The corpus names who speaks a format; several servers speak one.
APIS = {
    "openai-responses": "openai-responses",
    "azure-responses": "openai-responses",
    "compat-responses": "openai-responses",
    "openai-chat": "openai-chat",
    "azure-chat": "openai-chat",
    "compat-chat": "openai-chat",
}


def supported(recorded: dict[str, Any]) -> str | None:
    """The adapter's name for a recorded exchange, or None where there is none yet."""
    api = APIS.get(recorded["api"])
    return api if api in ADAPTERS and "stream" not in recorded else None


def model_request(recorded: dict[str, Any]) -> ModelRequest:
    """What is known of the request in neutral form; the recorded one may be null."""
    body = as_object(recorded.get("request"))
    tools: list[ToolDeclaration] = []
    for entry in as_list(body.get("tools")):
        tool = as_object(as_object(entry).get("function")) or as_object(entry)
        if as_text(tool.get("name")) and tool["name"] not in {known.name for known in tools}:
            schema = as_object(tool.get("parameters"))
            tools.append(ToolDeclaration(tool["name"], as_text(tool.get("description")), schema))
    limit = body.get("max_output_tokens") or body.get("max_completion_tokens") or body.get("max_tokens")
    return ModelRequest(
        model=as_text(body.get("model")) or "unknown",
        instructions=as_text(body.get("instructions")),
        items=(UserText("recorded"),),
        tools=tuple(tools),
        max_output_tokens=limit if isinstance(limit, int) else None,
    )


def http_response(recorded: dict[str, Any]) -> HttpResponse:
    body = recorded["response"]
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = {name.lower(): str(value) for name, value in as_object(recorded.get("response_headers")).items()}
    return HttpResponse(recorded["status"], headers, raw)


def reply_of(recorded: dict[str, Any]) -> Reply:
    api = supported(recorded)
    assert api is not None
    return adapter_for(api).from_response(http_response(recorded), model_request(recorded))


def describe(name: str, recorded: dict[str, Any]) -> dict[str, Any]:
    if supported(recorded) is None:
        kind = f"{recorded['api']} (stream)" if "stream" in recorded else recorded["api"]
        return {"file": name, "completion": None, "unsupported": kind}
    reply = reply_of(recorded)
    return {
        "file": name,
        "completion": reply.completion.value,
        "retryable": reply.failure.retryable if reply.failure else None,
        "calls": [_call(call.call_id, call.name, call.arguments_text) for call in reply.calls],
        "text": reply.text,
        "refusal": reply.refusal,
        "usage": {"input": reply.usage.input, "output": reply.usage.output},
        "raw_reason": reply.raw_reason,
    }


def _call(call_id: str, name: str, text: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"call_id": call_id, "name": name, "arguments": None}
    try:
        shown["arguments"] = parse_arguments(text)
    except ArgumentError as error:
        shown["argument_error"] = error.code
    return shown


def main() -> None:
    for name in sys.argv[1:]:
        print(json.dumps(describe(name, json.loads(Path(name).read_text()))))


if __name__ == "__main__":
    main()
