"""Argument models from JSON Schema: the tools of a workload are known only when its folder is read."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

JsonObject = dict[str, Any]

_CLOSED = ConfigDict(extra="forbid", frozen=True, strict=True)
_PLAIN: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}


def from_schema(name: str, schema: Mapping[str, Any]) -> type[BaseModel]:
    """A closed, strict model of an object schema. Raises ValueError for a keyword that it does not know."""
    return _object(name, schema, schema.get("$defs", {}))


def from_values(name: str, values: Mapping[str, Any]) -> type[BaseModel]:
    """A model whose fields have the types of the example `values`."""
    fields: Any = {key: (type(value), ...) for key, value in values.items()}
    return create_model(name, __config__=_CLOSED, **fields)


def _object(name: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> type[BaseModel]:
    required = set(schema.get("required", ()))
    fields: Any = {}
    for key, part in schema.get("properties", {}).items():
        default = ... if key in required else part.get("default")
        kind = _type(f"{name}_{key}", part, definitions)
        if default is None and key not in required and "default" not in part:
            kind = kind | None
        fields[key] = (kind, Field(default, description=part.get("description")))
    return create_model(name, __config__=_CLOSED, **fields)


def _type(name: str, part: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    if "$ref" in part:
        return _type(name, definitions[part["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in part:
        return reduce(or_, (_type(name, one, definitions) for one in part["anyOf"]))
    if "enum" in part:
        return Literal[tuple(part["enum"])]
    match part.get("type"):
        case "array":
            return list[_type(name, part["items"], definitions)]  # type: ignore[misc]
        case "object":
            return _object(name, part, definitions) if "properties" in part else dict[str, Any]
        case str(kind) if kind in _PLAIN:
            return _PLAIN[kind]
    raise ValueError(f"{name}: cannot build a type from {sorted(part)}")
