"""Loops that bring nothing new are stopped by the runtime; the model's part in it is only to loop."""

from typing import Any

import pytest

from policy.profile import Budgets
from tests.acceptance.desks import sent
from tests.orchestrator.desk import DONE, Desk, call, calls

TWO = Budgets(no_progress_turns=2, turns=30)


def look(text: str) -> dict[str, Any]:
    return calls(call("look", text=text))


def stopped(desk: Desk, operation: str, turns: int) -> None:
    view = desk.run(operation)
    assert (view.state, view.reason, view.turns) == ("INCOMPLETE", "NO_PROGRESS", turns)
    assert len(desk.requests(operation)) == turns


def test_identical_proposals_of_a_read(desk: Desk) -> None:
    """The same answer three times; the fourth proposal is refused without asking anybody, then it is over."""
    operation = desk.submit(*[look("a")] * 20, budgets=TWO)
    stopped(desk, operation, 4)
    assert [c.code for c in desk.view(operation).calls] == [None, None, None, "NO_PROGRESS"]
    assert len(desk.lab.seen) == 3


def test_identical_proposals_whose_arguments_are_only_written_otherwise(desk: Desk) -> None:
    """Canonical arguments: order, spaces and a default that is spelled out make no difference."""
    texts = ['{"text":"a","size":0}', '{ "size": 0, "text": "a" }', '{"text":"a"}', '{"text":"\\u0061"}'] * 3
    turns = [{"calls": [{"name": "look", "arguments_text": text}]} for text in texts]
    stopped(desk, desk.submit(*turns, budgets=TWO), 4)


def test_identical_proposals_of_a_write(desk: Desk) -> None:
    operation = desk.submit(*[calls(call("keyed", text="a"))] * 20, budgets=TWO)
    stopped(desk, operation, 3)
    assert [c.duplicate for c in desk.view(operation).calls] == [False, True, True]
    assert len(desk.lab.effects) == 1
    assert [row["tool"] for row in (desk.view(operation).pending or {})["happened"]] == ["keyed"], "what was done"


def test_same_error_again_and_again(desk: Desk) -> None:
    """Other arguments each time, and always the same no."""
    for _ in range(20):
        desk.lab.will(status=422, json={"code": "NO_SUCH_FACT"})
    stopped(desk, desk.submit(*[look(str(n)) for n in range(20)], budgets=TWO), 4)


def test_same_refusal_of_ours_again_and_again(desk: Desk) -> None:
    bad = [{"calls": [{"name": "look", "arguments_text": f'{{"text": {n}'}]} for n in range(20)]
    operation = desk.submit(*bad, budgets=TWO)
    stopped(desk, operation, 4)
    assert desk.lab.seen == []


def test_alternating_pairs(desk: Desk) -> None:
    stopped(desk, desk.submit(*[look("a"), look("b")] * 10, budgets=TWO), 6)


def test_no_new_information_in_a_whole_turn_of_calls(desk: Desk) -> None:
    both = calls(call("look", text="a"), call("narrow", text="b"))
    stopped(desk, desk.submit(*[both] * 10, budgets=TWO), 4)


def test_one_new_answer_is_enough_to_go_on(desk: Desk) -> None:
    turns = [calls(call("look", text="a"), call("look", text=str(n))) for n in range(8)]
    assert desk.run(desk.submit(*turns, DONE, budgets=TWO)).state == "COMPLETED"


def test_a_status_that_changes_may_be_asked_again(desk: Desk) -> None:
    for n in range(8):
        desk.lab.will(json={"id": "1", "text": f"{n} of 8"})
    operation = desk.submit(*[look("a")] * 8, DONE, budgets=TWO)
    assert desk.run(operation).state == "COMPLETED"
    assert len(desk.lab.seen) == 8


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_is_the_profiles(desk: Desk, limit: int) -> None:
    budgets = Budgets(no_progress_turns=limit, turns=30)
    stopped(desk, desk.submit(*[calls(call("keyed"))] * 20, budgets=budgets), limit + 1)


def test_the_stop_does_not_depend_on_what_the_model_makes_of_it(desk: Desk) -> None:
    """It is told NO_PROGRESS and goes on all the same; the runtime counts."""
    operation = desk.submit(*[look("a")] * 50, budgets=Budgets(turns=40))
    view = desk.run(operation)
    assert (view.state, view.reason) == ("INCOMPLETE", "NO_PROGRESS")
    assert sent(desk, operation)[-1].results()[-1].output["code"] == "NO_PROGRESS"
