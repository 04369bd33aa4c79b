"""Schemas for Anthropic: the strict subset, the loose form, what one request may hold, and keys that it refuses."""

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from adapters.anthropic_schema import StrictRoom, loose_form, strict_form, wire_keys, with_wire_keys
from adapters.base import Endpoint, HttpResponse, ModelRequest, ToolDeclaration
from adapters.registry import adapter_for
from orchestrator.domain.transcript import UserText
from tests.shared import shared

ADAPTER = adapter_for("anthropic-messages")


def _samples() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared("workloads") / "schemas" / "schemas.json").read_text())
    return found


def _problems(schema: Any, at: str = "#") -> list[str]:
    """The rules of the strict subset, checked independently of the transform."""
    allowed = {"type", "title", "description", "enum", "const", "anyOf", "properties", "required", "items", "format"}
    found = [f"{at}: {word}" for word in schema.keys() - allowed - {"additionalProperties", "minItems"}]
    if not schema.keys() & {"type", "enum", "const", "anyOf"}:
        found.append(f"{at}: says nothing")
    if schema.get("minItems", 0) not in (0, 1):
        found.append(f"{at}: minItems")
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            found.append(f"{at}: open")
        for name, part in schema["properties"].items():
            found += _problems(part, f"{at}/{name}")
    if schema.get("type") == "array":
        found += _problems(schema["items"], f"{at}/items")
    for part in schema.get("anyOf", ()):
        found += _problems(part, f"{at}/anyOf")
    return found


def test_every_valid_sample_can_be_said_in_the_form_that_is_sent() -> None:
    strict = 0
    for entry in _samples():
        canonical = entry["parameters"]
        before = copy.deepcopy(canonical)
        form, loose = strict_form(canonical), loose_form(canonical)
        strict += form.strict
        assert canonical == before
        for schema in (form.schema, loose):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            assert not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}
            wire = Draft202012Validator(schema)
            assert all(wire.is_valid(sample) for sample in entry["valid"]), entry["id"]
        if form.strict:
            assert _problems(form.schema) == [], entry["id"]
    assert strict > 150  # the transform is not a way to say no


def _closed(**properties: Any) -> dict[str, Any]:
    required = [name for name in properties if not name.startswith("opt")]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (
            {"type": "integer", "minimum": 1, "default": 3},
            {"type": "integer", "description": "{minimum: 1, default: 3}"},
        ),
        (
            {"type": "string", "format": "phone", "description": "Call."},
            {"type": "string", "description": 'Call.\n\n{format: "phone"}'},
        ),
        ({"type": "string", "format": "uri"}, {"type": "string", "format": "uri"}),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2},
            {"type": "array", "items": {"type": "null"}, "description": "{minItems: 2}"},
        ),
        ({"type": "string", "enum": ["a", "b"]}, {"enum": ["a", "b"]}),
        ({"const": 4}, {"const": 4}),
        (
            {"type": ["string", "null"], "maxLength": 3, "title": "T"},
            {"anyOf": [{"type": "string", "description": "{maxLength: 3}"}, {"type": "null"}], "title": "T"},
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        ({"allOf": [{"type": "string"}], "description": "D"}, {"type": "string", "description": "D"}),
        ({"$ref": "#/$defs/N", "description": "D"}, {"type": "number", "description": "D"}),
    ],
)
def test_what_becomes_of_a_property(given: Any, sent: Any) -> None:
    form = strict_form({**_closed(a=given), "$defs": {"N": {"type": "number"}}})
    assert form.strict
    assert form.schema == _closed(a=sent)


LOOP = {"type": "object", "properties": {"next": {"$ref": "#/$defs/L"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"$ref": "#/$defs/L"},
        {"$ref": "other.json"},
        {"type": "array"},
        {"type": "array", "items": True},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}},
        {"type": "string", "anyOf": [{"minLength": 1}]},
        {"allOf": [{"type": "string"}, {"minLength": 1}]},
        {"enum": [{"a": 1}]},
        {},
        True,
        _closed(**{"filter[id]": {"type": "string"}}),
    ],
)
def test_what_the_subset_cannot_say_is_sent_as_it_is(given: Any) -> None:
    schema = {**_closed(a=given), "$defs": {"L": LOOP}}
    form = strict_form(schema)
    assert (form.strict, form.schema) == (False, schema)


def test_the_root_is_an_object_without_alternatives_in_any_case() -> None:
    either = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert strict_form({"properties": {"a": {}}, **either, "$schema": "x"}).schema == {
        "type": "object",
        "properties": {"a": {}},
        "description": '{anyOf: [{"required": ["a"]}, {"required": ["b"]}]}',
    }
    named = {"$ref": "#/$defs/R", "$defs": {"R": {"type": "object", "properties": {"a": {}}}}}
    assert loose_form(named)["properties"] == {"a": {}}


def test_references_that_expand_without_end_are_given_up() -> None:
    defs: dict[str, Any] = {
        f"D{i}": _closed(a={"$ref": f"#/$defs/D{i + 1}"}, b={"$ref": f"#/$defs/D{i + 1}"}) for i in range(30)
    }
    assert not strict_form({**_closed(a={"$ref": "#/$defs/D0"}), "$defs": {**defs, "D30": {"type": "null"}}}).strict


def test_what_one_request_may_hold() -> None:
    plain = strict_form(_closed(a={"type": "null"}))
    room = StrictRoom()
    assert [room.takes(plain) for _ in range(21)] == [True] * 20 + [False]
    assert room.takes(plain, tool=False)
    optional = strict_form(_closed(**{f"opt{i}": {"type": "null"} for i in range(18)}))
    room = StrictRoom()
    assert [room.takes(form) for form in (optional, optional, plain)] == [True, False, True]
    unions = strict_form(_closed(**{f"u{i}": {"type": ["null", "string"]} for i in range(17)}))
    assert not StrictRoom().takes(unions)
    tools = tuple(ToolDeclaration(f"t{i}", "d", _closed(a={"type": "null"})) for i in range(22))
    sent = json.loads(ADAPTER.to_request(ModelRequest("m", "", (UserText("x"),), tools), Endpoint("http://h")).body)
    assert [tool.get("strict", False) for tool in sent["tools"]] == [True] * 20 + [False] * 2


def test_refused_keys_travel_under_other_names_and_come_back() -> None:
    schema = _closed(**{"filter[id]": {"type": "string"}, "año": {"type": "number"}, "ok": {"type": "null"}})
    keys = wire_keys(schema)
    assert set(keys) == {"filter[id]", "año"}
    sent = with_wire_keys(schema)
    assert sent["required"] == list(sent["properties"]) == [keys["filter[id]"], keys["año"], "ok"]
    request = ModelRequest("m", "", (UserText("x"),), (ToolDeclaration("t", "d", schema),))
    for text, back in (
        (f'{{"{keys["año"]}": 1.50, "ok": null, "ok": 1}}', '{"a\\u00f1o": 1.50, "ok": null, "ok": 1}'),
        (f'{{"{keys["año"]}": ', f'{{"{keys["año"]}": '),
    ):
        block = {"type": "tool_use", "id": "c", "name": "t", "input": text}
        body = json.dumps({"id": "m", "content": [block], "stop_reason": "tool_use"}).encode()
        reply = ADAPTER.from_response(HttpResponse(200, {}, body), request)
        assert [call.arguments_text for call in reply.calls] == [back]
