"""The tools as declared: schemas, approvals, ownership of reads, codes; and rules that no case shows."""

import re
from functools import partial
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from examples import airline
from examples.airline import semantics
from examples.airline.tools import AIRLINE
from examples.worlds.world import Refusal
from executors.registry import Registry
from orchestrator.domain.model import Effect
from tests.replay.desk import Answer, Desk
from tests.replay.recordings import PlainWorld
from tests.replay.workload import Call, Workload

SPECS = {spec.name: spec for spec in AIRLINE.specs()}
OWNER = "mohamed_silva_9265"
PROFILE_VARIABLES = ("AIRLINE_API", "AIRLINE_MODEL", "AIRLINE_APPROVALS", "AIRLINE_API_KEY_ENV")
SAMPLES: dict[str, dict[str, Any]] = {
    "calculate": {"expression": "2 + 2"},
    "list_all_airports": {},
    "get_flight_status": {"flight_number": "HAT001", "date": "2024-05-01"},
    "search_onestop_flight": {"origin": "JFK", "destination": "SEA", "date": "2024-05-20"},
    "send_certificate": {"user_id": OWNER, "amount": 100},
}


def bare(schema: Any, parts: Any, named: bool = False) -> Any:
    """A schema with its parts in place, without titles and descriptions, which decide nothing.

    `named`: the keys are property names.
    """
    if isinstance(schema, list):
        return [bare(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return bare(parts[schema["$ref"].removeprefix("#/$defs/")], parts)
    return {
        key: sorted(value) if key == "required" and not named else bare(value, parts, key == "properties" and not named)
        for key, value in sorted(schema.items())
        if named or key not in ("title", "description", "$defs")
    }


def test_schemas_say_the_same_as_the_benchmarks(workload: Workload) -> None:
    assert sorted(SPECS) == sorted(tool["name"] for tool in workload.tools)
    for tool in workload.tools:
        ours = SPECS[tool["name"]].schema
        assert bare(dict(ours), ours.get("$defs", {})) == bare(tool["parameters"], {}), tool["name"]
        assert SPECS[tool["name"]].effect.writes == (tool["effect"] == "write")


def broken(value: Any) -> list[Any]:
    """Near misses: each field left out, of another type, and one too many; at every depth."""
    others: list[Any] = [1, 1.0, 1.5, None, True, {}, [1], "text", ["text"], "yes", "economy", -3, 2**70]
    if isinstance(value, list):
        return [*others, [], *([each, *value[1:]] for each in (broken(value[0]) if value else ()))]
    if not isinstance(value, dict):
        return others
    left_out = [{k: v for k, v in value.items() if k != name} for name in value]
    changed = [{**value, name: other} for name in value for other in broken(value[name])]
    return [*others, *left_out, *changed, {**value, "extra": 1}]


def test_arguments_are_valid_exactly_where_the_benchmarks_schema_says_so(workload: Workload) -> None:
    validators = {tool["name"]: Draft202012Validator(tool["parameters"]) for tool in workload.tools}
    seen = {action.call.tool: action.call.arguments for task in workload.tasks for action in task.actions}
    samples = {**SAMPLES, **seen}
    assert samples.keys() == SPECS.keys()
    for name, arguments in samples.items():
        for candidate in [arguments, *broken(arguments)]:
            assert valid(name, candidate) == validators[name].is_valid(candidate), (name, candidate)


def valid(name: str, arguments: Any) -> bool:
    try:
        parsed = SPECS[name].arguments.model_validate(arguments)
    except ValidationError:
        return False
    return bool(parsed.model_dump(mode="json") == arguments)


@pytest.mark.parametrize("approvals", [False, True])
def test_approvals_are_a_switch(monkeypatch: pytest.MonkeyPatch, workload: Workload, approvals: bool) -> None:
    for name in PROFILE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if approvals:
        monkeypatch.setenv("AIRLINE_APPROVALS", "1")
    registry = Registry()
    airline.register(registry)
    registry.check()
    asks = {tool["name"] for tool in workload.tools if tool["requires_approval"]} if approvals else set()
    assert {spec.name for spec in registry.tools if spec.approval} == asks
    profile = registry.profile("airline")
    assert profile is not None
    assert set(profile.tools) == set(SPECS)


def test_writes_can_be_reconciled_and_only_harmless_ones_repeated() -> None:
    writes = [spec for spec in SPECS.values() if spec.effect.writes]
    assert all(spec.idempotency and spec.reconcile for spec in writes)
    assert {spec.name for spec in writes if spec.effect is Effect.OVERWRITE} == {"update_reservation_passengers"}


def test_reads_of_somebody_elses_records_are_stopped_too(desk: Desk) -> None:
    reservation = Call("get_reservation_details", {"reservation_id": "K1NW8N"})
    user = Call("get_user_details", {"user_id": OWNER})
    for call in (reservation, user):
        assert desk.call("reads", call, "mei_brown_7075") == Answer(stopped="FORBIDDEN_RESOURCE")
        assert desk.call("reads", call, OWNER).data["user_id"] == OWNER
        assert desk.call("reads", call, None).data["user_id"] == OWNER  # staff: scope airline:any
    missing = Call("get_user_details", {"user_id": "nobody"})
    assert desk.call("reads", missing, OWNER) == Answer(error="User nobody not found")


def test_a_new_reservation_belongs_to_its_customer(desk: Desk, workload: Workload) -> None:
    """Ownership also of records that the seeded state does not have."""
    task = next(task for task in workload.tasks if task.subject == "raj_brown_5782")
    booking = next(action.call for action in task.actions if action.call.tool == "book_reservation")
    new_id = desk.call("new", booking, task.subject).data["reservation_id"]
    cancel = Call("cancel_reservation", {"reservation_id": new_id})
    assert desk.call("new", cancel, OWNER) == Answer(stopped="FORBIDDEN_RESOURCE")
    assert desk.call("new", cancel, task.subject).data["status"] == "cancelled"


def test_a_certificate_pays_once(workload: Workload) -> None:
    """The page says that it is used up whole; naming it twice in one booking must not double it."""
    bookings = (a.call for t in workload.tasks for a in t.actions if a.call.tool == "book_reservation")
    booking = next(c for c in bookings if any("certificate" in p["payment_id"] for p in c.arguments["payment_methods"]))
    payments = booking.arguments["payment_methods"]
    certificate = next(p for p in payments if "certificate" in p["payment_id"])
    world = PlainWorld(workload.state())
    with pytest.raises(Refusal, match=r"Payment method certificate_\d+ not found"):
        AIRLINE.apply(
            world, booking.tool, {**booking.arguments, "payment_methods": [certificate, certificate, *payments]}
        )
    assert not world.changed


def test_certificates_run_out(workload: Workload) -> None:
    world = PlainWorld(workload.state())
    send = partial(semantics.send_certificate, world, user_id=OWNER, amount=100)
    assert send() == f"Certificate certificate_3221322 added to user {OWNER} with amount 100."
    assert [send().split()[1] for _ in range(2)] == ["certificate_3221323", "certificate_3221324"]
    with pytest.raises(Refusal, match="Too many certificates"):
        send()


def test_flight_status(workload: Workload) -> None:
    status = partial(semantics.get_flight_status, PlainWorld(workload.state()))
    assert status(flight_number="HAT001", date="2024-05-03") == "cancelled"
    with pytest.raises(Refusal, match=r"^Flight HAT999 not found$"):
        status(flight_number="HAT999", date="2024-05-03")
    with pytest.raises(Refusal, match=r"^Flight HAT001 not found on date 2024-06-31$") as refusal:
        status(flight_number="HAT001", date="2024-06-31")
    assert refusal.value.code == "FLIGHT_NOT_FOUND_ON_DATE"


def test_codes_are_stable_words(workload: Workload) -> None:
    """However many ids the texts name, there are as many codes as kinds of refusal."""
    codes = set()
    for case in workload.errors:
        world = PlainWorld(workload.state())
        for call in case.setup:
            AIRLINE.apply(world, call.tool, call.arguments)
        with pytest.raises(Refusal, match=re.escape(case.error)) as refusal:
            AIRLINE.apply(world, case.call.tool, case.call.arguments)
        codes.add(refusal.value.code)
    assert all(re.fullmatch("[A-Z_]+", code) for code in codes)
    assert {"RESERVATION_NOT_FOUND", "NOT_ENOUGH_SEATS", "PAYMENT_METHOD_NOT_FOUND"} <= codes
    assert len(codes) < 15
