"""Argument text of a tool call -> JSON object, or a refusal. Nothing is repaired, guessed or coerced."""

import json
import math
import re
from typing import Any, NoReturn

from orchestrator.domain.transcript import JsonObject

# The largest recorded argument text is a few kB; a model cannot write much more than this in one turn, and every
# accepted object is stored, hashed and shown to approvers.
MAX_BYTES = 64 * 1024
# Deeper than any real tool schema, and far from the recursion limits of the JSON parser, PostgreSQL and jsonschema.
MAX_DEPTH = 32
# PostgreSQL, RFC 8785 and most downstream services agree on integers of 64 bits at most.
MAX_INT = 2**63 - 1

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class ArgumentError(ValueError):
    """The text is not an acceptable argument object.

    `code` is stable: EMPTY, TOO_LARGE, TOO_DEEP, MALFORMED_JSON, NOT_AN_OBJECT, DUPLICATE_KEY, NUMBER_OUT_OF_RANGE or
    BAD_TEXT (a lone surrogate or NUL, which cannot be stored). The message is in our words and may go to the model.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def parse_arguments(text: str) -> JsonObject:
    """The argument object of a call; raises ArgumentError. An empty text is an error: `{}` is how no arguments look."""
    if not text.strip():
        raise ArgumentError("EMPTY", "the arguments are empty; write {} when there are none")
    _check_size(text)
    _check_depth(text)
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ArgumentError("TOO_DEEP", f"the arguments nest deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise ArgumentError("MALFORMED_JSON", f"the arguments are not valid JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise ArgumentError("NOT_AN_OBJECT", "the arguments must be one JSON object")
    if "\\u" in text:  # only an escape can still hide a character that the encoding check has not seen
        _check_text(value)
    return value


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ArgumentError("BAD_TEXT", "the arguments contain a lone surrogate") from None
    if size > MAX_BYTES:
        raise ArgumentError("TOO_LARGE", f"the arguments are larger than {MAX_BYTES} bytes")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise ArgumentError("TOO_DEEP", f"the arguments nest deeper than {MAX_DEPTH} levels")


def _check_text(value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value or _SURROGATE.search(value):
            raise ArgumentError("BAD_TEXT", "the arguments contain a lone surrogate or a NUL character")
    elif isinstance(value, dict):
        for key, member in value.items():
            _check_text(key)
            _check_text(member)
    elif isinstance(value, list):
        for member in value:
            _check_text(member)


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ArgumentError("DUPLICATE_KEY", "an object in the arguments names one key twice")
    return result


def _integer(digits: str) -> int:
    # 20 characters hold any 64-bit integer; longer ones are not even converted.
    if len(digits) > 20 or not -MAX_INT - 1 <= (value := int(digits)) <= MAX_INT:
        raise ArgumentError("NUMBER_OUT_OF_RANGE", "a number in the arguments is out of range")
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ArgumentError("NUMBER_OUT_OF_RANGE", "a number in the arguments is out of range")
    return value


def _constant(name: str) -> NoReturn:
    raise ArgumentError("MALFORMED_JSON", f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)
