"""Both transition tables, exhaustively: every pair of state and event, with every content that makes a difference."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, get_args

import pytest

from orchestrator.domain import action, events, operation
from orchestrator.domain.model import FAILED_REASONS, INCOMPLETE_REASONS, Reason
from tests.domain.contents import ACTION_EVENTS, NOW, OPERATION_EVENTS, SAMPLES

OPERATION_PAIRS = [(s, k) for s in operation.OperationState for k in get_args(events.OperationEvent)]
ACTION_PAIRS = [(s, k) for s in action.ActionState for k in get_args(events.ActionEvent)]


def test_the_contents_cover_every_event() -> None:
    assert set(OPERATION_EVENTS) == set(get_args(events.OperationEvent))
    assert set(ACTION_EVENTS) == set(get_args(events.ActionEvent))
    assert set(SAMPLES) == set(OPERATION_EVENTS) | set(ACTION_EVENTS)


@pytest.mark.parametrize(("state", "kind"), OPERATION_PAIRS)
def test_operation_goes_exactly_where_the_table_says(state: operation.OperationState, kind: type[Any]) -> None:
    decisions = [operation.decide(state, event, NOW) for event in SAMPLES[kind]]
    if (state, kind) not in operation.MOVES:
        assert set(decisions) == {operation.OperationDecision(state)}
        return
    assert {d.state for d in decisions} == operation.MOVES[state, kind]


@pytest.mark.parametrize(("state", "kind"), ACTION_PAIRS)
def test_action_goes_exactly_where_the_table_says(state: action.ActionState, kind: type[Any]) -> None:
    decisions = [action.decide(state, event, NOW) for event in SAMPLES[kind]]
    if (state, kind) not in action.MOVES:
        assert set(decisions) == {action.ActionDecision(state)}
        return
    assert {d.state for d in decisions} == action.MOVES[state, kind]


def _reachable(start: StrEnum, moves: dict[Any, frozenset[Any]]) -> set[Any]:
    found: set[Any] = {start}
    grown = True
    while grown:
        more = {target for (state, _), targets in moves.items() if state in found for target in targets}
        grown = not more <= found
        found |= more
    return found


def test_every_state_is_reached_from_the_start() -> None:
    # WAITING_INPUT is entered once `answer` exists; the machine is ready for it.
    assert _reachable(operation.OperationState.READY, operation.MOVES) == set(operation.OperationState)
    assert _reachable(action.ActionState.PROPOSED, action.MOVES) == set(action.ActionState)


def test_an_end_has_no_way_out_and_everything_else_has_one() -> None:
    assert {state for state, _ in operation.MOVES} == operation.LIVE
    assert {state for state, _ in action.MOVES} == set(action.ActionState) - action.FINAL


def test_the_sets_of_states_do_not_overlap() -> None:
    parts = [action.FINAL, action.UNSTARTED, action.UNRESOLVED]
    assert sum(map(len, parts)) == len(frozenset().union(*parts)) == len(action.ActionState)
    assert set(operation.OperationState) == operation.LIVE | operation.TERMINAL
    assert set(Reason) == INCOMPLETE_REASONS | FAILED_REASONS


@pytest.mark.parametrize("decide", [operation.decide, action.decide])
def test_a_forgotten_event_is_not_silently_accepted(
    decide: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row in the table without an arm in `decide` is a bug that shows at once."""

    class Unheard:
        pass

    machine = operation if decide is operation.decide else action
    state = operation.OperationState.READY if machine is operation else action.ActionState.READY
    monkeypatch.setitem(machine.MOVES, (state, Unheard), frozenset({state}))
    with pytest.raises(AssertionError):
        decide(state, Unheard(), NOW)
