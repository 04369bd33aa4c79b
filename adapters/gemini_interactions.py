"""Gemini Interactions (`POST /v1beta/interactions`), plain and streaming.

Base URL: `https://generativelanguage.googleapis.com`, with or without an API version.  Stateless by default:
`store: false`, and all earlier steps sent again, the model's own as they came.  With `server_state` the provider keeps
each interaction and the next request names it by `previous_interaction_id`.
"""

from typing import Any

from adapters.base import Accumulator, Endpoint, HttpRequest, HttpResponse, ModelRequest, Reply, ToolChoice
from adapters.common import Exchange, check_choice, hosted_tools, unseen
from adapters.failures import (
    reply_of_body,
)
from adapters.gemini_common import (
    argument_object,
    declarations,
    http_request,
    merge,
    provider_items,
    resumed,
    said,
    shown_exchanges,
    sorted_out,
    token_of,
    versioned,
    wire_schema,
)
from adapters.gemini_steps import API, InteractionAccumulator, reply_from_document
from adapters.names import ToolNames
from orchestrator.domain.transcript import JsonObject, ModelReply, Observation

REVISION = "2026-05-20"  # without this header older revisions answer in another form
_LOOP_OWNED = {
    "model",
    "agent",
    "input",
    "system_instruction",
    "stream",
    "background",
    "previous_interaction_id",
    "continuation_token",
}
_TOP = frozenset(
    _LOOP_OWNED
    | {"store", "response_format", "response_modalities", "safety_settings", "service_tier", "labels"}
    | {"cached_content", "environment", "webhook_config"}
)
RESERVED = frozenset(_LOOP_OWNED | {"generation_config.tool_choice", "generation_config.max_output_tokens"})


class GeminiInteractions:
    """See `adapters.base.Adapter`. Raises ConfigError for a request that this API cannot say."""

    api = API
    revision = "2"

    def to_request(self, request: ModelRequest, endpoint: Endpoint) -> HttpRequest:
        url = f"{versioned(endpoint.base_url)}/interactions"
        sent = http_request(url, self._body(request), endpoint, stream=request.stream)
        return HttpRequest(sent.url, {"api-revision": REVISION, **sent.headers}, sent.body)

    def _body(self, request: ModelRequest) -> JsonObject:
        """Nothing but the history is inherited from a previous interaction: the rest is always sent."""
        names = ToolNames(request.tools)
        body: JsonObject = {"model": request.model}
        _add_history(body, request, names)
        if request.instructions:
            body["system_instruction"] = request.instructions
        config: JsonObject = {}
        _add_tools(body, config, request, names)
        if request.max_output_tokens is not None:
            config["max_output_tokens"] = request.max_output_tokens
        if config:
            body["generation_config"] = config
        if request.output_schema is not None:
            schema = wire_schema(request.output_schema)
            body["response_format"] = {"type": "text", "mime_type": "application/json", "schema": schema}
        if request.stream:
            body["stream"] = True
        merge(body, sorted_out(request.parameters, _TOP, "generation_config"), RESERVED)
        return body

    def from_response(self, response: HttpResponse, request: ModelRequest) -> Reply:
        return reply_of_body(response, request, reply_from_document)

    def accumulator(self, head: HttpResponse, request: ModelRequest) -> Accumulator:
        return InteractionAccumulator(head, request)


def _add_tools(body: JsonObject, config: JsonObject, request: ModelRequest, names: ToolNames) -> None:
    check_choice(request.tool_choice, names)
    functions = [{"type": "function", **function} for function in declarations(request, names, "parameters")]
    tools = functions + hosted_tools(request.parameters)
    if tools:
        body["tools"] = tools
    if functions:
        config["tool_choice"] = _choice(request.tool_choice, names)


def _choice(choice: ToolChoice, names: ToolNames) -> str | JsonObject:
    if choice.mode in ("named", "allowed"):
        mode = "any" if choice.mode == "named" or choice.required else "auto"
        return {"allowed_tools": {"mode": mode, "tools": [names.to_wire(name) for name in choice.names]}}
    return "any" if choice.mode == "required" else choice.mode


# --- history -----------------------------------------------------------------------------------------------------


def _add_history(body: JsonObject, request: ModelRequest, names: ToolNames) -> None:
    """Going on from a reply that stopped: its token, with the same input, or with none where the provider keeps it."""
    kept = request.previous_response_id
    stopped = resumed(request.items, API)
    if stopped is None or kept is None:
        body["input"] = _input(request, names)
    if kept is not None:
        body["previous_interaction_id"] = kept
    if stopped is not None:
        body["continuation_token"] = token_of(stopped, API)
    body["store"] = request.server_state or kept is not None


def _input(request: ModelRequest, names: ToolNames) -> list[JsonObject]:
    kept = request.previous_response_id
    steps: list[JsonObject] = []
    for exchange in shown_exchanges(unseen(request.items, kept), API):
        reply = exchange.reply
        if reply is not None:
            ours = _model_steps(reply, names)
            if kept is None or reply.response_id != kept:
                steps += ours
            steps += _results(exchange, reply, ours)
        texts = [{"type": "text", "text": said(item)} for item in exchange.others]
        steps += [{"type": "user_input", "content": [text]} for text in texts]
    return steps


def _model_steps(reply: ModelReply, names: ToolNames) -> list[JsonObject]:
    items = provider_items(reply)
    if reply.api == API and sum(item.get("type") == "function_call" for item in items) == len(reply.calls):
        return items
    content = [{"type": "text", "text": reply.text}]
    steps: list[JsonObject] = [{"type": "model_output", "content": content}] if reply.text else []
    for call in reply.calls:
        arguments = argument_object(call.arguments_text)
        steps.append(
            {"type": "function_call", "id": call.call_id, "name": names.to_wire(call.name), "arguments": arguments}
        )
    return steps


def _results(exchange: Exchange, reply: ModelReply, steps: list[JsonObject]) -> list[JsonObject]:
    """The text of a result travels as the text that it is: the very one that was recorded."""
    wire: dict[Any, Any] = {step.get("id"): step.get("name") for step in steps if step.get("type") == "function_call"}
    return [_result(observation, wire.get(observation.call_id)) for observation in exchange.results]


def _result(observation: Observation, name: Any) -> JsonObject:
    result: JsonObject = {"type": "function_result", "call_id": observation.call_id}
    if name:
        result["name"] = name
    result["result"] = observation.output
    if observation.is_error:
        result["is_error"] = True
    return result
