"""The action machine: one approved business intent from judgement to outcome. Table first, see `operation.py`.

The rule that everything else serves: the request leaves only in STARTED, and STARTED is never entered twice unless
nothing was sent, or a second arrival is harmless.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from orchestrator.domain import events as e
from orchestrator.domain.effects import ActionEffect, AskOperator, Settle, WakeAt


class ActionState(StrEnum):
    PROPOSED = "PROPOSED"  # passes within the transaction that records the reply
    WAITING_APPROVAL = "WAITING_APPROVAL"
    READY = "READY"  # may be started once the shell gives it a wake_at (its place in the turn's order)
    STARTED = "STARTED"  # the record is committed; the request may be on its way
    SUCCEEDED = "SUCCEEDED"  # the downstream confirmed; its reference is stored
    FAILED = "FAILED"  # evidence: not applied
    REJECTED = "REJECTED"  # never dispatched
    PENDING = "PENDING"  # accepted, decided later
    UNKNOWN = "UNKNOWN"  # it may or may not have been applied


S = ActionState
FINAL = frozenset({S.SUCCEEDED, S.FAILED, S.REJECTED})
UNSTARTED = frozenset({S.PROPOSED, S.WAITING_APPROVAL, S.READY})
UNCERTAIN = frozenset({S.PENDING, S.UNKNOWN})
UNRESOLVED = UNCERTAIN | {S.STARTED}

Moves = dict[tuple[ActionState, type[e.ActionEvent]], frozenset[ActionState]]

MOVES: Moves = {
    (S.PROPOSED, e.ApprovalRequired): frozenset({S.WAITING_APPROVAL}),
    (S.PROPOSED, e.Cleared): frozenset({S.READY}),
    (S.WAITING_APPROVAL, e.Approved): frozenset({S.READY}),
    **{(state, e.Blocked): frozenset({S.REJECTED}) for state in sorted(UNSTARTED)},
    (S.READY, e.Started): frozenset({S.STARTED}),
    (S.STARTED, e.NothingSent): frozenset({S.READY, S.FAILED}),
    (S.STARTED, e.OutcomeLost): frozenset({S.UNKNOWN}),
    (S.READY, e.OutcomeLost): frozenset({S.UNKNOWN}),  # it will not be sent again, and an earlier attempt may arrive
    (S.PENDING, e.OutcomeLost): frozenset({S.PENDING}),
    (S.UNKNOWN, e.OutcomeLost): frozenset({S.UNKNOWN}),
    (S.UNKNOWN, e.FoundAbsent): frozenset({S.READY, S.UNKNOWN}),
    **{(state, e.Confirmed): frozenset({S.SUCCEEDED}) for state in sorted(UNRESOLVED)},
    **{(state, e.RefusedDownstream): frozenset({S.FAILED}) for state in sorted(UNRESOLVED)},
    **{(state, e.Pended): frozenset({S.PENDING}) for state in sorted(UNRESOLVED)},
}


@dataclass(frozen=True, slots=True)
class ActionDecision:
    """The state after the event; `code` says why it was rejected or failed."""

    state: ActionState
    code: str | None = None
    effects: tuple[ActionEffect, ...] = ()


def decide(state: ActionState, event: e.ActionEvent, now: datetime) -> ActionDecision:
    """What the action becomes; the same state and no effects where the event is out of place."""
    if (state, type(event)) not in MOVES:
        return ActionDecision(state)
    match event:
        case e.ApprovalRequired():
            return ActionDecision(S.WAITING_APPROVAL)
        case e.Cleared() | e.Approved():
            return ActionDecision(S.READY)
        case e.Blocked():
            return ActionDecision(S.REJECTED, event.code, (Settle(),))
        case e.Started():
            return ActionDecision(S.STARTED)
        case e.Confirmed():
            return ActionDecision(S.SUCCEEDED, effects=(Settle(),))
        case e.RefusedDownstream():
            return ActionDecision(S.FAILED, event.code, (Settle(),))
        case e.NothingSent():
            if event.retry_at is None:
                return ActionDecision(S.FAILED, "NOT_SENT", (Settle(),))
            return ActionDecision(S.READY, effects=(WakeAt(event.retry_at),))
        case e.Pended():
            return ActionDecision(S.PENDING, effects=(WakeAt(event.check_at),))
        case e.OutcomeLost():
            resting = S.PENDING if state is S.PENDING else S.UNKNOWN
            return ActionDecision(resting, effects=(_check(event.check_at),))
        case e.FoundAbsent():
            if event.repeatable:
                return ActionDecision(S.READY, effects=(WakeAt(now),))
            return ActionDecision(S.UNKNOWN, effects=(_check(event.check_at),))
        case _:
            assert_never(event)


def _check(at: datetime | None) -> ActionEffect:
    return AskOperator() if at is None else WakeAt(at)
