import copy
import json
import re
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict

from adapters.base import ToolDeclaration
from adapters.names import ToolNames, wire_name
from adapters.schema import accepts_null, restore_optional, strict_form
from orchestrator.domain.errors import ConfigError
from tests.shared import shared


def _as_written(value: Any, canonical: dict[str, Any], root: dict[str, Any]) -> Any:
    """What a model under the strict form writes for an object: null for each optional property that it leaves out."""
    if isinstance(value, list) and isinstance(canonical.get("items"), dict):
        return [_as_written(member, canonical["items"], root) for member in value]
    if not isinstance(value, dict):
        return value
    properties: dict[str, Any] = canonical.get("properties") or next(
        (b["properties"] for b in canonical.get("anyOf", ()) if "properties" in b), {}
    )
    written = {name: _as_written(member, properties.get(name, {}), root) for name, member in value.items()}
    optional = [name for name in properties if name not in canonical.get("required", ())]
    return written | {name: None for name in optional if name not in value}


def test_every_sample_keeps_its_verdict() -> None:
    strict = 0
    for entry in json.loads((shared("workloads") / "schemas" / "schemas.json").read_text()):
        canonical = entry["parameters"]
        before = copy.deepcopy(canonical)
        form = strict_form(canonical)
        strict += form.strict
        assert canonical == before
        wire, ours = Draft202012Validator(form.schema), Draft202012Validator(canonical)
        Draft202012Validator.check_schema(form.schema)
        for sample in entry["valid"]:
            written = _as_written(sample, canonical, canonical) if form.strict else sample
            assert wire.is_valid(written), entry["id"]
            assert ours.is_valid(restore_optional(written, canonical)), entry["id"]
        for sample in [invalid["arguments"] for invalid in entry["invalid"]]:
            written = _as_written(sample, canonical, canonical) if form.strict else sample
            assert not ours.is_valid(restore_optional(written, canonical)), entry["id"]
            assert not wire.is_valid(written), entry["id"]
    assert strict > 150  # the transform is not a way to say no


def _subset_problems(schema: Any, at: str = "#") -> list[str]:
    """The rules of the strict subset, checked independently of the transform."""
    if isinstance(schema, list):
        return [p for i, part in enumerate(schema) for p in _subset_problems(part, f"{at}/{i}")]
    if not isinstance(schema, dict):
        return []
    found = [f"{at}: {word}" for word in ("default", "allOf", "oneOf", "not", "title", "minLength") if word in schema]
    kinds = schema.get("type", [])
    if kinds == "object" or "object" in kinds:
        if schema.get("additionalProperties") is not False:
            found.append(f"{at}: open")
        if set(schema["required"]) != set(schema["properties"]):
            found.append(f"{at}: optional")
    if "$ref" in schema and len(schema) > 1:
        found.append(f"{at}: words beside a reference")
    for name, part in schema.get("properties", {}).items():
        found += _subset_problems(part, f"{at}/{name}")
    for name, part in schema.get("$defs", {}).items():
        found += _subset_problems(part, f"{at}/$defs/{name}")
    for word in ("anyOf", "items"):
        found += _subset_problems(schema.get(word, []), f"{at}/{word}")
    return found


def test_strict_forms_obey_the_subset() -> None:
    for entry in json.loads((shared("workloads") / "schemas" / "schemas.json").read_text()):
        form = strict_form(entry["parameters"])
        if form.strict:
            assert _subset_problems(form.schema) == [], entry["id"]
        else:
            assert form.schema is entry["parameters"]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    item: str
    note: str | None = None
    count: int = 1


class _Order(BaseModel):
    """An order."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["a", "b"] = "a"
    lines: list[_Line]
    first: _Line | None = None
    parent: "_Order | None" = None


def test_pydantic_models_with_references_and_recursion() -> None:
    schema = _Order.model_json_schema()
    form = strict_form(schema)
    assert form.strict
    assert _subset_problems(form.schema) == []
    line = {"item": "x", "note": None, "count": None}
    inner: dict[str, Any] = {"kind": None, "lines": [], "first": None, "parent": None}
    written = {"kind": None, "lines": [line], "first": line, "parent": inner}
    assert Draft202012Validator(form.schema).is_valid(written)
    restored = restore_optional(written, schema)
    assert restored == {
        "lines": [{"item": "x", "note": None}],
        "first": {"item": "x", "note": None},
        "parent": {"lines": [], "first": None, "parent": None},
    }
    assert _Order.model_validate(restored).kind == "a"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}},  # open
        {"type": "array", "items": {}},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {"oneOf": []}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {"$ref": "#/x"}}, "additionalProperties": False},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A"}},
            "additionalProperties": False,
            "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}},
        },
    ],
)
def test_what_the_subset_cannot_say_travels_unchanged(schema: dict[str, Any]) -> None:
    form = strict_form(schema)
    assert not form.strict
    assert form.schema is schema
    assert restore_optional({"a": None}, schema) == {"a": None}


def test_null_stays_where_it_is_a_value() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "string"}, "c": {"enum": ["x", None]}},
        "required": ["b"],
        "additionalProperties": False,
    }
    assert restore_optional({"a": None, "b": None, "c": None, "d": None}, schema) == {
        "a": None,
        "b": None,
        "c": None,
        "d": None,
    }
    assert not accepts_null({"const": 1}, schema)


def _tools(*names: str) -> list[ToolDeclaration]:
    return [ToolDeclaration(name, "", {}) for name in names]


def test_every_real_name_maps_one_to_one_and_back() -> None:
    data = json.loads((shared("workloads") / "schemas" / "tool_names.json").read_text())
    colliding = [name for group in data["collisions_when_bad_characters_become_underscore"] for name in group]
    ours = list(dict.fromkeys([*data["names_not_matching"], *colliding, "naïve", "x" * 65, "a b", "☃"]))
    names = ToolNames(_tools(*ours))
    wire = [names.to_wire(name) for name in ours]
    assert len(set(wire)) == len(ours)
    assert all(re.fullmatch(data["pattern_all_providers"], name) for name in wire)
    assert [names.from_wire(name) for name in wire] == ours


def test_names_that_fit_stay_and_unknown_ones_come_back_as_they_are() -> None:
    names = ToolNames(_tools("get_order", "math.gcd"))
    assert names.to_wire("get_order") == "get_order"
    assert names.from_wire("transfer::get_order") == "transfer::get_order"
    assert names.to_wire("gone.tool") == wire_name("gone.tool")
    with pytest.raises(ConfigError):
        ToolNames(_tools("a", "a"))
    with pytest.raises(ConfigError):
        ToolNames(_tools("math.gcd", wire_name("math.gcd")))
