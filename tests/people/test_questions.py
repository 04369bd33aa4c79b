"""The model asks its caller: the operation waits, durably, and goes on with the answer."""

import json
from typing import Any

import pytest

from executors import questions as asking
from executors.registry import ASK_USER, Registry
from orchestrator import commands
from orchestrator.domain.errors import ConfigError, Conflict, NotFound, UserError
from policy.profile import Budgets
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import CAREFUL, at_once, observations, question, refused, submit

ASKS = calls(call("ask_user", question="Which day?"))
SCHEMA = {
    "type": "object", "properties": {"day": {"type": "string", "maxLength": 10}}, "required": ["day"],
    "additionalProperties": False,
}  # fmt: skip


def waiting(hall: Desk, *turns: Any, **changed: Any) -> str:
    operation = submit(hall, *(turns or (ASKS, DONE)), **changed)
    assert hall.advance(operation).state == "WAITING_INPUT"
    return operation


def expire(hall: Desk, operation: str) -> None:
    hall.sql(
        "UPDATE questions SET expires_at = clock_timestamp() - interval '1 second' WHERE operation_id = :o", o=operation
    )


def test_asked_and_answered(hall: Desk) -> None:
    operation = waiting(hall)
    asked = question(hall, operation)
    assert (asked.text, asked.choices, asked.answer_schema) == ("Which day?", None, None)
    [row] = hall.sql("SELECT wake_at, lease_until FROM operations WHERE operation_id = :o", o=operation)
    assert row == {"wake_at": None, "lease_until": None}
    assert commands.answer(hall.app, asked.question_id, "Monday", by="alice") == asked.question_id
    assert hall.view(operation).state == "RESULTS_READY"
    assert hall.run(operation).state == "COMPLETED"
    assert observations(hall, operation) == [{"state": "succeeded", "data": {"answer": "Monday"}}]
    [kept] = hall.view(operation).questions
    assert (kept.state, kept.answered_by, kept.answer) == ("ANSWERED", "alice", "Monday")
    shown = [item for item in hall.requests(operation)[-1]["input"] if item.get("type") == "function_call_output"]
    assert json.loads(shown[0]["output"])["data"] == {"answer": "Monday"}
    assert [e["body"]["by"] for e in hall.audit(operation, "question.answered")] == ["alice"]
    assert "Monday" not in json.dumps(hall.audit(operation, "question.answered"))


def test_answered_by_operation(hall: Desk) -> None:
    operation = waiting(hall)
    commands.answer(hall.app, operation, "Monday", by="alice")
    with pytest.raises(Conflict, match="waits for no answer"):
        commands.answer(hall.app, operation, "Tuesday", by="alice")
    assert hall.run(operation).state == "COMPLETED"


def test_two_questions(hall: Desk) -> None:
    operation = waiting(hall, calls(call("ask_user", question="A?"), call("ask_user", question="B?")), DONE)
    with pytest.raises(Conflict) as caught:
        commands.answer(hall.app, operation, "x", by="alice")
    assert caught.value.code == "AMBIGUOUS"
    first, second = hall.view(operation).open_questions
    commands.answer(hall.app, first.question_id, "1", by="alice")
    assert hall.view(operation).state == "WAITING_INPUT"
    commands.answer(hall.app, second.question_id, "2", by="alice")
    assert hall.run(operation).state == "COMPLETED"


def test_reads_and_writes_of_the_turn_go_on(hall: Desk) -> None:
    script = calls(call("ask_user", question="A?"), call("look"), call("write"), CAREFUL)
    operation = submit(hall, script, DONE)
    assert hall.advance(operation).state == "EXECUTING"
    hall.step("reads")
    hall.step("writes")
    assert hall.view(operation).state == "WAITING_APPROVAL"
    commands.answer(hall.app, operation, "x", by="alice")
    assert hall.view(operation).state == "WAITING_APPROVAL"
    commands.approve(hall.app, hall.approval(operation), by="boss")
    assert hall.run(operation).state == "COMPLETED"
    assert len(hall.lab.effects) == 2


def test_the_answer_last(hall: Desk) -> None:
    operation = submit(hall, calls(call("ask_user", question="A?"), call("write")), DONE)
    hall.advance(operation)
    assert hall.run(operation).state == "WAITING_INPUT"
    commands.answer(hall.app, operation, "x", by="alice")
    assert hall.run(operation).state == "COMPLETED"


@pytest.mark.parametrize(
    ("more", "wrong", "right"),
    [
        ({}, 7, "seven"),
        ({}, "  ", "x"),
        ({}, "a\0b", "ab"),
        ({}, "x" * (asking.MAX_ANSWER_BYTES + 1), "x" * 1000),
        ({"choices": ["red", "blue"]}, "green", "blue"),
        ({"choices": ["red", "blue"]}, ["red"], "red"),
        ({"answer_schema": SCHEMA}, "Monday", {"day": "Monday"}),
        ({"answer_schema": SCHEMA}, {"day": 1}, {"day": "x"}),
        ({"answer_schema": SCHEMA}, {"day": "x", "more": 1}, {"day": "x"}),
        ({"answer_schema": {"type": ["string", "null"]}}, 1, None),
        ({"answer_schema": {"type": "integer", "maximum": 3}}, 4, 3),
    ],
)
def test_an_answer_must_fit(hall: Desk, more: dict[str, Any], wrong: Any, right: Any) -> None:
    operation = waiting(hall, calls(call("ask_user", question="Which?", **more)), DONE)
    with pytest.raises(UserError) as caught:
        commands.answer(hall.app, operation, wrong, by="alice")
    assert caught.value.code == "BAD_ANSWER"
    assert refused(hall, operation, "BAD_ANSWER", "question.refused")
    commands.answer(hall.app, operation, right, by="alice")
    assert hall.run(operation).state == "COMPLETED"
    assert observations(hall, operation) == [{"state": "succeeded", "data": {"answer": right}}]


