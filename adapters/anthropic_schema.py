"""Canonical JSON Schema -> what Anthropic Messages accepts, strict where its subset can say the structure.

Strict: every object closed, one type (or literals) per node, no recursion; limits such as `minimum` or `pattern` move
into the description, where the model reads them and the host enforces them. An optional property stays optional, so
arguments come back as they were meant. Everything else travels as it is and not strict. In both forms the root is an
object and has no `anyOf`, `oneOf` or `allOf`, which the API refuses even where it is not strict.

All strict schemas of one request are compiled together, within limits: see `StrictRoom`. One property of a tool's root
whose name the API refuses makes it refuse the whole request, so such names travel as others: see `wire_keys`.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.transcript import JsonObject

MAX_NESTING = 32
MAX_NODES = 2000  # references are expanded, and a few of them can expand to very many
_COMBINATORS = ("anyOf", "oneOf", "allOf")
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"},
)
_DROPPED = frozenset({"$schema", "$id", "$comment"})
_WORDS = frozenset({"description", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"})
# With these the structure itself would change, or they refer to what the subset does not have.
_STRUCTURAL = frozenset(
    {"patternProperties", "prefixItems", "additionalItems", "definitions", "$defs", "$anchor", "$dynamicRef"}
)
_DEFS = "#/$defs/"
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Form:
    """`optional` and `unions` are what a strict schema takes of the request's limits."""

    schema: JsonObject
    strict: bool
    optional: int = 0
    unions: int = 0


class StrictRoom:
    """The documented limits of one request. First come, first served: what does not fit is sent not strict."""

    def __init__(self) -> None:
        self._tools, self._optional, self._unions = 20, 24, 16

    def takes(self, form: Form, *, tool: bool = True) -> bool:
        if not form.strict or (tool and not self._tools):
            return False
        if form.optional > self._optional or form.unions > self._unions:
            return False
        self._tools -= tool
        self._optional -= form.optional
        self._unions -= form.unions
        return True


class _Inexpressible(Exception):
    """The subset cannot say this schema."""


def strict_form(schema: JsonObject) -> Form:
    """The schema in the strict subset, or else its loose form. Pure; the input is not changed."""
    transform = _Transform(schema)
    try:
        return Form(transform.root(), True, transform.optional, transform.unions)
    except (_Inexpressible, RecursionError):
        return Form(loose_form(schema), False)


def loose_form(schema: JsonObject) -> JsonObject:
    """The schema as it is, but for what the API demands of a root."""
    root = _resolved(schema)
    moved = {name: root.pop(name) for name in _COMBINATORS if name in root}
    return _described({**root, "type": "object"}, moved)


def wire_keys(schema: JsonObject) -> dict[str, str]:
    """Name -> name on the wire, of the root's properties whose own names the API refuses; mostly none."""
    properties = _resolved(schema).get("properties", {})
    return {name: _wire_key(name) for name in properties if not _KEY.fullmatch(name)}


def with_wire_keys(schema: JsonObject) -> JsonObject:
    """The schema with those properties renamed; the same schema where there are none."""
    keys = wire_keys(schema)
    if not keys:
        return schema
    root = _resolved(schema)
    root["properties"] = {keys.get(name, name): inner for name, inner in root["properties"].items()}
    if "required" in root:
        root["required"] = [keys.get(name, name) for name in root["required"]]
    return root


def _wire_key(name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:53]}_{digest}"


def _resolved(schema: JsonObject) -> JsonObject:
    """A root of its own in place of a reference or a single `allOf`."""
    root = {name: value for name, value in schema.items() if name not in _DROPPED}
    if isinstance(root.get("$ref"), str) and root["$ref"].startswith(_DEFS):
        target = _definition(root["$ref"], schema) or {}
        root = {**target, **{name: value for name, value in root.items() if name != "$ref"}}
    if len(root.get("allOf", ())) == 1 and isinstance(root["allOf"][0], dict):
        root = {**root.pop("allOf")[0], **root}
    return root


def _definition(reference: str, root: JsonObject) -> JsonObject | None:
    found = root.get("$defs", {}).get(reference.removeprefix(_DEFS))
    return found if isinstance(found, dict) else None


def _described(node: JsonObject, moved: JsonObject) -> JsonObject:
    """Keywords that have no place in the schema are told to the model in words."""
    if not moved:
        return node
    told = ", ".join(f"{name}: {json.dumps(value)}" for name, value in moved.items())
    said = node.get("description")
    return {**node, "description": f"{said}\n\n{{{told}}}" if said else f"{{{told}}}"}


