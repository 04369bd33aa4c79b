"""What one whole message of Anthropic's API amounts to: a plain body, or what a finished stream adds up to."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from adapters.anthropic_history import CONTAINER, unreadable
from adapters.anthropic_schema import wire_keys
from adapters.base import Completion, Failure, HttpResponse, ModelRequest, Reply, Usage
from adapters.common import FOREIGN_MARK
from adapters.documents import (
    UnreadableBody,
    as_list,
    as_object,
    as_text,
    count_or_none,
    own_call_id,
    read_json,
    request_id,
    text_or_none,
    value_text,
)
from adapters.exact import exact_text, read_exact, rename_keys
from adapters.failures import (
    MODEL_OUTPUT_INVALID,
    error_facts,
    http_failure,
    in_band_failure,
    protocol_failure,
    unreadable_body,
)
from adapters.names import ToolNames
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import JsonObject

_CUT = ("max_tokens", "model_context_window_exceeded")
_RESUMABLE = ("pause_turn", "compaction")
_ENDED = ("end_turn", "stop_sequence")


def failed_request(response: HttpResponse) -> Reply:
    """The reply for a status of 300 and above; the request id may stand in the body only."""
    reply = http_failure(response)
    if reply.request_id is not None:
        return reply
    try:
        return dataclasses.replace(reply, request_id=_named(as_object(read_json(response.body))))
    except UnreadableBody:
        return reply


def texts_of_inputs(body: bytes) -> dict[int, str]:
    """The argument text of each call as the server wrote it, by its place in the content. Raises UnreadableBody."""
    if b'"tool_use"' not in body:
        return {}
    blocks = enumerate(as_list(as_object(read_exact(body)).get("content")))
    inputs = ((place, block.get("input")) for place, block in blocks if isinstance(block, dict) and _is_call(block))
    return {place: exact_text(value) for place, value in inputs if isinstance(value, dict | list)}


def reply_from_document(
    document: Any, response: HttpResponse, request: ModelRequest, texts: Mapping[int, str] | None = None
) -> Reply:
    """The reply for a message object; `texts` has the argument text of calls by their place. None: no JSON."""
    identity = request_id(response.headers) or _named(as_object(document))
    if document is None:
        return unreadable_body(response, identity)
    found = _Found(as_object(document), request, texts or {})
    completion, failure_or_none = _completion(found, response)
    return Reply(
        completion,
        text=found.text,
        calls=found.calls if completion is Completion.TOOL_PROPOSALS else (),
        refusal=found.refusal if completion is Completion.REFUSAL else None,
        raw_reason=found.reason or (error_facts(found.document).raw if found.error else None),
        response_id=text_or_none(found.document.get("id")),
        request_id=identity,
        model=text_or_none(found.document.get("model")),
        usage=_usage(as_object(found.document.get("usage"))),
        items=() if completion is Completion.API_FAILURE else found.items,
        failure=failure_or_none,
    )


def _named(document: JsonObject) -> str | None:
    return text_or_none(document.get("request_id"))


class _Found:
    """What a message contains, before it is decided what that amounts to."""

    def __init__(self, document: JsonObject, request: ModelRequest, texts: Mapping[int, str]) -> None:
        names = ToolNames(request.tools)
        self.document = document
        self.error = document.get("error") or document.get("type") == "error"
        self.reason = as_text(document.get("stop_reason"))
        content = document.get("content")
        self.broken = not isinstance(content, list) or not all(isinstance(block, dict) for block in content)
        blocks: list[JsonObject] = [] if self.broken else as_list(content)
        self.text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") == "text")
        self.refusal = text_or_none(as_object(document.get("stop_details")).get("explanation")) or self.text or None
        self.unusable = any(_is_call(block) and not text_or_none(block.get("name")) for block in blocks)
        calls, items = [], []
        for place, block in enumerate(blocks):
            kept = _with_call(block, texts.get(place), own_call_id(text_or_none(document.get("id")), place))
            items.append(kept[0])
            if kept[1] is not None:
                name = _name(block, names)
                calls.append(ProposedCall(kept[0]["id"], name, _with_our_keys(kept[1], name, request)))
        container = as_object(document.get("container"))
        self.items = (*items, {**container, "type": CONTAINER}) if container.get("id") else tuple(items)
        self.calls = tuple(calls)


def _is_call(block: JsonObject) -> bool:
    return block.get("type") == "tool_use"


def _with_call(block: JsonObject, text: str | None, own_id: str) -> tuple[JsonObject, str | None]:
    """The block as it is carried back, and the argument text of a call. Only `tool_use` is ours to run.

    Carried back, a call needs an id, and an input that is an object.
    """
    if not _is_call(block):
        return block, None
    given = block.get("input")
    if text is None:
        text = given if isinstance(given, str) else value_text({} if given is None else given)
    kept = block if text_or_none(block.get("id")) else {**block, "id": own_id}
    if not isinstance(given, dict):
        kept = {**kept, "input": {} if given is None else unreadable(text)}
    return kept, text if text.strip() else "{}"


def _with_our_keys(text: str, name: str, request: ModelRequest) -> str:
    schema = next((tool.parameters for tool in request.tools if tool.name == name), {})
    keys = {wire: ours for ours, wire in wire_keys(schema).items()}
    return rename_keys(text, keys) if keys else text


def _name(block: JsonObject, names: ToolNames) -> str:
    """A call of a toolset's member, or by a hosted program, gets a name that no tool of ours can have."""
    name, toolset = as_text(block.get("name")), block.get("toolset_name")
    caller = as_object(block.get("caller")).get("type", "direct")
    if toolset not in (None, ""):
        return f"{toolset}{FOREIGN_MARK}{name}"
    return names.from_wire(name) if caller == "direct" else f"{caller}{FOREIGN_MARK}{name}"


def _completion(found: _Found, response: HttpResponse) -> tuple[Completion, Failure | None]:
    """The first match of an ordered list; anything unknown is a failure."""
    if found.error:
        return Completion.API_FAILURE, in_band_failure(found.document.get("error") or {}, response.headers)
    if found.broken:
        return Completion.API_FAILURE, protocol_failure("UNEXPECTED_SHAPE")
    if found.reason == "refusal":
        return Completion.REFUSAL, None
    if found.reason in _CUT:
        return Completion.TRUNCATED, None
    if found.reason in _RESUMABLE:
        return Completion.PAUSED, None
    if found.unusable:
        return Completion.API_FAILURE, protocol_failure(MODEL_OUTPUT_INVALID)
    if found.reason == "tool_use":
        if found.calls:
            return Completion.TOOL_PROPOSALS, None
        return Completion.API_FAILURE, protocol_failure(MODEL_OUTPUT_INVALID)
    if found.reason in _ENDED and not found.calls:
        return Completion.FINAL_TEXT, None
    return Completion.API_FAILURE, protocol_failure("UNKNOWN_REASON")


def _usage(usage: JsonObject) -> Usage:
    """Input that was read from, or written to, the cache is counted apart by this API; here it is part of the input."""
    fresh, cached = count_or_none(usage.get("input_tokens")), count_or_none(usage.get("cache_read_input_tokens"))
    stored = count_or_none(usage.get("cache_creation_input_tokens"))
    return Usage(
        input=None if fresh is None else fresh + (cached or 0) + (stored or 0),
        cached=cached,
        output=count_or_none(usage.get("output_tokens")),
        reasoning=count_or_none(as_object(usage.get("output_tokens_details")).get("thinking_tokens")),
    )
