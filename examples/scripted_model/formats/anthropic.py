"""Anthropic Messages."""

from collections.abc import Iterator, Sequence
from typing import Any

from examples.scripted_model.formats.base import Asked, BadRequest, Ids, JsonObject, argument_object, pieces, sse
from examples.scripted_model.script import Turn


class Messages:
    """`/v1/messages`. As strict as the real service about where results stand, empty texts and thinking blocks."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def claims(self, path: str) -> bool:
        return path.endswith("/messages")

    def wants_stream(self, path: str, body: JsonObject) -> bool:
        return body.get("stream") is True

    def read(self, path: str, body: JsonObject) -> Asked:
        if not isinstance(body.get("max_tokens"), int):
            raise BadRequest("max_tokens: Field required")
        told = [(message["role"], _blocks(message)) for message in body.get("messages") or ()]
        if not told or told[0][0] != "user":
            raise BadRequest("messages: first message must use the user role")
        return Asked(
            str(body.get("model", "")),
            " ".join(str(block.get("text", "")) for block in told[0][1]),
            sum(role == "assistant" for role, _ in told),
            outputs=_outputs(told),
            tools_off=(body.get("tool_choice") or {}).get("type") == "none",
        )

    def write(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> JsonObject:
        content = [_parsed(block) for block in self._content(turn, asked)]
        return {**self._message(turn, asked, size), "content": content}

    def stream(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> Iterator[bytes]:
        final = self._message(turn, asked, size)
        started = {**final, "stop_reason": None, "stop_details": None, "usage": {**final["usage"], "output_tokens": 1}}
        yield _event("message_start", message=started)
        yield _event("ping")
        for index, block in enumerate(self._content(turn, asked)):
            yield from _block_events(index, block)
        delta = {name: final[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
        yield _event("message_delta", delta=delta, usage=final["usage"])
        yield _event("message_stop")

    def error(self, status: int, message: str, code: str | None) -> JsonObject:
        kind = {404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}.get(status)
        kind = kind or ("api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": self._ids("req")}

    def stream_error(self, message: str) -> bytes:
        return sse(self.error(500, message, None), "error")

    def _message(self, turn: Turn, asked: Asked, size: int) -> JsonObject:
        reason = "tool_use" if turn.calls is not None else "end_turn"
        details = None
        if turn.refusal is not None:
            reason, details = "refusal", {"type": "refusal", "category": None, "explanation": turn.refusal}
        if turn.truncated is not None:
            reason = "max_tokens"
        return {
            "id": self._ids("msg"),
            "type": "message",
            "role": "assistant",
            "model": asked.model,
            "content": [],
            "stop_reason": reason,
            "stop_sequence": None,
            "stop_details": details,
            "usage": {
                "input_tokens": size // 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 20,
            },
        }

    def _content(self, turn: Turn, asked: Asked) -> list[JsonObject]:
        """The blocks, with the input of calls still as text."""
        blocks: list[JsonObject] = []
        if turn.reasoning is not None:
            blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": self._ids("signature")})
        for call in turn.calls or ():
            identity, text = call.call_id or self._ids("toolu"), call.text(asked.outputs)
            blocks.append({"type": "tool_use", "id": identity, "name": call.name, "input": text})
        said = turn.text if turn.truncated is None else turn.truncated
        return [*blocks, {"type": "text", "text": said, "citations": None}] if said else blocks


def _parsed(block: JsonObject) -> JsonObject:
    """Here a call's input is an object. Text that is none goes as text, as from a gateway that passes it on unread."""
    if block["type"] != "tool_use":
        return block
    value = argument_object(block["input"] or "{}")
    return block if value is None else {**block, "input": value}


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _block_events(index: int, block: JsonObject) -> Iterator[bytes]:
    """One content block as the events of a stream."""
    field, delta = {
        "text": ("text", "text_delta"),
        "thinking": ("thinking", "thinking_delta"),
        "tool_use": ("input", "input_json_delta"),
    }[block["type"]]
    empty: JsonObject = {field: "" if field != "input" else {}}
    if block["type"] == "thinking":
        empty["signature"] = ""
    yield _event("content_block_start", index=index, content_block={**block, **empty})
    name = "partial_json" if field == "input" else field
    for piece in ("", *pieces(block[field])) if field == "input" else pieces(block[field]):
        yield _event("content_block_delta", index=index, delta={"type": delta, name: piece})
    if block["type"] == "thinking":
        sealed = {"type": "signature_delta", "signature": block["signature"]}
        yield _event("content_block_delta", index=index, delta=sealed)
    yield _event("content_block_stop", index=index)


def _blocks(message: JsonObject) -> list[JsonObject]:
    """The content of a message as blocks; raises BadRequest for what the service refuses anywhere."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    if not blocks:
        raise BadRequest("messages: all messages must have non-empty content")
    if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
        raise BadRequest("messages: text content blocks must contain non-whitespace text")
    if any(block["type"] == "thinking" and not block.get("signature") for block in blocks):
        raise BadRequest("messages: Invalid `signature` in `thinking` block")
    return blocks


def _outputs(told: Sequence[tuple[str, list[JsonObject]]]) -> list[str]:
    """The results in call order; each call is answered by a block that stands first in the very next message."""
    outputs: list[str] = []
    waiting: list[str] = []
    used: set[str] = set()
    for place, (role, blocks) in enumerate(told):
        results = {b["tool_use_id"]: str(b.get("content", "")) for b in blocks if b["type"] == "tool_result"}
        leading = [block["type"] for block in blocks[: len(results)]]
        if results.keys() - set(waiting) or leading.count("tool_result") != len(results):
            raise BadRequest(f"messages.{place}: unexpected `tool_use_id` found in `tool_result` blocks")
        _none_missing(place - 1, [call_id for call_id in waiting if call_id not in results])
        outputs += [results[call_id] for call_id in waiting]
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"] if role == "assistant" else []
        if len(used.union(waiting)) != len(used) + len(waiting):
            raise BadRequest(f"messages.{place}: `tool_use` ids must be unique")
        used.update(waiting)
    _none_missing(len(told) - 1, waiting)
    return outputs


def _none_missing(place: int, missing: list[str]) -> None:
    if missing:
        raise BadRequest(
            f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )
