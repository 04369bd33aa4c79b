"""JSON bodies as providers send them: read once, with values that PostgreSQL can store."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.domain.transcript import JsonObject

# U+001A is the character for "a character stood here that cannot be kept". Unlike U+FFFD it is not allowed raw inside
# JSON, so argument text that held something unstorable is refused later instead of being repaired here.
SUBSTITUTE = "\x1a"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_ESCAPED_SUBSTITUTE = re.compile(r"(?<!\\)((?:\\\\)*)\\u001a")
_MAX_CLEANED_DEPTH = 200


class UnreadableBody(ValueError):
    """The body is not JSON (cut, HTML, wrong encoding, absurdly deep)."""


class Doubled(dict[str, Any]):
    """An object in which a key was written twice: as a dict it has the last values, and in `pairs` everything."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def read_json(body: bytes) -> Any:
    """Parse a whole body; raises UnreadableBody. NUL, lone surrogates, NaN and infinities become `SUBSTITUTE`."""
    try:
        value = read_event(body.removeprefix(b"\xef\xbb\xbf").decode(), doubled=True)
    except UnicodeDecodeError:
        raise UnreadableBody("the body is not UTF-8") from None
    return storable(value) if _SUSPECT.search(body) else value


def read_event(text: str, *, doubled: bool = False) -> Any:
    """Parse one event of a stream; raises UnreadableBody. With `doubled`, objects may be `Doubled`, which takes longer.

    Texts are left as they came: half a character may be in this event and half in the next. Whoever has put the pieces
    together calls `storable` (or `clean_text`) on the whole.
    """
    try:
        if text[-1:] != "}" or text[:1] != "{":
            text = text.strip(_BLANK)
        value, end = (_scan_doubled if doubled else _scan)(text, 0)
    except (ValueError, RecursionError, StopIteration):
        raise UnreadableBody("the body is not JSON") from None
    if end != len(text):
        raise UnreadableBody("something follows the JSON value")
    return value


def _finite(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else SUBSTITUTE


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    return value if len(value) == len(pairs) else Doubled(pairs)


_BLANK = " \t\r\n"
# The scanner itself: this runs once per delta, and what the decoder wraps around it costs as much as a small event.
_Scanner = Callable[[str, int], tuple[Any, int]]
_HOOKS: dict[str, Any] = {"parse_constant": lambda _: SUBSTITUTE, "parse_float": _finite}
_scan: _Scanner = vars(json.JSONDecoder(**_HOOKS))["scan_once"]
_scan_doubled: _Scanner = vars(json.JSONDecoder(**_HOOKS, object_pairs_hook=_object))["scan_once"]


def storable(value: Any) -> Any:
    """A parsed document whose texts can be stored; raises UnreadableBody where it is absurdly deep."""
    return _storable(value, 0)


def clean_text(text: str) -> str:
    """The text with its surrogate pairs joined and what cannot be stored replaced by `SUBSTITUTE`."""
    if "\0" not in text:
        if text.isascii():
            return text
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        else:
            return text
    return _UNSTORABLE.sub(SUBSTITUTE, text)


def _storable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if depth > _MAX_CLEANED_DEPTH:
        raise UnreadableBody("too deep")
    if isinstance(value, Doubled):
        return Doubled([(clean_text(key), _storable(member, depth + 1)) for key, member in value.pairs])
    if isinstance(value, dict):
        return {clean_text(key): _storable(member, depth + 1) for key, member in value.items()}
    if isinstance(value, list):
        return [_storable(member, depth + 1) for member in value]
    return value


def write_json(value: Any) -> bytes:
    """Compact and ASCII only, so that no text, however odd, can fail to encode. Refuses NaN with ValueError."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def as_object(value: Any) -> JsonObject:
    """The value if it is an object, else an empty one: reading optional parts needs no checks."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def count_or_none(value: Any) -> int | None:
    """A token count; anything else is unknown."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def request_id(headers: Mapping[str, str]) -> str | None:
    """The provider's id of the HTTP exchange, for its support."""
    for name in ("x-request-id", "request-id", "apim-request-id", "x-ms-request-id"):
        if headers.get(name):
            return headers[name]
    return None


def own_call_id(response_id: str | None, index: int) -> str:
    """An id for a call that came without one: nine letters and digits, the only form that every server accepts."""
    return hashlib.sha256(f"{response_id}/{index}".encode("utf-8", "surrogatepass")).hexdigest()[:9]


def arguments_text(arguments: Any) -> str:
    """Some servers send an object instead of its text; absent ones are empty, which the argument parser refuses."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else value_text(arguments)


def value_text(value: Any) -> str:
    """JSON text of a parsed value that stands for argument text; nothing that the parser of those refuses is lost.

    A key that was written twice is there twice. What could not be kept is written raw, which JSON forbids.
    """
    try:
        text = _written(value) if _any_doubled(value) else json.dumps(value, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        return SUBSTITUTE
    return _ESCAPED_SUBSTITUTE.sub(rf"\1{SUBSTITUTE}", text) if "\\u001a" in text else text


def _any_doubled(value: Any) -> bool:
    left = [value]
    while left:
        inner = left.pop()
        if isinstance(inner, Doubled):
            return True
        if isinstance(inner, dict | list):
            left += inner.values() if isinstance(inner, dict) else inner
    return False


def _written(value: Any) -> str:
    if isinstance(value, dict):
        pairs = value.pairs if isinstance(value, Doubled) else list(value.items())
        return "{" + ",".join(f"{json.dumps(key)}:{_written(member)}" for key, member in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)
