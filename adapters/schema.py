"""Canonical JSON Schema -> the strict subset of the OpenAI APIs, where it can be said there exactly.

The subset: the root and every inner object are closed, every property is required, an optional one becomes nullable.
A schema that would change its meaning travels unchanged and not strict; the host validates against the canonical
schema in any case. On the way back null stands for "absent": see `restore_optional`.
"""

import json
from typing import Any, NamedTuple

from orchestrator.domain.transcript import JsonObject

MAX_NESTING = 10  # the documented limit of the subset
MAX_PROPERTIES = 5000

_ANNOTATIONS = frozenset(
    {"description", "title", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)
_DROPPED = _ANNOTATIONS - {"description"} | {"$schema", "$id"}
_LIMITS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "pattern"}
)
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_STRUCTURE = frozenset(
    {
        "type",
        "enum",
        "const",
        "anyOf",
        "allOf",
        "$ref",
        "$defs",
        "properties",
        "required",
        "additionalProperties",
        "items",
    }
)
_KNOWN = _STRUCTURE | _LIMITS | _DROPPED | {"description", "format"}
_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class StrictForm(NamedTuple):
    """`strict` False: `schema` is the very schema that was given."""

    schema: JsonObject
    strict: bool


class _Inexpressible(Exception):
    """The subset cannot say this schema exactly."""


def strict_form(schema: JsonObject) -> StrictForm:
    """The schema for the wire and whether it may be sent as strict. Pure; the input is not changed."""
    try:
        return StrictForm(_Transform(schema).root(), True)
    except (_Inexpressible, RecursionError):  # the latter: definitions that only refer to each other
        return StrictForm(schema, False)


