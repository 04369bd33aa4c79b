"""OpenAI Chat Completions (`POST /v1/chat/completions`), also on Azure, vLLM and others.

Everything is stateless here: the assistant's message is carried back as it came, because several servers insist on
their own extra fields (`reasoning_content`, `reasoning_details`, `extra_content`).
"""

from typing import Any

from adapters.base import (
    Accumulator,
    Completion,
    Endpoint,
    Failure,
    HttpRequest,
    HttpResponse,
    ModelRequest,
    Reply,
    ToolChoice,
    Usage,
)
from adapters.common import check_choice, exchanges, hosted_tools, merge_parameters, notice_text
from adapters.documents import (
    arguments_text,
    as_list,
    as_object,
    as_text,
    count_or_none,
    own_call_id,
    request_id,
    text_or_none,
    write_json,
)
from adapters.failures import (
    MODEL_OUTPUT_INVALID,
    error_facts,
    in_band_failure,
    protocol_failure,
    reply_of_body,
    unreadable_body,
)
from adapters.names import ToolNames
from adapters.openai_chat_stream import ChatAccumulator
from adapters.openai_common import add_stream, azure_url, function_fields, http_request, observation_text, output_format
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import JsonObject, ModelReply, UserText

RESERVED = frozenset({"model", "messages", "tool_choice", "stream", "functions", "function_call"})
_ALLOWS_CALLS = ("tool_calls", "function_call", "stop")


class OpenAIChat:
    """See `adapters.base.Adapter`. Raises ConfigError for a request that this API cannot say."""

    api = "openai-chat"
    revision = "3"

    def to_request(self, request: ModelRequest, endpoint: Endpoint) -> HttpRequest:
        if request.previous_response_id is not None:
            raise ConfigError("SERVER_STATE_UNSUPPORTED", f"{self.api} keeps no state; set server_state to false")
        if request.parameters.get("n", 1) != 1:
            raise ConfigError("BAD_PARAMETERS", "profile parameter 'n' must be 1")
        body = self._body(request, endpoint)
        if endpoint.azure_deployment is not None:
            body["model"] = endpoint.azure_deployment
        return http_request(azure_url(endpoint, "chat/completions", per_deployment=True), body, endpoint)

    def _body(self, request: ModelRequest, endpoint: Endpoint) -> JsonObject:
        names = ToolNames(request.tools)
        body: JsonObject = {"model": request.model, "messages": _messages(self.api, request, names)}
        _add_tools(body, request, names)
        if request.max_output_tokens is not None:
            body["max_completion_tokens"] = request.max_output_tokens
        if request.output_schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": output_format(request.output_schema)}
        add_stream(body, request, endpoint, usage=True)
        parameters = {name: value for name, value in request.parameters.items() if name != "tools"}
        merge_parameters(body, parameters, RESERVED)
        return body

    def from_response(self, response: HttpResponse, request: ModelRequest) -> Reply:
        return reply_of_body(response, request, reply_from_document)

    def accumulator(self, head: HttpResponse, request: ModelRequest) -> Accumulator:
        return ChatAccumulator(head, request, reply_from_document)


def reply_from_document(document: Any, response: HttpResponse, request: ModelRequest) -> Reply:
    """The reply for a whole completion object: a plain body, or what a finished stream adds up to. None: no JSON."""
    if document is None:
        return unreadable_body(response)
    found = _Found(as_object(document), ToolNames(request.tools))
    completion, failure_or_none = _completion(found, response)
    return Reply(
        completion,
        text=found.text,
        calls=found.calls if completion is Completion.TOOL_PROPOSALS else (),
        refusal=found.refusal if completion is Completion.REFUSAL else None,
        raw_reason=found.reason or (error_facts({"error": found.error}).raw if found.error else None),
        response_id=text_or_none(found.document.get("id")),
        request_id=request_id(response.headers),
        model=text_or_none(found.document.get("model")),
        usage=_usage(found.document),
        items=(found.message,) if found.message else (),
        failure=failure_or_none,
    )


# --- request ---------------------------------------------------------------------------------------------------------


def _add_tools(body: JsonObject, request: ModelRequest, names: ToolNames) -> None:
    tools: list[JsonObject] = [{"type": "function", "function": f} for f in function_fields(request, names)]
    tools += hosted_tools(request.parameters)
    check_choice(request.tool_choice, names)
    if tools:
        body["tools"] = tools
        body["tool_choice"] = _choice(request.tool_choice, names)
        body["parallel_tool_calls"] = request.parallel


def _choice(choice: ToolChoice, names: ToolNames) -> str | JsonObject:
    functions: list[JsonObject] = [
        {"type": "function", "function": {"name": names.to_wire(name)}} for name in choice.names
    ]
    if choice.mode == "named":
        return functions[0]
    if choice.mode == "allowed":
        allowed = {"mode": "required" if choice.required else "auto", "tools": functions}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice.mode


def _messages(api: str, request: ModelRequest, names: ToolNames) -> list[JsonObject]:
    result: list[JsonObject] = []
    if request.instructions:
        result.append({"role": "system", "content": request.instructions})
    for exchange in exchanges(request.items):
        if exchange.reply is not None:
            result += _reply_messages(api, exchange.reply, names)
        for observation in exchange.results:
            content = observation_text(observation)
            result.append({"role": "tool", "tool_call_id": observation.call_id, "content": content})
        for said in exchange.others:
            content = said.text if isinstance(said, UserText) else notice_text(said)
            result.append({"role": "user", "content": content})
    return result


