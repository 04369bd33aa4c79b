"""JSON bodies as providers send them: read once, with values that PostgreSQL can store."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from orchestrator.domain.transcript import JsonObject

# U+001A is the character for "a character stood here that cannot be kept". Unlike U+FFFD it is not allowed raw inside
# JSON, so argument text that held something unstorable is refused later instead of being repaired here.
SUBSTITUTE = "\x1a"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_MAX_CLEANED_DEPTH = 200


class UnreadableBody(ValueError):
    """The body is not JSON (cut, HTML, wrong encoding, absurdly deep)."""


def read_json(body: bytes) -> Any:
    """Parse a whole body; raises UnreadableBody. NUL, lone surrogates, NaN and infinities become `SUBSTITUTE`."""
    try:
        value = json.loads(body, parse_constant=lambda _: SUBSTITUTE, parse_float=_finite)
        return _storable(value, 0) if _SUSPECT.search(body) else value
    except (ValueError, RecursionError):
        raise UnreadableBody("the body is not JSON") from None


def _finite(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else SUBSTITUTE


def _storable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub(SUBSTITUTE, value)
    if depth > _MAX_CLEANED_DEPTH:
        raise UnreadableBody("too deep")
    if isinstance(value, dict):
        return {_storable(key, depth + 1): _storable(member, depth + 1) for key, member in value.items()}
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
    return "" if arguments is None else write_json(arguments).decode()