def restore_optional(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Undo the strict form: leave out a null where the canonical schema has an optional property that is never null.

    Only for arguments of a tool that was sent as strict; for a schema that has no strict form nothing changes.
    """
    return _restore(arguments, schema, schema) if strict_form(schema).strict else arguments


def _restore(value: Any, schema: JsonObject, root: JsonObject) -> Any:
    if isinstance(value, list):
        shape = _shape(schema, root, "array")
        return [_restore(member, shape["items"], root) for member in value] if "items" in shape else value
    if not isinstance(value, dict):
        return value
    shape = _shape(schema, root, "object")
    properties, required = shape.get("properties", {}), shape.get("required", ())
    result = {}
    for name, member in value.items():
        inner = properties.get(name)
        if inner is None:
            result[name] = member
        elif member is not None or name in required or accepts_null(inner, root):
            result[name] = _restore(member, inner, root)
    return result


def _shape(schema: JsonObject, root: JsonObject, kind: str) -> JsonObject:
    """The one part of a schema that describes values of this kind; the strict form allows no second one."""
    schema = _resolve(schema, root)
    if kind in _types(schema):
        return schema
    for branch in schema.get("anyOf", ()):
        found = _shape(branch, root, kind)
        if found:
            return found
    return {}


def accepts_null(schema: JsonObject, root: JsonObject) -> bool:
    """Whether null is a valid value of a schema that has a strict form."""
    schema = _resolve(schema, root)
    if "type" in schema and "null" not in _types(schema):
        return False
    if "enum" in schema and None not in schema["enum"]:
        return False
    if "const" in schema and schema["const"] is not None:
        return False
    return "anyOf" not in schema or any(accepts_null(branch, root) for branch in schema["anyOf"])


def _resolve(schema: JsonObject, root: JsonObject) -> JsonObject:
    """Follow `$ref` and single `allOf`, keeping the keywords beside them."""
    for _ in range(MAX_NESTING):
        if "$ref" in schema:
            target = _target(schema["$ref"], root)
            schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
        elif len(schema.get("allOf", ())) == 1:
            schema = {**schema["allOf"][0], **{k: v for k, v in schema.items() if k != "allOf"}}
        else:
            return schema
    raise _Inexpressible


def _target(reference: Any, root: JsonObject) -> JsonObject:
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        found = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        if isinstance(found, dict):
            return found
    raise _Inexpressible


def _types(schema: JsonObject) -> tuple[str, ...]:
    kind = schema.get("type", ())
    return (kind,) if isinstance(kind, str) else tuple(kind)


class _Transform:
    def __init__(self, schema: JsonObject) -> None:
        self._root = schema
        self._properties = 0

    def root(self) -> JsonObject:
        schema = _resolve(self._root, self._root)
        if _types(schema) != ("object",) or "anyOf" in schema:
            raise _Inexpressible
        result = self._node({k: v for k, v in schema.items() if k != "$defs"}, 0)
        definitions = self._root.get("$defs")
        if definitions:
            result["$defs"] = {name: self._node(part, 1) for name, part in definitions.items()}
        return result

    def _node(self, schema: Any, depth: int) -> JsonObject:
        if not isinstance(schema, dict) or depth > MAX_NESTING or "$defs" in schema or not schema.keys() <= _KNOWN:
            raise _Inexpressible
        if "$ref" in schema:
            return self._reference(schema, depth)
        if "allOf" in schema:
            return self._single(schema, depth)
        result = self._scalars(schema)
        if "anyOf" in schema:
            result["anyOf"] = self._branches(schema, depth)
        elif not _types(result):
            raise _Inexpressible
        if "object" in _types(result):
            self._object(schema, result, depth)
        if "array" in _types(result):
            result["items"] = self._node(schema.get("items"), depth + 1)
        return result

    def _reference(self, schema: JsonObject, depth: int) -> JsonObject:
        """A bare reference stays (it may be recursive); one with words beside it is replaced by its target."""
        beside = {k: v for k, v in schema.items() if k != "$ref" and k not in _DROPPED}
        target = _target(schema["$ref"], self._root)
        if not beside.keys() <= _ANNOTATIONS:
            raise _Inexpressible
        return self._node({**target, **beside}, depth + 1) if beside else {"$ref": schema["$ref"]}

    def _single(self, schema: JsonObject, depth: int) -> JsonObject:
        parts = schema["allOf"]
        beside = {k: v for k, v in schema.items() if k != "allOf"}
        if len(parts) != 1 or not isinstance(parts[0], dict) or not beside.keys() <= _ANNOTATIONS:
            raise _Inexpressible
        return self._node({**parts[0], **beside}, depth + 1)

    def _scalars(self, schema: JsonObject) -> JsonObject:
        """The keywords that are copied; the annotations that the subset refuses are dropped."""
        result = {k: v for k, v in schema.items() if k in _LIMITS or k in ("type", "enum", "description")}
        if "(?" in str(schema.get("pattern", "")):  # look-around and flags are not supported
            raise _Inexpressible
        if schema.get("format") in _FORMATS:
            result["format"] = schema["format"]
        if "const" in schema:
            if "enum" in schema:
                raise _Inexpressible
            result["enum"] = [schema["const"]]
        if "enum" in result and "type" not in result:
            result["type"] = _enum_type(result["enum"])
        if schema.get("default") is not None:
            said = schema.get("description", "")
            result["description"] = f"{said} Default: {json.dumps(schema['default'])}.".strip()
        return result

    def _branches(self, schema: JsonObject, depth: int) -> list[JsonObject]:
        """At most one branch may be an object and one an array: lookalikes are refused, and we must tell them apart."""
        branches = schema["anyOf"]
        if "type" in schema or "enum" in schema or not isinstance(branches, list) or not branches:
            raise _Inexpressible
        done = [self._node(branch, depth) for branch in branches]
        for kind in ("object", "array"):
            if sum(bool(_shape(branch, self._root, kind)) for branch in branches) > 1:
                raise _Inexpressible
        return done

    def _object(self, schema: JsonObject, result: JsonObject, depth: int) -> None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("additionalProperties") is not False or not set(required) <= properties.keys():
            raise _Inexpressible
        self._properties += len(properties)
        if self._properties > MAX_PROPERTIES:
            raise _Inexpressible
        result["properties"] = {
            name: self._property(inner, name in required, depth + 1) for name, inner in properties.items()
        }
        result["required"] = list(properties)
        result["additionalProperties"] = False

    def _property(self, schema: Any, required: bool, depth: int) -> JsonObject:
        node = self._node(schema, depth)
        return node if required or accepts_null(schema, self._root) else _nullable(node)


def _enum_type(values: list[Any]) -> str | list[str]:
    names = sorted({_TYPES.get(type(value), "") for value in values})
    if "" in names or not names:
        raise _Inexpressible
    return names[0] if len(names) == 1 else names


def _nullable(node: JsonObject) -> JsonObject:
    if "anyOf" in node:
        return {**node, "anyOf": [*node["anyOf"], {"type": "null"}]}
    kinds = _types(node)
    if not kinds or "object" in kinds or "array" in kinds:
        said = {"description": node["description"]} if "description" in node else {}
        return {**said, "anyOf": [{k: v for k, v in node.items() if k != "description"}, {"type": "null"}]}
    wider = {**node, "type": [*kinds, "null"]}
    if "enum" in node:
        wider["enum"] = [*node["enum"], None]
    return wider