def _reply_messages(api: str, reply: ModelReply, names: ToolNames) -> list[JsonObject]:
    proposed = sum(len(as_list(item.get("tool_calls"))) for item in reply.items)
    if reply.api == api and reply.items and proposed == len(reply.calls):
        return [_echo(item) for item in reply.items]
    if not reply.text and not reply.calls:
        return []
    message: JsonObject = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": names.to_wire(call.name), "arguments": call.arguments_text or "{}"},
            }
            for call in reply.calls
        ]
    return [message]


def _echo(message: JsonObject) -> JsonObject:
    """Verbatim, except for what servers answer 400 to: an empty list of calls, and their own empty arguments."""
    calls = message.get("tool_calls")
    if calls == []:
        return {name: value for name, value in message.items() if name != "tool_calls"}
    if not any(_without_arguments(call) for call in as_list(calls)):
        return message
    return {**message, "tool_calls": [_with_arguments(call) for call in as_list(calls)]}


def _without_arguments(call: JsonObject) -> bool:
    return "function" in call and as_object(call["function"]).get("arguments") in ("", None)


def _with_arguments(call: JsonObject) -> JsonObject:
    return {**call, "function": {**call["function"], "arguments": "{}"}} if _without_arguments(call) else call


# --- reply -----------------------------------------------------------------------------------------------------------


class _Found:
    """What a completion object contains, before it is decided what that amounts to."""

    def __init__(self, document: JsonObject, names: ToolNames) -> None:
        self.document = document
        choices = as_list(document.get("choices"))
        self.choice = as_object(choices[0] if choices else None)
        self.broken = not self.choice
        self.reason = as_text(self.choice.get("finish_reason"))
        self.error = (
            document.get("error") or self.choice.get("error") or (document.get("object") == "error" and document)
        )
        self.message = as_object(self.choice.get("message"))
        self.text = _text(self.message.get("content"))
        self.refusal = text_or_none(self.message.get("refusal"))
        self.legacy_call = self.message.get("function_call") is not None
        self.unusable = False  # a call without a name, or of a kind that we never offer
        self.calls: tuple[ProposedCall, ...] = ()
        self._read_calls(names)

    def _read_calls(self, names: ToolNames) -> None:
        given = self.message.get("tool_calls")
        self.unusable = given is not None and not isinstance(given, list)
        calls: list[ProposedCall] = []
        kept: list[Any] = []
        for entry in as_list(given):
            item = as_object(entry)
            if not text_or_none(item.get("id")):
                item = {**item, "id": own_call_id(text_or_none(self.document.get("id")), len(calls))}
            call = _call(item, names)
            self.unusable = self.unusable or call is None
            calls += [call] if call is not None else []
            kept.append(item)
        self.calls = tuple(calls)
        if kept:
            self.message = {**self.message, "tool_calls": kept}


def _call(item: JsonObject, names: ToolNames) -> ProposedCall | None:
    """Free text travels as a JSON string: it is no argument object, so it can never pass for a call of a function."""
    if item.get("type") == "custom":
        custom = as_object(item.get("custom"))
        name, text = as_text(custom.get("name")), write_json(as_text(custom.get("input"))).decode()
    elif item.get("type") in (None, "", "function"):
        function = as_object(item.get("function"))
        name, text = names.from_wire(as_text(function.get("name"))), arguments_text(function.get("arguments"))
    else:
        return None
    return ProposedCall(item["id"], name, text) if name else None


def _text(content: Any) -> str:
    """A string, or (Mistral and others) a list of parts, of which the text parts count."""
    if isinstance(content, str):
        return content
    parts = map(as_object, as_list(content))
    return "".join(as_text(part.get("text")) for part in parts if part.get("type") in ("text", "output_text"))


def _completion(found: _Found, response: HttpResponse) -> tuple[Completion, Failure | None]:
    """The first match of an ordered list; anything unknown is a failure."""
    if found.error:
        return Completion.API_FAILURE, in_band_failure(found.error, response.headers)
    if found.refusal is not None or found.reason == "content_filter":
        return Completion.REFUSAL, None
    if found.reason == "length":
        return Completion.TRUNCATED, None
    if found.broken or not found.message:
        return Completion.API_FAILURE, protocol_failure("UNEXPECTED_SHAPE")
    if found.unusable:
        return Completion.API_FAILURE, protocol_failure(MODEL_OUTPUT_INVALID)
    if found.reason not in _ALLOWS_CALLS:
        return Completion.API_FAILURE, protocol_failure("UNKNOWN_REASON")
    if found.calls:
        return Completion.TOOL_PROPOSALS, None
    if found.reason != "stop":
        return Completion.API_FAILURE, protocol_failure(MODEL_OUTPUT_INVALID)
    if found.legacy_call:
        return Completion.API_FAILURE, protocol_failure("UNSUPPORTED_CALL")
    return Completion.FINAL_TEXT, None


def _usage(document: JsonObject) -> Usage:
    usage = as_object(document.get("usage")) or as_object(as_object(document.get("x_groq")).get("usage"))
    cached = count_or_none(as_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
    for name in ("prompt_cache_hit_tokens", "num_cached_tokens"):  # DeepSeek, Mistral
        cached = count_or_none(usage.get(name)) if cached is None else cached
    return Usage(
        input=count_or_none(usage.get("prompt_tokens")),
        cached=cached,
        output=count_or_none(usage.get("completion_tokens")),
        reasoning=count_or_none(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
