"""OpenAI Responses (`POST /v1/responses`), also on Azure and compatible servers.

Stateless by default: `store: false`, and the provider's items carried back verbatim. With `server_state` the provider
keeps each response (`store: true`) and the next request names it by `previous_response_id`.
"""

from typing import Any

from adapters.base import (
    Accumulator,
    Boundary,
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
from adapters.common import FOREIGN_MARK, check_choice, exchanges, hosted_tools, merge_parameters, notice_text, unseen
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
    in_band_failure,
    protocol_failure,
    reply_of_body,
    unreadable_body,
)
from adapters.names import ToolNames
from adapters.openai_common import add_stream, azure_url, function_fields, http_request, observation_text, output_format
from adapters.openai_responses_stream import ResponsesAccumulator
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import JsonObject, ModelReply, Observation, UserText

RESERVED = frozenset(
    {"model", "input", "instructions", "tool_choice", "stream", "background", "previous_response_id", "conversation"}
)
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_CALLS = ("function_call", "custom_tool_call")


class OpenAIResponses:
    """See `adapters.base.Adapter`. Raises ConfigError for a request that this API cannot say."""

    api = "openai-responses"
    revision = "3"

    def to_request(self, request: ModelRequest, endpoint: Endpoint) -> HttpRequest:
        body = self._body(request, endpoint)
        if endpoint.azure_deployment is not None:
            body["model"] = endpoint.azure_deployment
        return http_request(azure_url(endpoint, "responses", per_deployment=False), body, endpoint)

    def _body(self, request: ModelRequest, endpoint: Endpoint) -> JsonObject:
        names = ToolNames(request.tools)
        body: JsonObject = {"model": request.model, "input": _input(self.api, request, names)}
        if request.instructions:
            body["instructions"] = request.instructions
        _add_tools(body, request, names)
        if request.max_output_tokens is not None:
            body["max_output_tokens"] = request.max_output_tokens
        if request.output_schema is not None:
            body["text"] = {"format": {"type": "json_schema", **output_format(request.output_schema)}}
        _add_state(body, request)
        add_stream(body, request, endpoint)
        parameters = {name: value for name, value in request.parameters.items() if name != "tools"}
        merge_parameters(body, parameters, RESERVED)
        return body

    def from_response(self, response: HttpResponse, request: ModelRequest) -> Reply:
        return reply_of_body(response, request, reply_from_document)

    def accumulator(self, head: HttpResponse, request: ModelRequest) -> Accumulator:
        return ResponsesAccumulator(head, request, reply_from_document)


def reply_from_document(document: Any, response: HttpResponse, request: ModelRequest) -> Reply:
    """The reply for a whole response object: a plain body, or the last event of a finished stream. None: no JSON."""
    if document is None:
        return unreadable_body(response)
    found = _read(as_object(document), ToolNames(request.tools))
    completion, failure_or_none = _completion(found, response, request)
    return Reply(
        completion,
        text=found.text,
        calls=found.calls if completion is Completion.TOOL_PROPOSALS else (),
        refusal=found.refusal if completion is Completion.REFUSAL else None,
        raw_reason=found.raw_reason,
        response_id=text_or_none(found.document.get("id")),
        request_id=request_id(response.headers),
        model=text_or_none(found.document.get("model")),
        usage=_usage(as_object(found.document.get("usage"))),
        items=found.items,
        failure=failure_or_none,
    )


# --- request ---------------------------------------------------------------------------------------------------------


def _add_tools(body: JsonObject, request: ModelRequest, names: ToolNames) -> None:
    tools = [{"type": "function", **fields} for fields in function_fields(request, names)]
    tools += hosted_tools(request.parameters)
    check_choice(request.tool_choice, names)
    if tools:
        body["tools"] = tools
        body["tool_choice"] = _choice(request.tool_choice, names)
        body["parallel_tool_calls"] = request.parallel


def _choice(choice: ToolChoice, names: ToolNames) -> str | JsonObject:
    functions = [{"type": "function", "name": names.to_wire(name)} for name in choice.names]
    if choice.mode == "named":
        return functions[0]
    if choice.mode == "allowed":
        return {"type": "allowed_tools", "mode": "required" if choice.required else "auto", "tools": functions}
    return choice.mode


