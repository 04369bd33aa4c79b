"""Writes whose answer is lost, duplicates, restarts: the carrier's own books and the lab's say what happened."""

import pytest

from orchestrator import commands
from store import actions as action_store
from tests.acceptance.desks import Parcels, long_ago, restarted
from tests.orchestrator.desk import DONE, Desk, call, calls

NEW = "New Street 2"


def change(parcel: str, call_id: str | None = None, address: str = NEW) -> dict[str, object]:
    return calls(call("change_address", call_id, parcel_id=parcel, address=address))


def to_start(parcels: Parcels, operation: str) -> None:
    assert parcels.run(operation).state == "WAITING_APPROVAL"
    commands.approve(parcels.app, parcels.approval(operation), by="boss")


def test_a_committed_write_whose_response_is_lost(parcels: Parcels) -> None:
    """Unknown, then found by its key: one effect, one attempt, and the model hears of it once it is established."""
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), {"text": "Changed."}, required_tools=("change_address",))
    to_start(parcels, operation)
    parcels.carrier.faults.append("lost")
    parcels.step("writes")
    assert parcels.action(operation).state == "UNKNOWN"
    assert parcels.call(operation).observation is None, "not success, not failure"
    view = parcels.run(operation)
    assert (view.state, view.actions[0].state, view.actions[0].attempts) == ("COMPLETED", "SUCCEEDED", 1)
    assert parcels.told(operation, 1)[0].output["state"] == "succeeded"
    assert len(parcels.carrier.changes(parcel)) == 1


def test_no_answer_is_reported_while_it_is_unknown(parcels: Parcels) -> None:
    """A deadline that passes meanwhile ends the operation without success; the effect is still looked into."""
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), {"text": "Changed."})
    to_start(parcels, operation)
    parcels.carrier.faults.append("lost")
    parcels.step("writes")
    parcels.sql("UPDATE operations SET deadline = clock_timestamp() WHERE operation_id = :o", o=operation)
    parcels.sweep()
    view = parcels.view(operation)
    assert (view.state, view.reason, view.final_text) == ("INCOMPLETE", "DEADLINE", None)
    assert [row["tool"] for row in (view.pending or {})["unresolved"]] == ["change_address"]
    view = parcels.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "DEADLINE")
    assert [row["state"] for row in (view.pending or {})["happened"]] == ["SUCCEEDED"]


def test_duplicate_proposals_under_new_call_ids(parcels: Parcels) -> None:
    """One intent, three call ids, over turns and within one reply: one action, one key, one effect."""
    parcel = parcels.parcel()
    pair = calls(*[call("change_address", f"c{n}", parcel_id=parcel, address=NEW) for n in (1, 2)])
    operation = parcels.begin(pair, change(parcel, "c3"), {"text": "Changed."})
    view = parcels.approved(operation)
    assert [(c.call_id, c.duplicate, c.state) for c in view.calls] == [
        ("c1", False, "SUCCEEDED"), ("c2", True, "SUCCEEDED"), ("c3", True, "SUCCEEDED"),
    ]  # fmt: skip
    assert len({c.action_id for c in view.calls}) == len(view.actions) == len(parcels.carrier.changes(parcel)) == 1


def test_a_duplicate_of_an_unknown_write_waits_for_its_outcome(desk: Desk) -> None:
    operation = desk.submit(calls(call("checked", "c1"), call("checked", "c2")), DONE)
    desk.lab.will(cut=True)
    desk.advance(operation)
    desk.step("writes")
    assert [c.state for c in desk.view(operation).calls] == ["WAITING", "WAITING"]
    desk.lab.will(json={"id": "r-9"})
    assert desk.run(operation).state == "COMPLETED"
    assert [c.state for c in desk.view(operation).calls] == ["SUCCEEDED", "SUCCEEDED"]
    assert len(desk.lab.effects) == 1


def test_a_later_identical_operation_is_a_new_intent(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    for _ in range(2):
        assert parcels.approved(parcels.begin(change(parcel), {"text": "Changed."})).state == "COMPLETED"
    assert len({key for key, _ in parcels.carrier.changes(parcel)}) == 2


def test_the_same_key_is_never_used_for_another_intent(parcels: Parcels) -> None:
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), change(parcel, address="Other Street 3"), {"text": "Changed."})
    view = parcels.approved(operation)
    assert len({a.idempotency_key for a in view.actions}) == 2
    assert [address for _, address in parcels.carrier.changes(parcel)] == [NEW, "Other Street 3"]


@pytest.mark.parametrize("fault", [None, "lost"])
def test_worker_restart_and_reconciliation(parcels: Parcels, fault: str | None) -> None:
    """The worker commits `started` and dies, before or after its request arrived: nothing is sent on a guess."""
    parcel = parcels.parcel()
    operation = parcels.begin(change(parcel), {"text": "Changed."})
    to_start(parcels, operation)
    action_id = parcels.action(operation).action_id
    if fault is None:
        with parcels.app.database.transaction() as connection:
            assert action_store.start(connection, action_id, lease=60, slot_lease=60, worker="dead") is not None
    else:
        parcels.carrier.faults.append(fault)
        parcels.step("writes")
    with restarted(parcels):
        parcels.expire_leases(operation)
        parcels.sweep()
        assert parcels.action(operation).state == "UNKNOWN"
        long_ago(parcels, operation)
        view = parcels.run(operation)
    assert (view.state, view.actions[0].state) == ("COMPLETED", "SUCCEEDED")
    assert len(parcels.carrier.changes(parcel)) == 1


def test_restart_in_the_middle_of_a_turn_keeps_what_was_done(desk: Desk) -> None:
    """Three writes in one turn, a crash after the second: after the restart only the third starts."""
    operation = desk.submit(calls(*[call("write", text=str(n)) for n in (1, 2, 3)]), DONE)
    desk.advance(operation)
    desk.step("writes")
    desk.step("writes")
    with restarted(desk):
        assert desk.run(operation).state == "COMPLETED"
    assert [seen.path for seen in desk.lab.effects] == ["/notes/1", "/notes/2", "/notes/3"]
