"""Selection and arguments: the right tool, the wrong one, none; and arguments that nobody may guess or repair."""

from typing import Any

import pytest

from orchestrator import commands
from tests.acceptance.desks import Parcels
from tests.orchestrator.desk import call, calls

DONE = {"text": "Done."}


def refused(parcels: Parcels, name: str, **arguments: Any) -> tuple[str, str]:
    """What the model is told about one call that must not reach the carrier: code and message."""
    operation = parcels.begin(calls(call(name, **arguments)), DONE)
    before = len(parcels.carrier.asked)
    assert parcels.run(operation).state == "COMPLETED"
    assert parcels.carrier.asked[before:] == []
    only = parcels.call(operation)
    assert only.state == "REJECTED"
    return str(only.code), str(only.observation.get("message", ""))


def test_correct_tool(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    operation = parcels.begin(calls(call("get_parcel", parcel_id=parcel)), {"text": "It is packed."})
    view = parcels.run(operation)
    assert (view.state, view.final_text) == ("COMPLETED", "It is packed.")
    assert [(c.tool, c.state) for c in view.calls] == [("get_parcel", "SUCCEEDED")]
    assert view.calls[0].observation["data"]["status"] == "packed"


def test_wrong_tool_a_write_for_a_question_stops_at_a_person(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    wrong = calls(call("change_address", parcel_id=parcel, address="New Street 2"))
    operation = parcels.begin(wrong, calls(call("get_parcel", parcel_id=parcel)), DONE, said="Where is my parcel?")
    assert parcels.run(operation).state == "WAITING_APPROVAL"
    commands.deny(parcels.app, parcels.approval(operation), by="boss")
    view = parcels.run(operation)
    assert (view.state, [c.state for c in view.calls]) == ("COMPLETED", ["REJECTED", "SUCCEEDED"])
    assert parcels.carrier.changes(parcel) == []


def test_wrong_tool_is_no_evidence_for_the_required_one(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    wrong = calls(call("pickup_slots", parcel_id=parcel, day="2026-04-03"))
    view = parcels.run(parcels.begin(wrong, DONE, DONE, required_tools=("get_parcel",)))
    assert (view.state, view.reason) == ("INCOMPLETE", "UNCONFIRMED")


def test_wrong_tool_that_is_registered_but_not_in_the_profile(parcels: Parcels) -> None:
    operation = parcels.begin(calls(call("change_address")), DONE, tools=("get_parcel",))
    parcels.run(operation)
    assert parcels.call(operation).code == "UNKNOWN_TOOL"


def test_no_tool_needed(parcels: Parcels) -> None:
    view = parcels.run(parcels.begin({"text": "Parcels are delivered on weekdays."}, said="When do you deliver?"))
    assert (view.state, view.calls, view.turns) == ("COMPLETED", [], 1)


def test_missing_arguments_are_named_and_nothing_is_sent(parcels: Parcels) -> None:
    code, message = refused(parcels, "change_address", parcel_id="PCL-123456")
    assert (code, message) == ("INVALID_ARGUMENTS", "address: Field required")


def test_missing_arguments_are_asked_for(parcels: Parcels) -> None:
    """The model can say what it needs instead of guessing; saying so is no success where the change is required."""
    ask = {"text": "Which parcel do you mean?"}
    view = parcels.run(parcels.begin(ask, ask, required_tools=("change_address",)))
    assert (view.state, view.reason, view.actions) == ("INCOMPLETE", "UNCONFIRMED", [])


@pytest.mark.parametrize("day", ["03/04/2026", "3.4.2026", "tomorrow", "2026-4-3", "", "next Friday", 20260403, None])
def test_ambiguous_dates(parcels: Parcels, day: Any) -> None:
    code, message = refused(parcels, "pickup_slots", parcel_id="PCL-123456", day=day)
    assert code == "INVALID_ARGUMENTS"
    assert message.startswith("day: ")


@pytest.mark.parametrize("time", ["2026-04-03T09:00:00", "9 am", "09:00"])
def test_ambiguous_dates_without_a_timezone(parcels: Parcels, time: str) -> None:
    code, message = refused(parcels, "pickup_slots", parcel_id="PCL-123456", day="2026-04-03", not_before=time)
    assert code == "INVALID_ARGUMENTS"
    assert message.startswith("not_before: ")


def test_an_unambiguous_date_is_taken(parcels: Parcels) -> None:
    given = {"parcel_id": parcels.parcel(), "day": "2026-04-03", "not_before": "2026-04-03T09:00:00+02:00"}
    operation = parcels.begin(calls(call("pickup_slots", **given)), DONE)
    parcels.run(operation)
    assert parcels.call(operation).observation["data"]["day"] == "2026-04-03"


@pytest.mark.parametrize("field", ["express", "tenant", "subject", "idempotency_key", "approved", "X-Customer"])
def test_unsupported_fields(parcels: Parcels, field: str) -> None:
    """Also credentials, identity and keys: they come from trusted state and never from the model."""
    code, message = refused(parcels, "get_parcel", parcel_id="PCL-123456", **{field: "x"})
    assert (code, message) == ("INVALID_ARGUMENTS", f"{field}: Extra inputs are not permitted")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"parcel_id": "PCL-1234', "MALFORMED_JSON"),
        ("", "EMPTY"),
        ('["PCL-123456"]', "NOT_AN_OBJECT"),
        ('{"parcel_id":"PCL-123456","parcel_id":"PCL-654321"}', "DUPLICATE_KEY"),
        ('{"parcel_id": NaN}', "MALFORMED_JSON"),
    ],
)
def test_malformed_arguments_are_not_repaired(parcels: Parcels, text: str, code: str) -> None:
    operation = parcels.begin({"calls": [{"name": "get_parcel", "arguments_text": text}]}, DONE)
    parcels.run(operation)
    # Where arguments travel as an object, what is none can only come as a JSON string.
    as_object = parcels.api == "gemini-generate" or (parcels.api == "gemini-interactions" and not parcels.stream)
    assert parcels.call(operation).code == ("NOT_AN_OBJECT" if as_object else code)
    assert parcels.call(operation).arguments is None


def test_each_bad_call_gets_an_error_and_the_others_go_on(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    mixed = calls(call("ghost"), call("get_parcel"), call("get_parcel", parcel_id=parcel))
    operation = parcels.begin(mixed, DONE)
    view = parcels.run(operation)
    assert [c.code or c.state for c in view.calls] == ["UNKNOWN_TOOL", "INVALID_ARGUMENTS", "SUCCEEDED"]
    assert len(parcels.told(operation, 1)) == 3
