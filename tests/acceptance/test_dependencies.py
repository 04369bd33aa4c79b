"""Parallel proposals: independent ones run together, dependent ones in order, each with a result of its own."""

import threading

from orchestrator import commands, dispatch
from tests.acceptance.desks import Parcels, sent
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.orchestrator.test_support import Support
from tests.store.rows import eventually


def test_two_unrelated_reads_run_together(desk: Desk) -> None:
    operation = desk.submit(calls(call("look", text="a"), call("look", text="b")), DONE)
    desk.advance(operation)
    for _ in range(2):
        desk.lab.will(wait=True)
    workers = [threading.Thread(target=dispatch.run_one, args=(desk.app, "reads", None)) for _ in range(2)]
    for worker in workers:
        worker.start()
    eventually(lambda: len(desk.lab.seen) == 2)  # both are under way, neither has been answered
    desk.lab.released.set()
    for worker in workers:
        worker.join(60)
    assert desk.run(operation).state == "COMPLETED"


def test_a_lookup_and_the_change_that_depends_on_it_in_one_reply(parcels: Parcels) -> None:
    """The change waits for the lookup; what the lookup would have forbidden, the carrier refuses at the commit."""
    parcel = parcels.parcel(status="shipped")
    both = calls(call("change_address", parcel_id=parcel, address="New Street 2"), call("get_parcel", parcel_id=parcel))
    operation = parcels.begin(both, {"text": "It has shipped already."})
    parcels.advance(operation)
    commands.approve(parcels.app, parcels.approval(operation), by="boss")
    assert parcels.idle("writes"), "not before the reads of its turn"
    parcels.step("reads")
    view = parcels.run(operation)
    assert [c.code or c.state for c in view.calls] == ["ALREADY_SHIPPED", "SUCCEEDED"]
    assert parcels.carrier.changes(parcel) == []


def test_a_draft_and_its_submission_in_one_reply(support: Support) -> None:
    """Preview and issuance depend on one another: the model cannot know the draft's id yet, and a guess is refused."""
    terms = {"order_id": "ORD-123456", "amount_cents": 2450}
    guess = {"draft_id": "DRF-0123456789AB", **terms, "currency": "EUR"}
    both = [call("draft_refund", **terms, reason="damaged"), call("submit_refund", **guess)]
    support.model.add({"id": support.tenant, "turns": [calls(*both), DONE]})
    operation = support.begin()
    view = support.run(operation)
    assert [c.code or c.state for c in view.calls] == ["SUCCEEDED", "DRAFT_UNAVAILABLE"]
    assert (view.open_approvals, support.refunds()) == ([], [])


def test_after_a_failed_write_the_dependent_one_is_not_dispatched(parcels: Parcels) -> None:
    gone, other = parcels.parcel(status="shipped"), parcels.parcel()
    both = [call("change_address", parcel_id=p, address="New Street 2") for p in (gone, other)]
    operation = parcels.begin(calls(*both), DONE)
    parcels.advance(operation)
    for asked in parcels.view(operation).open_approvals:
        commands.approve(parcels.app, asked.approval_id, by="boss")
    view = parcels.run(operation)
    assert [a.code for a in view.actions] == ["ALREADY_SHIPPED", "EARLIER_WRITE_NOT_DONE"]
    assert parcels.carrier.changes(other) == []
    assert len(parcels.told(operation, 1)) == 2, "and the model is told about both"


def test_results_in_reverse_order_answer_their_own_calls(desk: Desk) -> None:
    operation = desk.submit(calls(call("look", "first", text="1"), call("look", "second", text="2")), DONE)
    desk.advance(operation)
    keys = desk.sql("SELECT call_key FROM calls WHERE operation_id = :o ORDER BY position DESC", o=operation)
    for number, row in zip("21", keys, strict=True):
        desk.lab.will(json={"id": number, "text": f"answer {number}"})
        assert dispatch.run_one(desk.app, "reads", row["call_key"])
    desk.run(operation)
    told = sent(desk, operation)[1].results()
    assert [(t.call_id, t.output["data"]["text"]) for t in told] == [("first", "answer 1"), ("second", "answer 2")]
