"""The text of a value as it stood in a JSON body, for argument objects that travel as JSON and not as text.

An ordinary parser hides what the argument parser must refuse: a key written twice, NaN, an integer out of range, a lone
surrogate. Here objects remember every pair and numbers their digits, so that `exact_text` gives all of it back.
"""

import json
from collections.abc import Mapping
from typing import Any

from adapters.documents import UnreadableBody


class _Digits(str):
    __slots__ = ()


class _Object(dict[str, Any]):
    """A dict that also knows each pair of the source."""

    pairs: list[tuple[str, Any]]


def read_exact(body: bytes) -> Any:
    """Parse a whole body for `exact_text`; its objects are dicts. Raises UnreadableBody."""
    try:
        return _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError):
        raise UnreadableBody("the body is not JSON") from None


def exact_text(value: Any) -> str:
    """JSON text of a part of what `read_exact` gave. Raises UnreadableBody where it is absurdly deep."""
    try:
        return _text(value)
    except RecursionError:
        raise UnreadableBody("too deep") from None


def rename_keys(text: str, keys: Mapping[str, str]) -> str:
    """The text of an object with some keys of its root renamed, and nothing else; text that is no object stays."""
    try:
        value = read_exact(text.encode())
        if isinstance(value, _Object) and not keys.keys().isdisjoint(value):
            return exact_text(_object([(keys.get(name, name), member) for name, member in value.pairs]))
    except (UnreadableBody, UnicodeEncodeError):
        pass
    return text


def _text(value: Any) -> str:
    if isinstance(value, _Digits):
        return str(value)
    if isinstance(value, _Object):
        return "{" + ", ".join(f"{json.dumps(name)}: {_text(member)}" for name, member in value.pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value)


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object(pairs)
    result.pairs = pairs
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_Digits, parse_int=_Digits, parse_constant=_Digits)
