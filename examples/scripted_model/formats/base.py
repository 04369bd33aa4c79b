"""What a wire format of the scripted model is: read a request into neutral form, write a neutral turn as a reply."""

import itertools
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from examples.scripted_model.script import Turn

JsonObject = dict[str, Any]


class BadRequest(ValueError):
    """What the real service would answer with 400. `code` as the service spells it, or None."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Ids:
    """Unique over restarts too: an operation may outlive the server it started with."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._count = itertools.count(1)

    def __call__(self, prefix: str) -> str:
        return f"{prefix}_{self._boot}{next(self._count):06x}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request in neutral form: how many replies the transcript holds and what its calls returned, in call order."""

    model: str
    first_user: str
    replies: int
    outputs: Sequence[str]
    tools_off: bool
    history: list[JsonObject] = field(default_factory=list)


class Format(Protocol):
    """One wire format. `path` is that of the request's URL, without the query."""

    def claims(self, path: str) -> bool: ...

    def wants_stream(self, path: str, body: JsonObject) -> bool: ...

    def read(self, path: str, body: JsonObject) -> Asked:
        """Raises BadRequest where the real service refuses."""

    def write(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> JsonObject:
        """The reply body. `size` is that of the request in bytes. Raises ScriptError."""

    def stream(self, turn: Turn, asked: Asked, body: JsonObject, size: int) -> Iterator[bytes]:
        """The same reply as events of a stream, one element each (see `sse`), the terminal one included."""

    def error(self, status: int, message: str, code: str | None) -> JsonObject:
        """The body of an error answer; also what a 200 carries in place of a reply."""

    def stream_error(self, message: str) -> bytes:
        """The event by which a server error ends a stream."""


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event; `data` is JSON, or text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def pieces(text: str, size: int = 8) -> Iterator[str]:
    """A text as the deltas of a stream; an empty text has none."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def argument_object(text: str) -> JsonObject | None:
    """A scripted argument text as the object that it is; None for what no object can say: no JSON, a key twice, NaN."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refused)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _refused(name: str) -> NoReturn:
    raise ValueError(name)
