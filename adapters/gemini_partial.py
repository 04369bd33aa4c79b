"""Vertex's `streamFunctionCallArguments`: one call whose arguments arrive in pieces, each with its JSON path.

Strings come in parts that are joined until a part says no more `willContinue`; every other value comes whole. Nothing
is guessed: a path that cannot be followed, a value set twice or a string that never ends makes the call unusable.
"""

import re
from itertools import pairwise
from typing import Any

from adapters.documents import Doubled, as_list, as_object, as_text
from orchestrator.domain.transcript import JsonObject

_STEP = re.compile(r"""\.([^.\[\]'"]+)|\[(\d{1,6})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_ESCAPED = re.compile(r"\\(.)")
_MAX_STEPS = 64
_NOTHING = object()


def is_partial(call: JsonObject) -> bool:
    return bool(call.get("willContinue")) or "partialArgs" in call


class PartialCall:
    """`take` gets each part of the call, the opening one first; `part` is then the whole call."""

    def __init__(self, opening: JsonObject) -> None:
        self._opening = opening
        self._call = as_object(opening["functionCall"])
        self._signature: Any = None
        self._arguments: JsonObject = dict(as_object(self._call.get("args")))
        self._strings: dict[str, list[str]] = {}
        self._wrong = isinstance(self._call.get("args"), Doubled)

    @property
    def broken(self) -> bool:
        return self._wrong or bool(self._strings)

    def take(self, part: JsonObject) -> None:
        self._signature = self._signature or part.get("thoughtSignature")
        for piece in as_list(as_object(part["functionCall"]).get("partialArgs")):
            self._piece(as_object(piece))

    def part(self) -> JsonObject:
        call: JsonObject = {k: v for k, v in self._call.items() if k not in ("partialArgs", "willContinue", "args")}
        whole = {**self._opening, "functionCall": {**call, "args": self._arguments}}
        return whole if self._signature is None else {**whole, "thoughtSignature": self._signature}

    def _piece(self, piece: JsonObject) -> None:
        path, goes_on = as_text(piece.get("jsonPath")), bool(piece.get("willContinue"))
        value = _value(piece)
        if isinstance(value, str) or (value is _NOTHING and (goes_on or path in self._strings)):
            self._strings.setdefault(path, []).append(value if isinstance(value, str) else "")
            if not goes_on:
                self._set(path, "".join(self._strings.pop(path)))
        elif value is _NOTHING or path in self._strings:
            self._wrong = True
        else:
            self._set(path, value)

    def _set(self, path: str, value: Any) -> None:
        steps = _steps(path)
        if not steps or not isinstance(steps[0], str):
            self._wrong = True
            return
        place: Any = self._arguments
        for step, following in pairwise(steps):
            place = _inside(place, step, [] if isinstance(following, int) else {})
        self._wrong = not _put(place, steps[-1], value) or self._wrong


def _value(piece: JsonObject) -> Any:
    if isinstance(piece.get("stringValue"), str):
        return piece["stringValue"]
    if "nullValue" in piece:
        return None
    return next((piece[name] for name in ("numberValue", "boolValue") if piece.get(name) is not None), _NOTHING)


def _steps(path: str) -> list[str | int]:
    """`$.a[0]['b c']` -> a, 0, "b c"; empty for what is no such path."""
    steps: list[str | int] = []
    position = 1 if path.startswith("$") else len(path) + 1
    while position < len(path) and len(steps) <= _MAX_STEPS:
        found = _STEP.match(path, position)
        if found is None:
            return []
        name, index, single, double = found.groups()
        quoted = single if single is not None else double
        steps.append(int(index) if index is not None else name or _ESCAPED.sub(r"\1", quoted or ""))
        position = found.end()
    return steps if len(steps) <= _MAX_STEPS else []


def _inside(place: Any, step: str | int, empty: Any) -> Any:
    """The container at this step, made where it is new; None where the path does not fit what is there."""
    if isinstance(place, dict) and isinstance(step, str):
        return place.setdefault(step, empty)
    if isinstance(place, list) and isinstance(step, int):
        if step == len(place):
            place.append(empty)
        return place[step] if step < len(place) else None
    return None


def _put(place: Any, step: str | int, value: Any) -> bool:
    if isinstance(place, dict) and isinstance(step, str) and step not in place:
        place[step] = value
        return True
    if isinstance(place, list) and step == len(place):
        place.append(value)
        return True
    return False
