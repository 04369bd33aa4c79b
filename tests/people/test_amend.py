"""The caller corrects the request while it is worked on: what is dropped, what finishes, what the model is told."""

import json
import threading
from typing import Any

import pytest

from orchestrator import commands, dispatch, turn
from orchestrator.domain.errors import Conflict, NotFound, UserError
from orchestrator.submission import MAX_INPUT
from policy.profile import Budgets
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import CAREFUL, approval, at_approval, observations, outcomes, question, submit
from tests.store.rows import eventually

WORDS = "No, the other one."


def gone(told: Any) -> bool:
    return bool((told["state"], told["code"]) == ("superseded", "SUPERSEDED"))


def amend(hall: Desk, operation: str) -> int:
    return commands.amend(hall.app, operation, WORDS, by="alice")


def last_request(hall: Desk, operation: str) -> list[str]:
    """What the last model request shows, item by item."""
    shown = []
    for item in hall.requests(operation)[-1]["input"]:
        if item.get("role") == "user":
            content = item["content"]
            shown.append(content if isinstance(content, str) else content[0]["text"])
        else:
            shown.append(item["type"])
    return shown


def test_before_the_first_turn(hall: Desk) -> None:
    operation = submit(hall, DONE)
    assert amend(hall, operation) == 2
    assert hall.run(operation).state == "COMPLETED"
    assert last_request(hall, operation) == ["Please.", WORDS]
    assert hall.view(operation).revision == 2
    [entry] = hall.audit(operation, "operation.amended")
    assert (entry["actor"], entry["body"]["revision"], entry["body"]["by"]) == ("caller:alice", 2, "alice")
    assert WORDS not in json.dumps(entry["body"])


def test_results_that_are_there_stay(hall: Desk) -> None:
    operation = submit(hall, calls(call("look", text="a")), DONE)
    hall.advance(operation)
    hall.step("reads")
    assert hall.view(operation).state == "RESULTS_READY"
    amend(hall, operation)
    assert hall.run(operation).state == "COMPLETED"
    assert observations(hall, operation)[0]["state"] == "succeeded"
    assert last_request(hall, operation) == ["Please.", "function_call", "function_call_output", WORDS]


def test_a_read_that_is_not_dispatched_yet(hall: Desk) -> None:
    operation = submit(hall, calls(call("look", text="a"), call("look", text="b")), DONE, budgets=Budgets(parallel=1))
    hall.advance(operation)
    amend(hall, operation)
    assert hall.view(operation).state == "RESULTS_READY"
    assert hall.idle("reads")
    assert hall.run(operation).state == "COMPLETED"
    assert (hall.lab.seen, [gone(told) for told in observations(hall, operation)]) == ([], [True, True])


def test_a_read_in_flight(hall: Desk) -> None:
    """Its answer comes, is kept, and is not shown."""
    operation = submit(hall, calls(call("look", text="a"), call("look", text="b")), DONE)
    hall.advance(operation)
    hall.lab.will(wait=True, json={"id": "r-1", "text": "old news"})
    worker = threading.Thread(target=dispatch.run_one, args=(hall.app, "reads", None))
    worker.start()
    eventually(lambda: bool(hall.lab.seen))
    amend(hall, operation)
    assert hall.view(operation).state == "EXECUTING"
    hall.lab.released.set()
    worker.join(60)
    assert hall.view(operation).state == "RESULTS_READY"
    assert hall.run(operation).state == "COMPLETED"
    assert [gone(told) for told in observations(hall, operation)] == [True, True]
    kept = [row["evidence"] for row in hall.sql(
        "SELECT evidence FROM calls WHERE operation_id = :o AND evidence IS NOT NULL", o=operation)]  # fmt: skip
    assert [json.loads(text)["data"]["text"] for text in kept] == ["old news"]
    assert "old news" not in json.dumps(hall.requests(operation))
    assert len(hall.lab.seen) == 1
    assert [e["body"].get("evidence_sha256") is not None for e in hall.audit(operation, "call.settled")].count(
        True
    ) == 1


def test_a_read_in_flight_from_outside_does_not_taint(hall: Desk) -> None:
    operation = submit(hall, calls(call("mail", text="a")), DONE)
    hall.advance(operation)
    hall.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(hall.app, "reads", None))
    worker.start()
    eventually(lambda: bool(hall.lab.seen))
    amend(hall, operation)
    hall.lab.released.set()
    worker.join(60)
    assert hall.view(operation).tainted is False


