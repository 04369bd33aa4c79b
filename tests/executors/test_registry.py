"""ToolSpec: each bad field is named when the tool is registered, long before anything runs."""

from dataclasses import fields
from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from executors.context import Context
from executors.outcomes import Absent, Accepted, Reconciled
from executors.registry import IdempotencyContract, Registry, ToolSpec, tool
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import Effect
from policy.profile import Budgets, Model, Profile


class Args(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    order: str
    day: date | None = None


class Result(BaseModel):
    id: str
    text: str = ""


class Loose(BaseModel):
    order: str


def run(args: Args, ctx: Context) -> Result:
    return Result(id="1")


def look_up(args: Args, key: str, reference: str | None, ctx: Context) -> Reconciled:
    return Absent()


GOOD: dict[str, Any] = {
    "name": "note", "description": "Write a note.", "arguments": Args, "result": Result, "handler": run,
    "effect": Effect.READ,
}  # fmt: skip
CREATE = {"effect": Effect.CREATE, "idempotency": IdempotencyContract()}


def spec(**changed: Any) -> ToolSpec:
    return ToolSpec(**(GOOD | changed))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"name": "1note"}, "name must be"),
        ({"name": "no spaces"}, "name must be"),
        ({"name": "n" * 65}, "name must be"),
        ({"name": "note\n"}, "name must be"),
        ({"description": "  "}, "description is empty"),
        ({"version": ""}, "version is empty"),
        ({"queue": "Reads"}, "queue 'Reads'"),
        ({"queue": "reads\n"}, "queue"),
        ({"queue": "orchestrator"}, "queue 'orchestrator' is reserved"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"max_attempts": 0}, "max_attempts must be"),
        ({"max_result_bytes": 255}, "max_result_bytes must be"),
        ({"arguments": Loose}, "arguments model Loose must set extra='forbid'"),
        ({"intent": ()}, "intent is empty"),
        ({"intent": ("order", "colour")}, "intent field 'colour'"),
        ({"expose": frozenset({"secret"})}, "expose field 'secret'"),
        ({"reference_field": "ref"}, "reference_field 'ref'"),
        ({"effect": Effect.CREATE}, "a create tool needs an idempotency contract or a reconcile handler"),
        (CREATE | {"unreconcilable": True}, "unreconcilable=True contradicts"),
        ({"effect": Effect.CREATE, "reconcile": look_up, "unreconcilable": True}, "unreconcilable=True contradicts"),
        ({"idempotency": IdempotencyContract()}, "a read takes no idempotency contract"),
        ({"unreconcilable": True}, "a read takes no idempotency contract"),
        (CREATE | {"repeatable": True}, "repeatable is for overwrite tools"),
        ({"repeatable": True}, "repeatable is for overwrite tools"),
    ],
)
def test_a_bad_field_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(**changed)
    assert caught.value.code == "BAD_TOOL_SPEC"
    assert named in caught.value.message
    assert repr(changed.get("name", "note")) in caught.value.message


@pytest.mark.parametrize(
    "changed",
    [
        {},
        CREATE,
        {"effect": Effect.CREATE, "reconcile": look_up},
        {"effect": Effect.CREATE, "unreconcilable": True},
        {"effect": Effect.OVERWRITE},
        {"effect": Effect.OVERWRITE, "repeatable": True},
        {"effect": Effect.OVERWRITE, "unreconcilable": True},
        {"egress": True, "approval": True, "concurrency": 1, "max_result_bytes": 256, "queue": "slow_1"},
    ],
)
def test_a_good_spec_is_taken(changed: dict[str, Any]) -> None:
    assert spec(**changed).name == "note"


def test_defaults() -> None:
    assert spec().queue == "reads"
    assert spec(effect=Effect.OVERWRITE).queue == "writes"
    assert spec().intent_fields == ("order", "day")
    assert spec(intent=("day",)).intent_fields == ("day",)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, False),
        ({"egress": True}, True),
        ({"approval": True}, True),
        ({"approval": lambda args, principal: False}, True),
        ({"effect": Effect.OVERWRITE}, True),
    ],
)
def test_what_is_tracked_as_an_action(changed: dict[str, Any], expected: bool) -> None:
    assert spec(**changed).needs_action is expected


def test_stored_arguments_load_as_the_strict_model_they_came_from() -> None:
    stored = Args(order="A1", day=date(2026, 3, 1)).model_dump(mode="json")
    assert spec().load(stored) == Args(order="A1", day=date(2026, 3, 1))


def test_decorator_takes_models_from_annotations() -> None:
    @tool(effect="create", unreconcilable=True, timeout=3)
    def send_note(args: Args, ctx: Context) -> Result | Accepted:
        """Send a note."""
        return Result(id="1")

    assert (send_note.name, send_note.description) == ("send_note", "Send a note.")
    assert (send_note.arguments, send_note.result, send_note.timeout) == (Args, Result, 3)


def test_decorator_names_a_handler_without_models() -> None:
    def bare(args, ctx):  # type: ignore[no-untyped-def]
        return None

    with pytest.raises(ConfigError, match="'bare' must be annotated"):
        tool(effect="read", description="x")(bare)


def profile(**changed: Any) -> Profile:
    model = Model(api="openai-chat", name="m", base_url="http://h/v1")
    return Profile(**({"name": "desk", "model": model, "instructions": "x", "tools": ("note",)} | changed))


def test_registry_refuses_a_second_of_the_same_name() -> None:
    registry = Registry()
    registry.add(spec())
    with pytest.raises(ConfigError, match="'note' is registered twice"):
        registry.add(spec(description="another"))
    registry.add_profile(profile())
    with pytest.raises(ConfigError, match="'desk' is registered twice"):
        registry.add_profile(profile(version="2"))
    assert registry.tool("note") == spec()
    assert registry.tool("other") is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tools": ("note", "ghost")}, "'ghost'"),
        ({"budgets": Budgets(calls_per_tool={"ghost": 1})}, "'ghost'"),
        ({"tools": (), "required_tools": ("note",)}, "required tool 'note' is not in tools"),
    ],
)
def test_check_names_what_a_profile_gets_wrong(changed: dict[str, Any], named: str) -> None:
    registry = Registry()
    registry.add(spec())
    registry.add_profile(profile(**changed))
    with pytest.raises(ConfigError, match="profile 'desk'") as caught:
        registry.check()
    assert named in caught.value.message


def test_every_field_of_the_contract_exists() -> None:
    """DESIGN section 6 lists them; a renamed one would break every registered tool."""
    named = {
        "name", "version", "description", "arguments", "result", "effect", "egress", "queue", "timeout", "concurrency",
        "scopes", "authorize", "approval", "intent", "repeatable", "idempotency", "reconcile", "max_result_bytes",
    }  # fmt: skip
    assert named <= {f.name for f in fields(ToolSpec)}
    assert IdempotencyContract().retention == timedelta(hours=24)