@pytest.mark.parametrize(
    "arguments",
    [
        {"question": ""},
        {"question": "x" * 2001},
        {"question": "?", "choices": ["one"]},
        {"question": "?", "choices": ["a", "a"]},
        {"question": "?", "choices": ["a", "b"], "answer_schema": {"type": "string"}},
        {"question": "?", "answer_schema": {"type": "colour"}},
        {"question": "?", "answer_schema": {"$ref": "#"}},
        {"question": "?", "answer_schema": {"pattern": "(a+)+$"}},
        {"question": "?", "answer_schema": {"properties": {"a": {"allOf": []}}}},
        {"question": "?", "answer_schema": {"enum": ["x" * 5000]}},
        {"question": "?", "answer_schema": {"items": {"items": {"items": {"items": {"items": {}}}}}}},
    ],
)
def test_a_question_that_cannot_be_asked(hall: Desk, arguments: dict[str, Any]) -> None:
    operation = submit(hall, calls(call("ask_user", **arguments)), DONE)
    assert hall.run(operation).state == "COMPLETED"
    assert [made.code for made in hall.view(operation).calls] == ["INVALID_ARGUMENTS"]


def test_nobody_answers(hall: Desk) -> None:
    operation = waiting(hall, budgets=Budgets(input_seconds=60))
    asked = question(hall, operation)
    assert round((asked.expires_at - asked.created_at).total_seconds()) == 60
    assert hall.sweep()["expired_questions"] == 0
    expire(hall, operation)
    with pytest.raises(Conflict, match="expired at") as caught:
        commands.answer(hall.app, asked.question_id, "x", by="alice")
    assert caught.value.code == "NOT_PENDING"
    assert hall.sweep()["expired_questions"] == 1
    assert hall.sweep()["expired_questions"] == 0
    view = hall.view(operation)
    assert (view.state, view.reason, view.questions[0].state) == ("INCOMPLETE", "INPUT_EXPIRED", "EXPIRED")
    assert [made.code for made in view.calls] == ["INPUT_EXPIRED"]


def test_nobody_answers_while_a_write_is_unknown(hall: Desk) -> None:
    operation = submit(hall, calls(call("ask_user", question="A?"), call("write")), DONE)
    hall.lab.will(cut=True)
    hall.advance(operation)
    hall.step("writes")
    assert hall.view(operation).state == "RECONCILING"
    expire(hall, operation)
    hall.sweep()
    view = hall.view(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "INPUT_EXPIRED")
    assert [row["tool"] for row in (view.pending or {})["unresolved"]] == ["write"]


def test_the_end_revokes_it(hall: Desk) -> None:
    operation = waiting(hall)
    commands.cancel(hall.app, operation)
    view = hall.view(operation)
    assert (view.state, view.questions[0].state) == ("CANCELLED", "REVOKED")
    with pytest.raises(Conflict, match="the question is REVOKED"):
        commands.answer(hall.app, view.questions[0].question_id, "x", by="alice")
    assert refused(hall, operation, "NOT_PENDING", "question.refused")


def test_of_another_tenant(hall: Desk) -> None:
    operation = waiting(hall)
    asked = question(hall, operation).question_id
    for name in (asked, operation):
        with pytest.raises(NotFound):
            commands.answer(hall.app, name, "x", by="mallory", tenant="initech")
    assert refused(hall, operation, "OTHER_TENANT", "question.refused")
    with pytest.raises(NotFound):
        commands.answer(hall.app, "ask_ghost", "x", by="alice")
    with pytest.raises(UserError, match="who answers"):
        commands.answer(hall.app, asked, "x", by=" ")


def test_answered_ten_times_at_once(hall: Desk) -> None:
    operation = waiting(hall)
    asked = question(hall, operation).question_id
    done = at_once(*[lambda i=i: commands.answer(hall.app, asked, f"a{i}", by=f"p{i}") for i in range(10)])  # type: ignore[misc]
    assert sum(done) == 1
    assert hall.run(operation).state == "COMPLETED"


def test_answer_and_expiry_race(hall: Desk) -> None:
    for _ in range(10):
        operation = waiting(hall)
        asked = question(hall, operation).question_id
        hall.sql(
            "UPDATE questions SET expires_at = clock_timestamp() + interval '5 ms' WHERE operation_id = :o", o=operation
        )
        at_once(hall.sweep, lambda asked=asked: commands.answer(hall.app, asked, "x", by="alice"))  # type: ignore[misc]
        hall.sweep()
        view = hall.run(operation)
        state = view.questions[0].state
        assert (view.state, state) in {("COMPLETED", "ANSWERED"), ("INCOMPLETE", "EXPIRED")}


def test_not_offered_unless_the_profile_lists_it(hall: Desk) -> None:
    operation = hall.submit(ASKS, DONE)
    assert hall.run(operation).state == "COMPLETED"
    assert [made.code for made in hall.view(operation).calls] == ["UNKNOWN_TOOL"]


def test_every_registry_has_it_and_nobody_replaces_it() -> None:
    registry = Registry()
    assert registry.tool("ask_user") is ASK_USER
    assert ASK_USER not in registry.tools
    with pytest.raises(ConfigError, match="'ask_user' is registered twice"):
        registry.add(ASK_USER)


def test_it_uses_the_call_budget(hall: Desk) -> None:
    operation = waiting(hall, ASKS, calls(call("ask_user", question="And?")), DONE, budgets=Budgets(calls=1))
    commands.answer(hall.app, operation, "x", by="alice")
    assert hall.run(operation).state == "COMPLETED"
    assert hall.view(operation).usage.calls == 1