def test_a_read_whose_worker_died(hall: Desk) -> None:
    """It is not asked again for a request that nobody makes any more."""
    operation = submit(hall, calls(call("look")), DONE)
    hall.advance(operation)
    hall.sql(
        "UPDATE calls SET state = 'RUNNING', fence = fence + 1, attempts = 1, wake_at = NULL, "
        "lease_until = clock_timestamp() - interval '1 s' WHERE operation_id = :o", o=operation,
    )  # fmt: skip
    amend(hall, operation)
    hall.sweep()
    assert hall.run(operation).state == "COMPLETED"
    assert (hall.lab.seen, gone(observations(hall, operation)[0])) == ([], True)


def test_a_write_that_has_not_started(hall: Desk) -> None:
    operation = submit(hall, calls(call("write", text="a"), call("write", text="b")), DONE)
    hall.advance(operation)
    amend(hall, operation)
    assert hall.idle("writes")
    assert hall.run(operation).state == "COMPLETED"
    assert (outcomes(hall, operation), hall.lab.seen) == (["SUPERSEDED", "SUPERSEDED"], [])
    assert [gone(told) for told in observations(hall, operation)] == [True, True]


def test_an_approval_that_waits(hall: Desk) -> None:
    operation, asked = at_approval(hall, calls(CAREFUL), DONE)
    amend(hall, operation)
    assert (outcomes(hall, operation), approval(hall, operation).state) == (["SUPERSEDED"], "REVOKED")
    with pytest.raises(Conflict, match="REVOKED"):
        commands.approve(hall.app, asked, by="boss")
    assert hall.run(operation).state == "COMPLETED"
    assert hall.lab.seen == []


def test_an_approval_that_was_given(hall: Desk) -> None:
    operation, asked = at_approval(hall, calls(CAREFUL), DONE)
    commands.approve(hall.app, asked, by="boss")
    amend(hall, operation)
    assert (outcomes(hall, operation), approval(hall, operation).state) == (["SUPERSEDED"], "REVOKED")
    assert hall.run(operation).state == "COMPLETED"
    assert hall.lab.seen == []


def test_a_write_that_has_started(hall: Desk) -> None:
    """It finishes; the model is told the truth, and that it belongs to the earlier request."""
    operation = submit(hall, calls(call("write", text="a"), call("write", text="b")), DONE)
    hall.advance(operation)
    hall.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(hall.app, "writes", None))
    worker.start()
    eventually(lambda: bool(hall.lab.seen))
    amend(hall, operation)
    assert hall.view(operation).state == "EXECUTING"
    hall.lab.released.set()
    worker.join(60)
    assert hall.run(operation).state == "COMPLETED"
    first, second = observations(hall, operation)
    assert (first["state"], first["of_earlier_request"]) == ("succeeded", True)
    assert gone(second)
    assert outcomes(hall, operation) == ["SUCCEEDED", "SUPERSEDED"]
    assert last_request(hall, operation)[-1] == WORDS


def test_a_started_write_whose_outcome_is_lost(hall: Desk) -> None:
    """It is reconciled first; only then the model goes on."""
    operation = submit(hall, calls(call("checked", text="a")), DONE)
    hall.lab.will(cut=True)
    hall.advance(operation)
    hall.step("writes")
    amend(hall, operation)
    assert hall.view(operation).state == "RECONCILING"
    hall.lab.will(json={"id": "r-1"})
    assert hall.run(operation).state == "COMPLETED"
    [told] = observations(hall, operation)
    assert (told["state"], told["of_earlier_request"]) == ("succeeded", True)


def test_an_uncertain_write_is_not_sent_again_for_an_earlier_request(hall: Desk) -> None:
    """The downstream enforces its key, and nobody wants the effect any more."""
    operation = submit(hall, calls(call("keyed", text="a")), DONE)
    hall.lab.will(cut=True)
    hall.advance(operation)
    hall.step("writes")
    amend(hall, operation)
    hall.run(operation)
    assert ([a.state for a in hall.actions(operation)], len(hall.lab.seen)) == (["UNKNOWN"], 1)


def test_a_write_that_may_have_arrived_and_waits_to_be_sent_again(hall: Desk) -> None:
    """It is not called rejected: nobody knows that it was not applied."""
    operation = submit(hall, calls(call("keyed", text="a")), DONE)
    hall.lab.will(cut=True)
    hall.advance(operation)
    hall.step("writes")
    hall.hurry(operation)
    hall.step("writes")
    assert hall.action(operation).state == "READY"
    amend(hall, operation)
    assert hall.action(operation).state == "UNKNOWN"
    assert hall.view(operation).state == "RECONCILING"


