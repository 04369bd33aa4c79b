"""OpenAI Responses and Chat Completions, also in Azure's forms."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

from examples.scripted_model.formats.base import Asked, BadRequest, Ids, JsonObject, pieces, sse
from examples.scripted_model.script import Turn

_STORED = 10_000  # responses kept for continuation by id, oldest forgotten first
_ADDED = "response.output_item.added"
_ARGUMENTS = "response.function_call_arguments"


class _OpenAI:
    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def error(self, status: int, message: str, code: str | None) -> JsonObject:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def wants_stream(self, path: str, body: JsonObject) -> bool:
        return body.get("stream") is True

    def _calls(self, turn: Turn, asked: Asked) -> Iterator[tuple[str, str, str]]:
        for call in turn.calls or ():
            yield call.call_id or self._ids("call"), call.name, call.text(asked.outputs)


class Responses(_OpenAI):
    """`/v1/responses` and Azure's two forms of it; keeps a response unless `store` is false."""

    def __init__(self, ids: Ids) -> None:
        super().__init__(ids)
        self._kept: OrderedDict[str, list[JsonObject]] = OrderedDict()

    def claims(self, path: str) -> bool:
        return path.endswith("/responses")

    def read(self, path: str, body: JsonObject) -> Asked:
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
        previous = body.get("previous_response_id")
        if previous is not None:
            if previous not in self._kept:
                raise BadRequest(f"Previous response with id '{previous}' not found.", "previous_response_not_found")
            items = self._kept[previous] + items
        return Asked(
            str(body.get("model", "")),
            _first_user(items),
            _reply_runs(items),
            _response_outputs(items),
            body.get("tool_choice") == "none",
            items,
        )

    def write(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> JsonObject:
        output, response_id = self._output(turn, asked), self._ids("resp")
        reply = {
            "id": response_id,
            "object": "response",
            "created_at": 1790000000,
            "status": "completed" if turn.truncated is None else "incomplete",
            "error": None,
            "incomplete_details": None if turn.truncated is None else {"reason": "max_output_tokens"},
            "model": asked.model,
            "output": output,
            "parallel_tool_calls": bool(body.get("parallel_tool_calls", True)),
            "previous_response_id": body.get("previous_response_id"),
            "usage": {
                "input_tokens": size // 4,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": size // 4 + 20,
            },
        }
        if body.get("store", True):
            self._kept[response_id] = asked.history + output
            if len(self._kept) > _STORED:
                self._kept.popitem(last=False)
        return reply

    def stream(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> Iterator[bytes]:
        final = self.write(turn, asked, body, size)
        started = {**final, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        events: list[JsonObject] = [
            {"type": "response.created", "response": started},
            {"type": "response.in_progress", "response": started},
        ]
        for index, item in enumerate(final["output"]):
            events += _item_events(index, item)
        events.append({"type": f"response.{final['status']}", "response": final})
        for number, event in enumerate(events):
            yield sse({**event, "sequence_number": number}, event["type"])

    def stream_error(self, message: str) -> bytes:
        error = {"type": "server_error", "code": "server_error", "message": message, "param": None}
        return sse({"type": "error", "error": error, "sequence_number": 0}, "error")

    def _output(self, turn: Turn, asked: Asked) -> list[JsonObject]:
        return self._thoughts(turn) + self._said(turn, asked)

    def _thoughts(self, turn: Turn) -> list[JsonObject]:
        if turn.reasoning is None:
            return []
        summary = [{"type": "summary_text", "text": turn.reasoning}]
        sealed = self._ids("sealed")
        return [{"type": "reasoning", "id": self._ids("rs"), "summary": summary, "encrypted_content": sealed}]

    def _said(self, turn: Turn, asked: Asked) -> list[JsonObject]:
        if turn.calls is not None:
            return [
                {
                    "type": "function_call",
                    "id": self._ids("fc"),
                    "call_id": call_id,
                    "name": name,
                    "arguments": arguments,
                    "status": "completed",
                }
                for call_id, name, arguments in self._calls(turn, asked)
            ]
        if turn.refusal is not None:
            part: JsonObject = {"type": "refusal", "refusal": turn.refusal}
        else:
            part = {"type": "output_text", "text": turn.text or turn.truncated or "", "annotations": []}
        status = "completed" if turn.truncated is None else "incomplete"
        return [
            {"type": "message", "id": self._ids("msg"), "role": "assistant", "status": status, "content": [part]},
        ]


class Chat(_OpenAI):
    """`/v1/chat/completions` and Azure's per-deployment form."""

    def claims(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def read(self, path: str, body: JsonObject) -> Asked:
        messages = body.get("messages") or []
        return Asked(
            str(body.get("model", "")),
            _first_user(messages),
            sum(message.get("role") == "assistant" for message in messages),
            _chat_outputs(messages),
            body.get("tool_choice") == "none",
        )

    def write(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> JsonObject:
        message: JsonObject = {
            "role": "assistant",
            "content": turn.text if turn.truncated is None else turn.truncated,
            "refusal": turn.refusal,
        }
        if turn.reasoning is not None:
            message["reasoning_content"] = turn.reasoning
        reason = "stop" if turn.truncated is None else "length"
        if turn.calls is not None:
            reason = "tool_calls"
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in self._calls(turn, asked)
            ]
        return {
            "id": self._ids("chatcmpl"),
            "object": "chat.completion",
            "created": 1790000000,
            "model": asked.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": size // 4,
                "completion_tokens": 20,
                "total_tokens": size // 4 + 20,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def stream(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> Iterator[bytes]:
        final = self.write(turn, asked, body, size)
        told = {"usage": None} if (body.get("stream_options") or {}).get("include_usage") else {}
        common = {name: final[name] for name in ("id", "created", "model")}
        common["object"] = "chat.completion.chunk"
        choice = final["choices"][0]
        for delta in _deltas(choice["message"]):
            yield sse({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **told})
        ended = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        yield sse({**common, "choices": [ended], **told})
        if told:
            yield sse({**common, "choices": [], "usage": final["usage"]})
        yield sse("[DONE]")

    def stream_error(self, message: str) -> bytes:
        return sse({"error": {"message": message, "type": "server_error", "param": None, "code": "server_error"}})


def _item_events(index: int, item: JsonObject) -> Iterator[JsonObject]:
    """One output item as the events of a stream."""
    place = {"output_index": index}
    part_place = {**place, "item_id": item["id"], "content_index": 0}
    if item["type"] == "function_call":
        yield {"type": _ADDED, **place, "item": {**item, "arguments": "", "status": "in_progress"}}
        for piece in pieces(item["arguments"]):
            yield {"type": f"{_ARGUMENTS}.delta", **place, "item_id": item["id"], "delta": piece, "obfuscation": "x"}
        yield {"type": f"{_ARGUMENTS}.done", **place, "item_id": item["id"], "arguments": item["arguments"]}
    elif item["type"] == "reasoning":
        yield {"type": _ADDED, **place, "item": {**item, "summary": [], "encrypted_content": ""}}
        where = {**place, "item_id": item["id"], "summary_index": 0}
        for piece in pieces(item["summary"][0]["text"]):
            yield {"type": "response.reasoning_summary_text.delta", **where, "delta": piece}
    else:
        part = item["content"][0]
        field = "refusal" if part["type"] == "refusal" else "text"
        kind = "response.refusal" if part["type"] == "refusal" else "response.output_text"
        yield {"type": _ADDED, **place, "item": {**item, "content": [], "status": "in_progress"}}
        yield {"type": "response.content_part.added", **part_place, "part": {**part, field: ""}}
        for piece in pieces(part[field]):
            yield {"type": f"{kind}.delta", **part_place, "delta": piece}
        yield {"type": f"{kind}.done", **part_place, field: part[field]}
        yield {"type": "response.content_part.done", **part_place, "part": part}
    yield {"type": "response.output_item.done", **place, "item": item}


def _deltas(message: JsonObject) -> Iterator[JsonObject]:
    """A chat message as the deltas of a stream."""
    yield {"role": "assistant", "content": "", "refusal": None}
    for field in ("reasoning_content", "content", "refusal"):
        for piece in pieces(message.get(field) or ""):
            yield {field: piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]}
        for piece in pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _first_user(messages: Sequence[JsonObject]) -> str:
    content = next((m.get("content") for m in messages if m.get("role") == "user"), "")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""


def _reply_runs(items: Sequence[JsonObject]) -> int:
    """Replies are the runs of items that the model wrote; whatever the client adds ends a run."""
    runs, inside = 0, False
    for item in items:
        kind = item.get("type", "message")
        ours = item.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")
        runs += ours and not inside
        inside = ours
    return runs


def _response_outputs(items: Sequence[JsonObject]) -> list[str]:
    """In call order. Real models use a call id again in a later reply: the nth output is that of the nth such call."""
    outputs: dict[str | None, list[str]] = {}
    for item in items:
        if item.get("type") == "function_call_output":
            outputs.setdefault(item.get("call_id"), []).append(str(item.get("output")))
    calls = [i.get("call_id") for i in items if i.get("type") == "function_call"]
    for call_id, count in Counter(calls).items():
        if len(outputs.get(call_id, ())) < count:
            raise BadRequest(f"No tool output found for function call {call_id}.")
    for call_id, given in outputs.items():
        if len(given) > calls.count(call_id):
            raise BadRequest(f"No tool call found for function call output with call_id {call_id}.")
    return [outputs[call_id].pop(0) for call_id in calls]


def _chat_outputs(messages: Sequence[JsonObject]) -> list[str]:
    """The tool messages in order; each assistant message must be followed by exactly the results of its calls."""
    outputs: list[str] = []
    waiting: list[str] = []
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                raise BadRequest(
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                )
            waiting.remove(message["tool_call_id"])
            outputs.append(str(message.get("content")))
            continue
        _none_waiting(waiting)
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    _none_waiting(waiting)
    return outputs


def _none_waiting(waiting: list[str]) -> None:
    if waiting:
        raise BadRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}"
        )