def _add_state(body: JsonObject, request: ModelRequest) -> None:
    if request.previous_response_id is not None:
        body["previous_response_id"] = request.previous_response_id
    body["store"] = request.parameters.get("store", request.server_state or request.previous_response_id is not None)
    # Models that do not reason answer 400 to this, so it is asked for only where the profile asks for reasoning.
    if not body["store"] and "reasoning" in request.parameters:
        body["include"] = [ENCRYPTED_REASONING]


def _input(api: str, request: ModelRequest, names: ToolNames) -> list[JsonObject]:
    kept = request.previous_response_id
    result: list[JsonObject] = []
    for exchange in exchanges(unseen(request.items, kept)):
        reply = exchange.reply
        if reply is not None:
            if kept is None or reply.response_id != kept:
                result += _reply_items(api, reply, names)
            result += [_result(observation, reply) for observation in exchange.results]
        for said in exchange.others:
            content = said.text if isinstance(said, UserText) else notice_text(said)
            result.append({"role": "user", "content": content})
    return result


def _reply_items(api: str, reply: ModelReply, names: ToolNames) -> list[JsonObject]:
    proposed = sum(item.get("type") in _CALLS for item in reply.items)
    if reply.api == api and proposed == len(reply.calls):
        return [_echo(item) for item in reply.items]
    result: list[JsonObject] = [{"role": "assistant", "content": reply.text}] if reply.text else []
    result += [
        {
            "type": "function_call",
            "call_id": call.call_id,
            "name": names.to_wire(call.name),
            "arguments": call.arguments_text or "{}",
        }
        for call in reply.calls
    ]
    return result


def _echo(item: JsonObject) -> JsonObject:
    """Verbatim, but some servers cannot read their own empty arguments."""
    if item.get("type") == "function_call" and item.get("arguments") in ("", None):
        return {**item, "arguments": "{}"}
    return item


def _result(observation: Observation, reply: ModelReply) -> JsonObject:
    call = next((i for i in reply.items if i.get("type") in _CALLS and i.get("call_id") == observation.call_id), {})
    kind = "custom_tool_call_output" if call.get("type") == "custom_tool_call" else "function_call_output"
    result = {"type": kind, "call_id": observation.call_id, "output": observation_text(observation)}
    if call.get("caller") is not None:
        result["caller"] = call["caller"]
    return result


# --- reply -----------------------------------------------------------------------------------------------------------


class _Found:
    """What a response object contains, before it is decided what that amounts to."""

    def __init__(self, document: JsonObject) -> None:
        self.document = document
        self.status = as_text(document.get("status"))
        self.reason = as_text(as_object(document.get("incomplete_details")).get("reason"))
        self.items: tuple[JsonObject, ...] = ()
        self.calls: tuple[ProposedCall, ...] = ()
        self.text = ""
        self.refusal: str | None = None
        self.cut = False  # a call that was not finished
        self.broken = not isinstance(document.get("output"), list)
        self.unusable = False  # a call without a name
        self.foreign = False  # a call that the client must run, of a kind that we never offer
        self.asks_approval = False

    @property
    def raw_reason(self) -> str | None:
        if self.status == "incomplete" and self.reason:
            return f"{self.status}:{self.reason}"
        return self.status or None


def _read(document: JsonObject, names: ToolNames) -> _Found:
    found = _Found(document)
    output = as_list(document.get("output"))
    found.broken = found.broken or not all(isinstance(item, dict) for item in output)
    items: list[JsonObject] = []
    calls: list[ProposedCall] = []
    for item in output if not found.broken else ():
        kept = item
        if item.get("type") in _CALLS:
            if not text_or_none(item.get("call_id")):
                kept = {**item, "call_id": own_call_id(text_or_none(document.get("id")), len(calls))}
            calls.append(_call(kept, names))
            found.unusable = found.unusable or not text_or_none(item.get("name"))
            found.cut = found.cut or item.get("status") not in (None, "completed")
        items.append(kept)
    found.items, found.calls = tuple(items), tuple(calls)
    found.text, found.refusal = _words(items)
    found.foreign = any(_is_foreign(item, items) for item in items)
    found.asks_approval = any(item.get("type") == "mcp_approval_request" for item in items)
    return found