def test_a_model_request_in_flight(hall: Desk) -> None:
    """The reply is kept and charged; nothing of it is judged; the model is asked again."""
    operation = submit(hall, calls(call("write"), delay=2.0), DONE)
    worker = threading.Thread(target=turn.advance, args=(hall.app, operation))
    worker.start()
    eventually(lambda: len(hall.requests(operation)) == 1)
    amend(hall, operation)
    assert hall.view(operation).state == "MODEL_REQUESTED"
    worker.join(60)
    view = hall.view(operation)
    assert (view.state, view.calls, view.actions, len(view.requests)) == ("READY", [], [], 1)
    assert hall.lab.seen == []
    assert hall.run(operation).state == "COMPLETED"  # the model says the same again, now to the corrected request
    assert (hall.view(operation).turns, len(hall.lab.effects)) == (3, 1)
    first_item, second_item = hall.requests(operation)[1]["input"]
    assert (first_item["role"], second_item["role"]) == ("user", "user")
    assert WORDS in json.dumps(second_item)
    [entry] = hall.audit(operation, "turn.superseded")
    assert entry["body"]["calls"] == 1
    kinds = hall.sql("SELECT kind FROM items WHERE operation_id = :o ORDER BY seq", o=operation)
    assert [row["kind"] for row in kinds] == ["user", "user", "superseded", "reply", "reply"]


def test_a_final_answer_in_flight_is_not_the_end(hall: Desk) -> None:
    operation = submit(hall, {"text": "Done.", "fault": {"delay": 2.0}})
    worker = threading.Thread(target=turn.advance, args=(hall.app, operation))
    worker.start()
    eventually(lambda: len(hall.requests(operation)) == 1)
    amend(hall, operation)
    worker.join(60)
    assert (hall.view(operation).state, hall.view(operation).final_text) == ("READY", None)
    assert (hall.run(operation).state, hall.view(operation).turns) == ("COMPLETED", 2)
    assert last_request(hall, operation) == ["Please.", WORDS]


def test_a_question_that_waits(hall: Desk) -> None:
    operation = submit(hall, calls(call("ask_user", question="Which?")), DONE)
    hall.advance(operation)
    asked = question(hall, operation).question_id
    amend(hall, operation)
    assert (hall.view(operation).state, hall.view(operation).questions[0].state) == ("RESULTS_READY", "REVOKED")
    with pytest.raises(Conflict, match="REVOKED"):
        commands.answer(hall.app, asked, "x", by="alice")
    assert hall.run(operation).state == "COMPLETED"
    assert gone(observations(hall, operation)[0])


def test_the_same_write_may_be_proposed_again(hall: Desk) -> None:
    """Superseded is no denial: for the corrected request it is a new action with a new key."""
    again = calls(call("keyed", text="a"))
    operation = submit(hall, again, again, DONE)
    hall.advance(operation)
    amend(hall, operation)
    assert hall.run(operation).state == "COMPLETED"
    assert outcomes(hall, operation) == ["SUPERSEDED", "SUCCEEDED"]
    first, second = hall.actions(operation)
    assert first.idempotency_key != second.idempotency_key


def test_corrected_again_and_again(hall: Desk) -> None:
    operation = submit(hall, DONE)
    assert [amend(hall, operation) for _ in range(3)] == [2, 3, 4]
    assert hall.run(operation).state == "COMPLETED"
    assert last_request(hall, operation) == ["Please.", WORDS, WORDS, WORDS]


def test_after_the_end(hall: Desk) -> None:
    operation = submit(hall, DONE)
    hall.run(operation)
    with pytest.raises(Conflict, match="is COMPLETED already") as caught:
        amend(hall, operation)
    assert caught.value.code == "ALREADY_ENDED"


@pytest.mark.parametrize("text", ["", "a\0b", "x" * (MAX_INPUT + 1)])
def test_words_that_cannot_be_taken(hall: Desk, text: str) -> None:
    operation = submit(hall, DONE)
    with pytest.raises(UserError, match="text: "):
        commands.amend(hall.app, operation, text)
    assert hall.view(operation).revision == 1


def test_of_another_tenant(hall: Desk) -> None:
    operation = submit(hall, DONE)
    for name, tenant in ((operation, "initech"), ("op_ghost", None)):
        with pytest.raises(NotFound):
            commands.amend(hall.app, name, WORDS, tenant=tenant)
