"""Hypothesis drives both machines with any event at any time, in any order."""

from datetime import datetime
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.domain import action as a
from orchestrator.domain import events as e
from orchestrator.domain import operation as o
from orchestrator.domain.effects import AskOperator, Park, Settle, StopWork, Tell, WakeAt
from orchestrator.domain.model import FAILED_REASONS, INCOMPLETE_REASONS
from tests.domain.contents import ACTION_EVENTS, OPERATION_EVENTS, times


def kinds(effects: tuple[Any, ...]) -> set[type[Any]]:
    found = [type(effect) for effect in effects]
    assert len(found) == len(set(found)), "an effect is asked for once"
    return set(found)


class OperationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = o.OperationState.READY
        self.ended_as: o.OperationState | None = None

    @rule(event=st.one_of(*OPERATION_EVENTS.values()), now=times)
    def happens(self, event: Any, now: datetime) -> None:
        before, decision = self.state, o.decide(self.state, event, now)
        if (before, type(event)) not in o.MOVES:
            assert decision == o.OperationDecision(before)
            return
        assert decision.state in o.MOVES[before, type(event)]
        self._effects_fit(event, decision, now)
        self._success_needs_evidence(event, decision)
        self.state = decision.state
        if self.state in o.TERMINAL:
            self.ended_as = self.state

    def _effects_fit(self, event: Any, decision: o.OperationDecision, now: datetime) -> None:
        found = kinds(decision.effects)
        assert len(found & {WakeAt, Park}) == (decision.state in o.CLAIMABLE)
        assert Park not in found or (isinstance(event, e.TurnLost) and event.lost >= event.limit)
        assert (StopWork in found) == (decision.state in o.TERMINAL)
        assert Tell not in found or isinstance(event, e.Answered)
        due = {effect.at for effect in decision.effects if isinstance(effect, WakeAt)}
        assert due <= {event.until if isinstance(event, e.TurnDeferred) else now}
        reasons = {o.OperationState.INCOMPLETE: INCOMPLETE_REASONS, o.OperationState.FAILED: FAILED_REASONS}
        assert decision.reason in reasons.get(decision.state, {None})

    def _success_needs_evidence(self, event: Any, decision: o.OperationDecision) -> None:
        if decision.state is o.OperationState.COMPLETED:
            assert isinstance(event, e.Answered)
            assert not event.missing
            assert not event.unresolved
            assert event.output_valid

    @invariant()
    def an_end_is_final(self) -> None:
        assert self.ended_as is None or self.state is self.ended_as


class ActionMachine(RuleBasedStateMachine):
    """`may_start` counts what allows the request to leave: judged once, and once more only where that is harmless."""

    def __init__(self) -> None:
        super().__init__()
        self.state = a.ActionState.PROPOSED
        self.may_start = 1
        self.final: a.ActionState | None = None

    @rule(event=st.one_of(*ACTION_EVENTS.values()), now=times)
    def happens(self, event: Any, now: datetime) -> None:
        before, decision = self.state, a.decide(self.state, event, now)
        if (before, type(event)) not in a.MOVES:
            assert decision == a.ActionDecision(before)
            return
        assert decision.state in a.MOVES[before, type(event)]
        self._effects_fit(event, before, decision, now)
        self._leaves_once(event, before, decision)
        self.state = decision.state
        if self.state in a.FINAL:
            self.final = self.state

    def _leaves_once(self, event: Any, before: a.ActionState, decision: a.ActionDecision) -> None:
        if decision.state is a.ActionState.STARTED:
            assert before is a.ActionState.READY
            assert self.may_start == 1
            self.may_start = 0
        harmless = isinstance(event, e.NothingSent) or (isinstance(event, e.FoundAbsent) and event.repeatable)
        if decision.state is a.ActionState.READY and before in a.UNRESOLVED:
            assert harmless
            self.may_start = 1

    def _effects_fit(self, event: Any, before: a.ActionState, decision: a.ActionDecision, now: datetime) -> None:
        found = kinds(decision.effects)
        S = a.ActionState
        assert (Settle in found) == (decision.state in a.FINAL)
        assert (decision.code is not None) == (decision.state in (S.FAILED, S.REJECTED))
        if decision.state in a.UNCERTAIN:
            assert len(found & {WakeAt, AskOperator}) == 1, "somebody will look: a later check or an operator"
        elif decision.state is S.READY:
            # A first READY waits for its place in the turn's order; one that was started before is due by itself.
            assert found == ({WakeAt} if before in a.UNRESOLVED else set())
        else:
            assert not found & {WakeAt, AskOperator}

    @invariant()
    def a_final_state_is_final(self) -> None:
        assert self.final is None or self.state is self.final


TestOperationMachine = OperationMachine.TestCase
TestActionMachine = ActionMachine.TestCase
TestOperationMachine.settings = TestActionMachine.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None
)
