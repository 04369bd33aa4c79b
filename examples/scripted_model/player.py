"""Which script, which turn, which fault: everything of the scripted model that is not HTTP."""

import json
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from examples.scripted_model.formats import Asked, BadRequest, Format, formats
from examples.scripted_model.script import TOOLS_OFF, Fault, Script, ScriptError, Turn, marked

_RECORDED = 1000  # requests kept per script for tests to look at; the count goes on


@dataclass(frozen=True, slots=True)
class Answer:
    """`cut` "before" closes the connection instead of answering, "half" after half of the body.

    With `events` the body is a stream of them, `pause` seconds after the first `pause_after`; `chunk` is the size in
    bytes of the pieces they are sent in."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: str | None = None
    events: tuple[bytes, ...] | None = None
    pause: float = 0.0
    pause_after: int = 0
    chunk: int | None = None


@dataclass(slots=True)
class _Record:
    count: int = 0
    requests: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_RECORDED))


class Player:
    """Holds the scripts, fault counters and recorded requests; the conversation's own state is in each request."""

    def __init__(self, scripts: Iterable[Script] = (), default: str | None = None) -> None:
        self._given = tuple(scripts)
        self._default = default or (self._given[0].id if self._given else None)
        self.reset()

    def reset(self) -> None:
        """Back to how the server started."""
        self._formats = formats()
        self._scripts = {script.id: script for script in self._given}
        self._asked: Counter[tuple[str, int]] = Counter()
        self._records: dict[str, _Record] = {}

    def add(self, scripts: Iterable[Script]) -> None:
        """A script of the same id is replaced and starts with fresh fault counters."""
        for script in scripts:
            self._scripts[script.id] = script
            for key in [key for key in self._asked if key[0] == script.id]:
                del self._asked[key]

    def requests(self, script_id: str) -> dict[str, Any]:
        record = self._records.get(script_id, _Record())
        return {"count": record.count, "requests": list(record.requests)}

    def answer(self, path: str, raw: bytes) -> Answer:
        """The answer to one model request."""
        wire = next((candidate for candidate in self._formats if candidate.claims(path)), None)
        if wire is None:
            return _json(404, {"error": {"message": f"Invalid URL (POST {path})", "type": "invalid_request_error"}})
        try:
            body = json.loads(raw)
            asked = wire.read(path, body)
            script = self._script(asked)
            self._record(script.id, path, body, asked.replies)
            return self._play(wire, script, asked, (path, body), len(raw))
        except (BadRequest, ScriptError) as error:
            return _json(400, wire.error(400, str(error), getattr(error, "code", None)))
        except (ValueError, TypeError, AttributeError, KeyError) as error:  # a body of any shape may arrive
            return _json(400, wire.error(400, f"could not read the request: {error!r}", None))

    def _script(self, asked: Asked) -> Script:
        for name in (marked(asked.first_user), asked.model, self._default):
            if name is not None and name in self._scripts:
                return self._scripts[name]
        raise BadRequest(f"no script for model {asked.model!r}", "model_not_found")

    def _record(self, script_id: str, path: str, body: Any, turn: int) -> None:
        record = self._records.setdefault(script_id, _Record())
        record.count += 1
        record.requests.append({"path": path, "turn": turn, "body": body})

    def _play(self, wire: Format, script: Script, asked: Asked, given: tuple[str, Any], size: int) -> Answer:
        path, body = given
        turn = script.turn(asked.replies)
        fault = self._fault(script.id, asked.replies, turn)
        if fault.status is not None:
            shown = wire.error(fault.status, "scripted fault", None) if fault.body is None else fault.body
            content = shown.encode() if isinstance(shown, str) else json.dumps(shown).encode()
            return Answer(fault.status, content, fault.headers, fault.delay, fault.cut)
        if turn.calls is not None and asked.tools_off:
            turn = TOOLS_OFF
        if wire.wants_stream(path, body):
            return _streamed(wire, tuple(wire.stream(turn, asked, body, size)), fault)
        if fault.error:
            return _json(200, wire.error(500, "scripted fault", "server_error"))
        reply = json.dumps(wire.write(turn, asked, body, size)).encode()
        if fault.cut == "eof":
            return Answer(200, reply[: len(reply) // 2], fault.headers, fault.delay)
        return Answer(200, reply, fault.headers, fault.delay, fault.cut)

    def _fault(self, script_id: str, index: int, turn: Turn) -> Fault:
        if turn.fault is None:
            return _NO_FAULT
        self._asked[script_id, index] += 1
        over = turn.fault.times is not None and self._asked[script_id, index] > turn.fault.times
        return _NO_FAULT if over else turn.fault


_NO_FAULT = Fault()


def _streamed(wire: Format, events: tuple[bytes, ...], fault: Fault) -> Answer:
    after = len(events) // 2 if fault.after is None else fault.after
    after = max(0, len(events) + after if after < 0 else after)
    if fault.error:
        events = (*events[:after], wire.stream_error("scripted fault"))
    elif fault.cut in ("half", "eof"):
        events = events[:after]
    cut = None if fault.cut == "eof" else fault.cut
    headers = {"content-type": "text/event-stream", **fault.headers}
    return Answer(200, b"", headers, fault.delay, cut, events, fault.pause, after, fault.chunk)


def _json(status: int, body: Any) -> Answer:
    return Answer(status, json.dumps(body).encode())
