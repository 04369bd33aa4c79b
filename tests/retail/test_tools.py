"""The tools as declared: schemas, approvals, ownership of reads, codes and the calculator."""

import re
from functools import partial
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from examples import retail
from examples.retail import semantics
from examples.retail.tools import RETAIL
from examples.worlds.calculator import calculate
from examples.worlds.storage import Store
from examples.worlds.world import Refusal
from executors.registry import Registry
from orchestrator.domain.model import Effect
from tests.replay.desk import Answer, Desk
from tests.replay.workload import Call, Workload, digest

SPECS = {spec.name: spec for spec in RETAIL.specs()}
OWNER = "yusuf_rossi_9620"
NO_WORLD: Any = None  # arithmetic needs none
PROFILE_VARIABLES = ("RETAIL_API", "RETAIL_MODEL", "RETAIL_APPROVALS", "RETAIL_API_KEY_ENV")


def bare(schema: Any, named: bool = False) -> Any:
    """A schema without titles and descriptions, which decide nothing. `named`: the keys are property names."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: bare(value, key == "properties" and not named)
        for key, value in sorted(schema.items())
        if named or key not in ("title", "description")
    }


def test_schemas_say_the_same_as_the_benchmarks(workload: Workload) -> None:
    assert sorted(SPECS) == sorted(tool["name"] for tool in workload.tools)
    for tool in workload.tools:
        ours, theirs = bare(SPECS[tool["name"]].schema), bare(tool["parameters"])
        assert {**ours, "required": sorted(ours.get("required", []))} == {
            **theirs,
            "required": sorted(theirs.get("required", [])),
        }
        assert SPECS[tool["name"]].effect.writes == (tool["effect"] == "write")


def broken(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Near misses: each field left out, of another type, and one field too many."""
    others: list[Any] = [1, 1.5, None, True, {}, [1], "text", ["text"]]
    left_out = [{k: v for k, v in arguments.items() if k != name} for name in arguments]
    retyped = [{**arguments, name: other} for name in arguments for other in others]
    return [*left_out, *retyped, {**arguments, "extra": 1}]


def test_arguments_are_valid_exactly_where_the_benchmarks_schema_says_so(workload: Workload) -> None:
    validators = {tool["name"]: Draft202012Validator(tool["parameters"]) for tool in workload.tools}
    samples = {action.call.tool: action.call.arguments for task in workload.tasks for action in task.actions}
    assert len(samples) > 12
    for name, arguments in samples.items():
        for candidate in [arguments, *broken(arguments)]:
            assert valid(name, candidate) == validators[name].is_valid(candidate), (name, candidate)


def valid(name: str, arguments: dict[str, Any]) -> bool:
    try:
        parsed = SPECS[name].arguments.model_validate(arguments)
    except ValidationError:
        return False
    return parsed.model_dump(mode="json") == arguments


@pytest.mark.parametrize("approvals", [False, True])
def test_approvals_are_a_switch(monkeypatch: pytest.MonkeyPatch, workload: Workload, approvals: bool) -> None:
    for name in PROFILE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if approvals:
        monkeypatch.setenv("RETAIL_APPROVALS", "1")
    registry = Registry()
    retail.register(registry)
    registry.check()
    asks = {tool["name"] for tool in workload.tools if tool["requires_approval"]} if approvals else set()
    assert {spec.name for spec in registry.tools if spec.approval} == asks
    profile = registry.profile("retail")
    assert profile is not None
    assert set(profile.tools) == set(SPECS)


def test_writes_can_be_reconciled_and_address_changes_repeated() -> None:
    writes = [spec for spec in SPECS.values() if spec.effect.writes]
    assert all(spec.idempotency and spec.reconcile for spec in writes)
    assert {spec.name for spec in writes if spec.effect is Effect.OVERWRITE} == {
        "modify_user_address",
        "modify_pending_order_address",
    }


def test_reads_of_somebody_elses_records_are_stopped_too(desk: Desk) -> None:
    order, user = Call("get_order_details", {"order_id": "#W6247578"}), Call("get_user_details", {"user_id": OWNER})
    for call in (order, user):
        assert desk.call("reads", call, "mei_silva_6882") == Answer(stopped="FORBIDDEN_RESOURCE")
        assert desk.call("reads", call, OWNER).data["user_id"] == OWNER
        assert desk.call("reads", call, None).data["user_id"] == OWNER  # staff: scope retail:any
    missing = Call("get_user_details", {"user_id": "nobody"})
    assert desk.call("reads", missing, OWNER) == Answer(error="User not found")
    assert RETAIL.any_scope == "retail:any"


def test_records_keep_every_value_through_the_result_model(workload: Workload) -> None:
    result = SPECS["get_order_details"].result
    for order in [*workload.state()["orders"].values(), {"n": 10**15, "f": 0.1 + 0.2, "whole": 150.0, "none": None}]:
        shown = result.model_validate(order).model_dump(mode="json")
        assert repr(shown) == repr(order)
        assert digest(shown) == digest(order)


@pytest.mark.parametrize(
    ("expression", "shown"),
    [("2 + 2", "4.0"), ("-3*(2.5-1)", "-4.5"), ("0.1+0.2", "0.3"), ("10 / 4", "2.5"), ("1 + +1", "2.0")],
)
def test_the_calculator(expression: str, shown: str) -> None:
    assert SPECS["calculate"].effect is Effect.READ
    assert calculate(NO_WORLD, expression=expression) == shown


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("2 ** 3; x", "INVALID_CHARACTERS_IN_EXPRESSION"),
        ("2 + 2\n", "INVALID_CHARACTERS_IN_EXPRESSION"),
        ("9**9**9**9", "INVALID_EXPRESSION"),
        ("1/0", "INVALID_EXPRESSION"),
        ("(1", "INVALID_EXPRESSION"),
        ("", "INVALID_EXPRESSION"),
        ("9" * 400, "INVALID_EXPRESSION"),
        ("(" * 400 + "1" + ")" * 99, "INVALID_EXPRESSION"),
        ("1" * 501, "EXPRESSION_TOO_LONG"),
    ],
)
def test_what_the_calculator_refuses(expression: str, code: str) -> None:
    with pytest.raises(Refusal) as refusal:
        calculate(NO_WORLD, expression=expression)
    assert refusal.value.code == code


def test_codes_are_stable_words(store: Store, workload: Workload) -> None:
    """However many ids the texts name, there are as many codes as kinds of refusal."""
    codes = set()
    for case in workload.errors:
        if not case.setup:
            function = partial(getattr(semantics, case.call.tool), **case.call.arguments)
            with pytest.raises(Refusal, match=re.escape(case.error)) as refusal:
                store.read(case.id, function)
            codes.add(refusal.value.code)
    assert all(re.fullmatch("[A-Z_]+", code) for code in codes)
    assert {"ORDER_NOT_FOUND", "ITEM_NOT_IN_ORDER", "NEW_ITEM_NOT_AVAILABLE"} <= codes
    assert len(codes) < 20