def _call(item: JsonObject, names: ToolNames) -> ProposedCall:
    """Free text, a call of a hosted program and one in a namespace can never pass for a call of our functions.

    Free text travels as a JSON string, which is no argument object; the others get a name that no tool can have.
    """
    name = as_text(item.get("name"))
    if item["type"] == "custom_tool_call":
        return ProposedCall(item["call_id"], name, write_json(as_text(item.get("input"))).decode())
    namespace, caller = item.get("namespace"), item.get("caller")
    if namespace not in (None, ""):
        ours = f"{namespace}{FOREIGN_MARK}{name}"
    elif caller is not None and as_object(caller).get("type") != "direct":
        ours = f"{as_text(as_object(caller).get('type'))}{FOREIGN_MARK}{name}"
    else:
        ours = names.from_wire(name)
    return ProposedCall(item["call_id"], ours, arguments_text(item.get("arguments")))


def _words(items: list[JsonObject]) -> tuple[str, str | None]:
    """The text and the refusal. Where the provider marks a final answer, its commentary is not part of the text."""
    messages = [item for item in items if item.get("type") == "message"]
    final = [item for item in messages if item.get("phase") == "final_answer"]
    texts, refusals = [], []
    for message in messages:
        for part in map(as_object, as_list(message.get("content"))):
            if part.get("type") == "refusal":
                refusals.append(as_text(part.get("refusal")))
            elif part.get("type") == "output_text" and (not final or message.get("phase") == "final_answer"):
                texts.append(as_text(part.get("text")))
    return "".join(texts), "".join(refusals) if refusals else None


def _is_foreign(item: JsonObject, items: list[JsonObject]) -> bool:
    """A `*_call` with a call id and no output beside it waits for the client: shell, computer, patch and the like."""
    kind, call_id = as_text(item.get("type")), item.get("call_id")
    if kind in _CALLS or not kind.endswith("_call") or not call_id:
        return False
    return not any(other.get("type") == f"{kind}_output" and other.get("call_id") == call_id for other in items)


def _completion(found: _Found, response: HttpResponse, request: ModelRequest) -> tuple[Completion, Failure | None]:
    """The first match of an ordered list; anything unknown is a failure."""
    failure = _failure(found, response)
    if failure is not None:
        return Completion.API_FAILURE, failure
    if found.refusal is not None or found.reason == "content_filter":
        return Completion.REFUSAL, None
    if _truncated(found, request):
        return Completion.TRUNCATED, None
    if found.status in ("queued", "in_progress") or found.asks_approval:
        return Completion.PAUSED, None
    if found.unusable:
        return Completion.API_FAILURE, protocol_failure(MODEL_OUTPUT_INVALID)
    if found.status != "completed":
        return Completion.API_FAILURE, protocol_failure("UNKNOWN_REASON")
    if found.foreign:
        return Completion.API_FAILURE, protocol_failure("UNSUPPORTED_CALL")
    return (Completion.TOOL_PROPOSALS if found.calls else Completion.FINAL_TEXT), None


def _failure(found: _Found, response: HttpResponse) -> Failure | None:
    error = found.document.get("error")
    if error is not None:
        return in_band_failure(error, response.headers)
    if found.status == "failed":  # it failed without saying why
        return Failure(Boundary.PROVIDER_UNAVAILABLE, "SERVER_ERROR", True)
    return protocol_failure("UNEXPECTED_SHAPE") if found.broken else None


def _truncated(found: _Found, request: ModelRequest) -> bool:
    if found.status == "incomplete":
        return found.reason in ("", "max_output_tokens", "max_messages")
    # Some servers say `completed` for an answer that was cut at the limit.
    spent = count_or_none(as_object(found.document.get("usage")).get("output_tokens"))
    return found.status == "completed" and (found.cut or (spent is not None and spent == request.max_output_tokens))


def _usage(usage: JsonObject) -> Usage:
    return Usage(
        input=count_or_none(usage.get("input_tokens")),
        cached=count_or_none(as_object(usage.get("input_tokens_details")).get("cached_tokens")),
        output=count_or_none(usage.get("output_tokens")),
        reasoning=count_or_none(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )
