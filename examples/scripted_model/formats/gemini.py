"""Gemini generateContent (also with Vertex's paths) and Gemini Interactions."""

import base64
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from examples.scripted_model.formats.base import Asked, BadRequest, Ids, JsonObject, argument_object, pieces, sse
from examples.scripted_model.script import Call, Turn

_STORED = 10_000  # interactions kept for continuation by id, oldest forgotten first
_PATH = re.compile(r"/models/([^/:]+):(generateContent|streamGenerateContent)$")
_STATUS = {
    400: ("INVALID_ARGUMENT", "invalid_request"),
    401: ("UNAUTHENTICATED", "unauthenticated"),
    403: ("PERMISSION_DENIED", "permission_denied"),
    404: ("NOT_FOUND", "not_found"),
    429: ("RESOURCE_EXHAUSTED", "too_many_requests"),
    503: ("UNAVAILABLE", "service_unavailable"),
    504: ("DEADLINE_EXCEEDED", "gateway_timeout"),
}
_UNEVEN = (
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn."
)


def _arguments(call: Call, outputs: Sequence[str]) -> Any:
    """An object; a scripted text that is none becomes a JSON string, since no other form of nonsense can travel."""
    text = call.text(outputs)
    value = argument_object(text)
    return text if value is None else value


def _sealed(ids: Ids) -> str:
    """A signature: base64, like the real ones."""
    return base64.b64encode(ids("sealed").encode()).decode()


class Generate:
    """`...:generateContent` and `...:streamGenerateContent?alt=sse`; calls have an id where the script gives one."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def claims(self, path: str) -> bool:
        return _PATH.search(path) is not None

    def wants_stream(self, path: str, body: JsonObject) -> bool:
        return path.endswith(":streamGenerateContent")

    def read(self, path: str, body: JsonObject) -> Asked:
        found = _PATH.search(path)
        assert found is not None
        contents = body.get("contents") or []
        config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
        return Asked(
            found.group(1),
            _first_text(contents),
            _runs([content.get("role") == "model" for content in contents]),
            _responses(contents),
            config.get("mode") == "NONE",
        )

    def write(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> JsonObject:
        reason = "MAX_TOKENS" if turn.truncated is not None else "SAFETY" if turn.refusal is not None else "STOP"
        parts = self._parts(turn, asked)
        content = {"role": "model", "parts": parts} if parts else {}
        return self._response({"content": content, "finishReason": reason, "index": 0}, asked, size)

    def stream(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> Iterator[bytes]:
        final = self.write(turn, asked, body, size)
        candidate = final["candidates"][0]
        for part in candidate["content"].get("parts", ()):
            for piece in _split(part):
                content = {"role": "model", "parts": [piece]}
                yield _chunk({**final, "candidates": [{"content": content, "index": 0}]})
        ended: JsonObject = {"finishReason": candidate["finishReason"], "index": 0}
        if turn.text is not None:  # the signature of an answer comes with an empty text
            signed = {"text": "", "thoughtSignature": _sealed(self._ids)}
            ended["content"] = {"role": "model", "parts": [signed]}
        yield _chunk({**final, "candidates": [ended]})

    def error(self, status: int, message: str, code: str | None) -> JsonObject:
        return {"error": {"code": status, "message": message, "status": _STATUS.get(status, ("INTERNAL", ""))[0]}}

    def stream_error(self, message: str) -> bytes:
        """Bare JSON: the real service leaves the framing here."""
        return json.dumps(self.error(500, message, None), indent=2).encode() + b"\r\n"

    def _response(self, candidate: JsonObject, asked: Asked, size: int) -> JsonObject:
        usage = {
            "promptTokenCount": size // 4,
            "candidatesTokenCount": 15,
            "thoughtsTokenCount": 5,
            "totalTokenCount": size // 4 + 20,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": asked.model,
            "responseId": self._ids("gem"),
        }

    def _parts(self, turn: Turn, asked: Asked) -> list[JsonObject]:
        parts: list[JsonObject] = [] if turn.reasoning is None else [{"text": turn.reasoning, "thought": True}]
        for index, call in enumerate(turn.calls or ()):
            function: JsonObject = {"name": call.name, "args": _arguments(call, asked.outputs)}
            if call.call_id is not None:
                function["id"] = call.call_id
            parts.append({"functionCall": function} | ({} if index else {"thoughtSignature": _sealed(self._ids)}))
        text = turn.text if turn.truncated is None else turn.truncated
        return parts + ([{"text": text}] if text else [])


class Interactions:
    """`/v1beta/interactions`; keeps an interaction unless `store` is false."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._kept: OrderedDict[str, list[JsonObject]] = OrderedDict()

    def claims(self, path: str) -> bool:
        return path.endswith("/interactions")

    def wants_stream(self, path: str, body: JsonObject) -> bool:
        return body.get("stream") is True

    def read(self, path: str, body: JsonObject) -> Asked:
        steps = _steps(body.get("input"))
        previous = body.get("previous_interaction_id")
        if previous is not None:
            if previous not in self._kept:
                raise BadRequest("Requested entity was not found.", "not_found")
            steps = self._kept[previous] + steps
        return Asked(
            str(body.get("model", "")),
            _first_text([step for step in steps if step.get("type") == "user_input"]),
            _runs([step.get("type") not in ("user_input", "function_result") for step in steps]),
            _results(steps),
            (body.get("generation_config") or {}).get("tool_choice") == "none",
            steps,
        )

    def write(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> JsonObject:
        reply = self._interaction(turn, asked, size)
        reply["steps"] = self._steps(turn, asked)
        if body.get("store", True):
            self._kept[reply["id"]] = asked.history + reply["steps"]
            if len(self._kept) > _STORED:
                self._kept.popitem(last=False)
        return reply

    def stream(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> Iterator[bytes]:
        final = self.write(turn, asked, body, size)
        told = {name: final[name] for name in ("id", "object", "model")}
        yield _event("interaction.created", interaction={**told, "status": "in_progress"})
        yield _event("interaction.status_update", interaction_id=final["id"], status="in_progress")
        for index, (step, call) in enumerate(zip(final["steps"], self._calls_of(final["steps"], turn), strict=True)):
            text = None if call is None else call.text(asked.outputs)
            yield from _step_events(index, step, text)
        yield _event("interaction.completed", interaction={k: v for k, v in final.items() if k != "steps"})
        yield sse("[DONE]", "done")

    def error(self, status: int, message: str, code: str | None) -> JsonObject:
        return {"error": {"code": code or _STATUS.get(status, ("", "internal"))[1], "message": message}}

    def stream_error(self, message: str) -> bytes:
        return _event("error", error={"code": "internal", "message": message})

    def _interaction(self, turn: Turn, asked: Asked, size: int) -> JsonObject:
        status = "incomplete" if turn.truncated is not None or turn.refusal is not None else "completed"
        return {
            "id": self._ids("v1"),
            "object": "interaction",
            "status": "requires_action" if turn.calls is not None else status,
            "model": asked.model,
            "created": "2026-11-30T10:00:00Z",
            "updated": "2026-11-30T10:00:00Z",
            "usage": {
                "total_input_tokens": size // 4,
                "total_cached_tokens": 0,
                "total_output_tokens": 15,
                "total_thought_tokens": 5,
                "total_tool_use_tokens": 0,
                "total_tokens": size // 4 + 20,
            },
        }

    def _steps(self, turn: Turn, asked: Asked) -> list[JsonObject]:
        thought: JsonObject = {"type": "thought", "signature": _sealed(self._ids)}
        if turn.reasoning is not None:
            thought["summary"] = [{"type": "text", "text": turn.reasoning}]
        if turn.calls is not None:
            return [thought, *(self._call(call, asked) for call in turn.calls)]
        if turn.refusal is not None:
            error = {"code": 9, "message": "The response was blocked by safety settings."}
            return [{"type": "model_output", "content": [], "error": error}]
        text = turn.text or turn.truncated or ""
        return [thought, {"type": "model_output", "content": [{"type": "text", "text": text}]}]

    def _call(self, call: Call, asked: Asked) -> JsonObject:
        arguments = _arguments(call, asked.outputs)
        identity = call.call_id or self._ids("fc")
        return {"type": "function_call", "id": identity, "name": call.name, "arguments": arguments}

    @staticmethod
    def _calls_of(steps: Sequence[JsonObject], turn: Turn) -> Iterator[Call | None]:
        calls = iter(turn.calls or ())
        return (next(calls) if step["type"] == "function_call" else None for step in steps)


# --- streams ---------------------------------------------------------------------------------------------------------


def _chunk(response: JsonObject) -> bytes:
    return f"data: {json.dumps(response, ensure_ascii=False)}\r\n\r\n".encode()


def _split(part: JsonObject) -> Iterator[JsonObject]:
    if "text" not in part:
        yield part
        return
    for piece in pieces(part["text"]):
        yield {**part, "text": piece}


def _event(kind: str, **fields: Any) -> bytes:
    return sse({**fields, "event_type": kind}, kind)


def _step_events(index: int, step: JsonObject, arguments: str | None) -> Iterator[bytes]:
    """One step as the events of a stream; `arguments` is the text of a call's."""
    deltas: list[JsonObject] = []
    start = {"type": step["type"]}
    if step["type"] == "function_call":
        start = {**step, "arguments": {}}
        deltas = [{"type": "arguments_delta", "arguments": piece} for piece in pieces(arguments or "")]
    elif step["type"] == "thought":
        deltas = [{"type": "thought_summary", "content": part} for part in step.get("summary", ())]
        deltas.append({"type": "thought_signature", "signature": step["signature"]})
    else:
        start = {name: value for name, value in step.items() if name != "content"}
        deltas = [{"type": "text", "text": piece} for part in step["content"] for piece in pieces(part["text"])]
    yield _event("step.start", index=index, step=start)
    for delta in deltas:
        yield _event("step.delta", index=index, delta=delta)
    yield _event("step.stop", index=index)


# --- requests --------------------------------------------------------------------------------------------------------


def _runs(ours: Sequence[bool]) -> int:
    """How many replies: runs of what the model wrote."""
    return sum(here and not (index and ours[index - 1]) for index, here in enumerate(ours))


def _first_text(entries: Sequence[JsonObject]) -> str:
    """Of the first thing the user said: a content with parts, or a step with content."""
    for entry in entries:
        if entry.get("role", "user") == "user":
            parts = entry.get("parts") or entry.get("content") or ()
            return " ".join(str(part.get("text", "")) for part in parts)
    return ""


def _steps(given: Any) -> list[JsonObject]:
    if isinstance(given, str):
        return [{"type": "user_input", "content": [{"type": "text", "text": given}]}]
    return list(given or ())


def _responses(contents: Sequence[JsonObject]) -> list[str]:
    """What the calls returned; each content with calls must be followed by one with exactly their results."""
    outputs: list[str] = []
    waiting: list[JsonObject] = []
    for content in contents:
        if content.get("role") not in ("user", "model"):
            raise BadRequest("Please use a valid role: user, model.")
        parts = content.get("parts") or ()
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if len(answers) != len(waiting):
            raise BadRequest(_UNEVEN)
        outputs += [_answer(call, answer) for call, answer in zip(waiting, answers, strict=True)]
        waiting = _checked_calls([part for part in parts if "functionCall" in part])
    if waiting:
        raise BadRequest(_UNEVEN)
    return outputs


def _checked_calls(parts: Sequence[JsonObject]) -> list[JsonObject]:
    if parts and not parts[0].get("thoughtSignature"):
        raise BadRequest("Function call is missing a thought_signature in functionCall parts.")
    return [part["functionCall"] for part in parts]


def _answer(call: JsonObject, answer: JsonObject) -> str:
    if (call["name"], call.get("id")) != (answer.get("name"), answer.get("id")):
        raise BadRequest(f"The function response {answer.get('name')!r} answers another call.")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise BadRequest("Invalid value at 'function_response.response': it must be an object.")
    value = response.get("output", response.get("error", response))
    return value if isinstance(value, str) else json.dumps(value)


def _results(steps: Sequence[JsonObject]) -> list[str]:
    results = {step.get("call_id"): step.get("result") for step in steps if step.get("type") == "function_result"}
    calls = [step.get("id") for step in steps if step.get("type") == "function_call"]
    if set(calls) != results.keys():
        odd = sorted(map(str, set(calls) ^ results.keys()))[0]
        raise BadRequest(f"The function call {odd} and its result do not stand together.")
    outputs = (results[call] for call in calls)
    return [output if isinstance(output, str) else json.dumps(output) for output in outputs]
