"""The scenario of the second seed: "Where is my parcel, and change the delivery address if it hasn't shipped."

Each branch of its state machine, with a carrier that keeps its own books.
"""

import pytest

from orchestrator import commands
from policy.profile import Budgets
from tests.acceptance.desks import Parcels, long_ago, sent
from tests.orchestrator.desk import call, calls

NEW = "New Street 2"


def lookup(parcel: str) -> dict[str, object]:
    return calls(call("get_parcel", parcel_id=parcel))


def change(parcel: str, address: str = NEW) -> dict[str, object]:
    return calls(call("change_address", parcel_id=parcel, address=address))


def test_shipped_the_assistant_explains_the_constraint(parcels: Parcels) -> None:
    parcel = parcels.parcel(status="shipped")
    operation = parcels.begin(lookup(parcel), {"text": "It has shipped; the address can no longer be changed."})
    view = parcels.run(operation)
    assert (view.state, view.actions, parcels.carrier.changes(parcel)) == ("COMPLETED", [], [])
    [told] = parcels.told(operation, 1)
    assert told.output["data"]["status"] == "shipped"


def test_not_shipped_the_change_waits_for_the_approval_gate(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    operation = parcels.begin(lookup(parcel), change(parcel), {"text": "Changed."}, required_tools=("change_address",))
    view = parcels.run(operation)
    assert (view.state, parcels.carrier.changes(parcel)) == ("WAITING_APPROVAL", [])
    [asked] = view.open_approvals
    assert asked.arguments == {"parcel_id": parcel, "address": NEW}, "the approver sees everything"
    commands.approve(parcels.app, asked.approval_id, by="boss")
    view = parcels.run(operation)
    [(key, address)] = parcels.carrier.changes(parcel)
    assert (view.state, view.actions[0].idempotency_key, address) == ("COMPLETED", key, NEW)
    assert parcels.carrier.address(parcel) == NEW


def test_denied_nothing_changes_and_the_model_is_told(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), {"text": "That was not permitted."})
    parcels.run(operation)
    commands.deny(parcels.app, parcels.approval(operation), by="boss")
    assert parcels.run(operation).state == "COMPLETED"
    assert parcels.told(operation, 1)[0].output["code"] == "APPROVAL_DENIED"
    assert parcels.carrier.changes(parcel) == []


def test_it_ships_while_a_person_decides(parcels: Parcels) -> None:
    """The approval was for the parcel as it was: its resource version is compared just before the start."""
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), {"text": "Too late."})
    parcels.run(operation)
    parcels.carrier.ship(parcel)
    commands.approve(parcels.app, parcels.approval(operation), by="boss")
    view = parcels.run(operation)
    assert (view.actions[0].code, parcels.carrier.changes(parcel)) == ("RESOURCE_CHANGED", [])
    assert ("POST", "/address-changes") not in parcels.carrier.asked[-4:]


@pytest.mark.parametrize("fault", ["lost", "garbage"])
def test_a_timed_out_change_is_reconciled_before_any_retry(parcels: Parcels, fault: str) -> None:
    """The carrier applied it and the answer was lost, or said nothing: it is asked by key, and not sent again."""
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), {"text": "Changed."})
    parcels.run(operation)
    commands.approve(parcels.app, parcels.approval(operation), by="boss")
    parcels.carrier.faults.append(fault)
    sent = len(parcels.carrier.asked)
    parcels.step("writes")
    view = parcels.view(operation)
    assert (view.state, view.actions[0].state) == ("RECONCILING", "UNKNOWN")
    assert len(parcels.requests(operation)) == 1, "neither success nor failure is reported meanwhile"
    view = parcels.run(operation)
    assert (view.state, view.actions[0].state, view.actions[0].attempts) == ("COMPLETED", "SUCCEEDED", 1)
    assert [method for method, path in parcels.carrier.asked[sent:] if path == "/address-changes"] == ["POST"]
    assert len(parcels.carrier.changes(parcel)) == 1
    assert view.actions[0].external_ref is not None