class _Transform:
    def __init__(self, schema: JsonObject) -> None:
        self._root = schema
        self._open: list[str] = []  # references being followed: one that meets itself is recursive
        self._nodes = 0
        self.optional = 0
        self.unions = 0

    def root(self) -> JsonObject:
        """References are replaced by their targets: the API counts what they expand to, and so do we."""
        result = self._node({name: value for name, value in self._root.items() if name != "$defs"}, 0)
        if result.get("type") != "object":
            raise _Inexpressible
        return result

    def _node(self, schema: Any, depth: int) -> JsonObject:
        self._nodes += 1
        if not isinstance(schema, dict) or depth > MAX_NESTING or self._nodes > MAX_NODES:
            raise _Inexpressible
        if not _STRUCTURAL.isdisjoint(schema):
            raise _Inexpressible
        rest = {name: value for name, value in schema.items() if name not in _DROPPED}
        result = {name: rest.pop(name) for name in ("title", "description") if isinstance(rest.get(name), str)}
        if "$ref" in rest:
            return self._reference(rest, result, depth)
        if "allOf" in rest:
            return self._single(rest, result, depth)
        if "anyOf" in rest or "oneOf" in rest:
            self._union(rest, result, depth)
        elif "enum" in rest or "const" in rest:
            _literals(rest, result)
        elif isinstance(rest.get("type"), list):
            return self._types(rest, result, depth)
        else:
            self._typed(rest, result, depth)
        return _described(result, rest)

    def _reference(self, rest: JsonObject, words: JsonObject, depth: int) -> JsonObject:
        reference = rest.pop("$ref")
        target = _definition(reference, self._root) if isinstance(reference, str) else None
        if target is None or reference in self._open or not rest.keys() <= _WORDS:
            raise _Inexpressible
        self._open.append(reference)
        result = self._node({**target, **words, **rest}, depth + 1)
        self._open.pop()
        return result

    def _single(self, rest: JsonObject, words: JsonObject, depth: int) -> JsonObject:
        parts = rest.pop("allOf")
        one = isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict)
        if not one or not rest.keys() <= _WORDS:
            raise _Inexpressible
        return self._node({**parts[0], **words, **rest}, depth + 1)

    def _union(self, rest: JsonObject, result: JsonObject, depth: int) -> None:
        branches = rest.pop("anyOf") if "anyOf" in rest else rest.pop("oneOf")
        if not isinstance(branches, list) or not branches or not rest.keys() <= _WORDS:
            raise _Inexpressible
        self.unions += 1
        result["anyOf"] = [self._node(branch, depth + 1) for branch in branches]

    def _types(self, rest: JsonObject, result: JsonObject, depth: int) -> JsonObject:
        """Several types are as many branches, each with the keywords that speak of it."""
        kinds = rest.pop("type")
        words = {name: rest.pop(name) for name in tuple(rest) if name in _WORDS}
        if not kinds:
            raise _Inexpressible
        if len(kinds) == 1:
            return self._node({**result, **rest, **words, "type": kinds[0]}, depth + 1)
        self.unions += 1
        result["anyOf"] = [self._node({**_about(rest, kind), "type": kind}, depth + 1) for kind in kinds]
        return _described(result, words)

    def _typed(self, rest: JsonObject, result: JsonObject, depth: int) -> None:
        kind = result["type"] = rest.pop("type", None)
        if kind == "object":
            self._object(rest, result, depth)
        elif kind == "array":
            result["items"] = self._node(rest.pop("items", None), depth + 1)
            if rest.get("minItems") in (0, 1):
                result["minItems"] = rest.pop("minItems")
        elif kind == "string":
            if rest.get("format") in _FORMATS:
                result["format"] = rest.pop("format")
        elif kind not in ("integer", "number", "boolean", "null"):
            raise _Inexpressible

    def _object(self, rest: JsonObject, result: JsonObject, depth: int) -> None:
        properties, required = rest.pop("properties", {}), rest.pop("required", [])
        if rest.pop("additionalProperties", None) is not False or not set(required) <= properties.keys():
            raise _Inexpressible
        if not all(map(_KEY.fullmatch, properties)):
            raise _Inexpressible
        self.optional += len(properties) - len(set(required))
        result["properties"] = {name: self._node(inner, depth + 1) for name, inner in properties.items()}
        result["required"] = list(required)
        result["additionalProperties"] = False


def _literals(rest: JsonObject, result: JsonObject) -> None:
    """Literals say their type themselves. A `const` beside an `enum` is told in words."""
    rest.pop("type", None)
    values = rest.get("enum", [rest.get("const")])
    if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
        raise _Inexpressible
    name = "enum" if "enum" in rest else "const"
    result[name] = rest.pop(name)


_NUMERIC = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_ABOUT: dict[Any, frozenset[str]] = {
    "object": frozenset(
        {"properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames"}
    ),
    "array": frozenset({"items", "minItems", "maxItems", "uniqueItems", "contains"}),
    "string": frozenset({"format", "pattern", "minLength", "maxLength"}),
    "number": _NUMERIC,
    "integer": _NUMERIC,
}
_TYPED = frozenset().union(*_ABOUT.values())


def _about(rest: JsonObject, kind: Any) -> JsonObject:
    """The keywords that speak of one type, and any that speak of none."""
    others = _TYPED - _ABOUT.get(kind, frozenset())
    return {name: value for name, value in rest.items() if name not in others}