def test_a_change_that_never_arrived_stays_unknown_until_absence_means_something(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), {"text": "Changed."})
    parcels.run(operation)
    commands.approve(parcels.app, parcels.approval(operation), by="boss")
    parcels.carrier.faults.append("early")
    parcels.step("writes")
    parcels.hurry(operation)
    parcels.step("writes")
    action = parcels.action(operation)
    assert (action.state, action.attempts) == ("UNKNOWN", 1), "a late request could still arrive"
    long_ago(parcels, operation)
    view = parcels.run(operation)
    action = view.actions[0]
    assert (view.state, action.state, action.attempts) == ("COMPLETED", "SUCCEEDED", 2)
    assert [key for key, _ in parcels.carrier.changes(parcel)] == [action.idempotency_key]


def test_done_without_the_change_is_no_success(parcels: Parcels) -> None:
    """The model's statement that an action happened is no evidence that it did."""
    parcel = parcels.parcel()
    done = {"text": "I have changed the address."}
    operation = parcels.begin(lookup(parcel), done, done, required_tools=("change_address",))
    view = parcels.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "UNCONFIRMED")
    assert parcels.carrier.changes(parcel) == []


def test_a_truncated_response_is_incomplete(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    view = parcels.run(parcels.begin(lookup(parcel), {"truncated": "Your parcel is"}))
    assert (view.state, view.reason) == ("INCOMPLETE", "TRUNCATED")
    assert [c.state for c in view.calls] == ["SUCCEEDED"], "the partial outcome is recorded"


def test_repeated_calls_stop_at_the_configured_limit(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    operation = parcels.begin(*[lookup(parcel)] * 9, budgets=Budgets(no_progress_turns=2))
    view = parcels.run(operation)
    assert (view.state, view.reason, view.turns) == ("INCOMPLETE", "NO_PROGRESS", 4)


def test_the_trace_keeps_proposals_and_what_the_executor_did(parcels: Parcels) -> None:
    """Requested call, authorization, execution, observation and terminal state: a bad decision and a good proposal
    whose executor failed can be told apart."""
    parcel = parcels.parcel()
    stranger = calls(call("get_parcel", parcel_id="PCL-999999"), call("change_address", parcel_id=parcel, address=NEW))
    operation = parcels.begin(stranger, {"text": "Changed."})
    assert parcels.approved(operation).state == "COMPLETED"
    [proposed] = parcels.audit(operation, "turn.proposed")
    assert [(c["tool"], c["code"], c["contacted"]) for c in proposed["body"]["calls"]] == [
        ("get_parcel", "PARCEL_UNAVAILABLE", False), ("change_address", None, False),
    ]  # fmt: skip
    kinds = [
        row["kind"]
        for row in parcels.sql("SELECT kind FROM audit WHERE operation_id = :o ORDER BY audit_id", o=operation)
    ]
    told = [k for k in kinds if k in ("approval.approved", "action.started", "action.succeeded", "operation.ended")]
    assert told == ["approval.approved", "action.started", "action.succeeded", "operation.ended"]
    [done] = parcels.audit(operation, "action.succeeded")
    assert (done["body"]["contacted"], done["body"]["key"]) == (True, parcels.action(operation).idempotency_key)


def test_every_observation_answers_its_own_call(parcels: Parcels) -> None:
    """The reply is carried back as it came, and each result names its call."""
    first, second = parcels.parcel(), parcels.parcel(status="shipped")
    both = calls(call("get_parcel", "c-2", parcel_id=second), call("get_parcel", "c-1", parcel_id=first))
    operation = parcels.begin(both, {"text": "One is packed, one is on its way."})
    assert parcels.run(operation).state == "COMPLETED"
    request = sent(parcels, operation)[1]
    assert request.proposals() == ["c-2", "c-1"]
    told = {result.call_id: result.output["data"]["parcel_id"] for result in request.results()}
    assert told == {"c-1": first, "c-2": second}


def test_strict_functions_are_asked_for_one_at_a_time(parcels: Parcels) -> None:
    operation = parcels.begin({"text": "Hello."})
    parcels.run(operation)
    [request] = sent(parcels, operation)
    said = None if parcels.api.startswith("gemini") else True  # Google's APIs have words for neither
    assert request.one_call_at_a_time() is said
    assert request.tools()["get_parcel"].get("strict") is said
