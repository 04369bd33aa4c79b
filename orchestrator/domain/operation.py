"""The operation machine: every transition of an operation lives in this file.

`MOVES` says what may follow, keyed by (state, event type); `decide` picks. An event that the table does not list
changes nothing. This file knows no database, no clock and no provider.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from orchestrator.domain import events as e
from orchestrator.domain.effects import OperationEffect, Park, StopWork, Tell, WakeAt
from orchestrator.domain.model import Outstanding, Reason


class OperationState(StrEnum):
    READY = "READY"  # due at wake_at; the next claim asks the model
    MODEL_REQUESTED = "MODEL_REQUESTED"  # a worker holds the lease and asks
    VALIDATING = "VALIDATING"  # passes within the transaction that records the reply
    EXECUTING = "EXECUTING"  # reads or writes of the turn are in flight
    WAITING_APPROVAL = "WAITING_APPROVAL"  # only a person's decision is missing
    WAITING_INPUT = "WAITING_INPUT"  # only the caller's answer is missing
    RECONCILING = "RECONCILING"  # a write is unknown or pending
    RESULTS_READY = "RESULTS_READY"  # every call of the turn has its result
    COMPLETED = "COMPLETED"
    REFUSED = "REFUSED"
    INCOMPLETE = "INCOMPLETE"  # stopped by a budget, a cut or missing evidence; `reason` says which
    FAILED = "FAILED"  # `reason` names the boundary
    CANCELLED = "CANCELLED"


S = OperationState
TERMINAL = frozenset({S.COMPLETED, S.REFUSED, S.INCOMPLETE, S.FAILED, S.CANCELLED})
LIVE = frozenset(S) - TERMINAL
CLAIMABLE = frozenset({S.READY, S.RESULTS_READY})
_RESTING = frozenset({S.EXECUTING, S.WAITING_APPROVAL, S.WAITING_INPUT, S.RECONCILING, S.RESULTS_READY})

Moves = dict[tuple[OperationState, type[e.OperationEvent]], frozenset[OperationState]]

MOVES: Moves = {
    (S.READY, e.TurnStarted): frozenset({S.MODEL_REQUESTED}),
    (S.RESULTS_READY, e.TurnStarted): frozenset({S.MODEL_REQUESTED}),
    (S.MODEL_REQUESTED, e.TurnLost): frozenset({S.READY, S.FAILED}),
    (S.MODEL_REQUESTED, e.TurnDeferred): frozenset({S.READY}),
    (S.MODEL_REQUESTED, e.TurnFailed): frozenset({S.FAILED}),
    (S.MODEL_REQUESTED, e.Proposed): frozenset({S.VALIDATING}),
    (S.MODEL_REQUESTED, e.Answered): frozenset({S.COMPLETED, S.READY, S.INCOMPLETE}),
    (S.MODEL_REQUESTED, e.Refused): frozenset({S.REFUSED}),
    (S.MODEL_REQUESTED, e.Truncated): frozenset({S.INCOMPLETE}),
    (S.MODEL_REQUESTED, e.Paused): frozenset({S.READY}),
    (S.MODEL_REQUESTED, e.Superseded): frozenset({S.READY}),
    (S.VALIDATING, e.Judged): _RESTING,
    (S.EXECUTING, e.Progressed): _RESTING,
    (S.WAITING_APPROVAL, e.Progressed): _RESTING,
    (S.WAITING_INPUT, e.Progressed): _RESTING,
    (S.RECONCILING, e.Progressed): _RESTING,
    **{(state, e.Exhausted): frozenset({S.INCOMPLETE}) for state in sorted(LIVE)},
    **{(state, e.CancelRequested): frozenset({S.CANCELLED}) for state in sorted(LIVE)},
}


@dataclass(frozen=True, slots=True)
class OperationDecision:
    """The state after the event; `reason` goes with INCOMPLETE and FAILED."""

    state: OperationState
    reason: Reason | None = None
    effects: tuple[OperationEffect, ...] = ()


def decide(state: OperationState, event: e.OperationEvent, now: datetime) -> OperationDecision:
    """What the operation becomes; the same state and no effects where the event is out of place."""
    if (state, type(event)) not in MOVES:
        return OperationDecision(state)
    match event:
        case e.TurnStarted():
            return OperationDecision(S.MODEL_REQUESTED)
        case e.TurnLost():
            return _lost(event, now)
        case e.TurnDeferred():
            return OperationDecision(S.READY, effects=(WakeAt(event.until),))
        case e.TurnFailed():
            return _end(S.FAILED, event.reason)
        case e.Proposed():
            return OperationDecision(S.VALIDATING)
        case e.Answered():
            return _answered(event, now)
        case e.Refused():
            return _end(S.REFUSED)
        case e.Truncated():
            return _end(S.INCOMPLETE, Reason.TRUNCATED)
        case e.Paused() | e.Superseded():
            return OperationDecision(S.READY, effects=(WakeAt(now),))
        case e.Judged() | e.Progressed():
            return _rest(event.open, now)
        case e.Exhausted():
            return _end(S.INCOMPLETE, event.reason)
        case e.CancelRequested():
            return _end(S.CANCELLED)
        case _:
            assert_never(event)


def _lost(event: e.TurnLost, now: datetime) -> OperationDecision:
    """Ask again, but not for ever: what kills its workers, or meets a bug of ours, waits for an operator."""
    if not event.may_ask_again:
        return _end(S.FAILED, Reason.INTERNAL)
    if event.lost >= event.limit:
        return OperationDecision(S.READY, effects=(Park(),))
    return OperationDecision(S.READY, effects=(WakeAt(event.again_at or now),))


def _end(state: OperationState, reason: Reason | None = None) -> OperationDecision:
    return OperationDecision(state, reason, (StopWork(),))


def _answered(event: e.Answered, now: datetime) -> OperationDecision:
    """Success needs evidence; the model is told once what is missing, then the operation ends without success."""
    if event.unresolved:
        return _end(S.INCOMPLETE, Reason.UNCONFIRMED)
    if event.missing:
        text = (
            f"The task is not complete: {', '.join(event.missing)} has not succeeded in this operation. "
            "Call it, or say plainly that the task could not be done."
        )
        reason = Reason.APPROVAL_EXPIRED if event.expired else Reason.UNCONFIRMED
        return _tell(event, text, now) or _end(S.INCOMPLETE, reason)
    if not event.output_valid:
        text = "The answer does not fit the required output schema. Answer again with exactly that JSON."
        return _tell(event, text, now) or _end(S.INCOMPLETE, Reason.OUTPUT_INVALID)
    if event.refused_for is not None:
        return _end(S.INCOMPLETE, event.refused_for)
    return _end(S.COMPLETED)


def _tell(event: e.Answered, text: str, now: datetime) -> OperationDecision | None:
    return OperationDecision(S.READY, effects=(Tell(text), WakeAt(now))) if event.may_tell else None


def _rest(left: Outstanding, now: datetime) -> OperationDecision:
    """Where a turn rests: what moves by itself comes first, then evidence, then people."""
    if left.running:
        return OperationDecision(S.EXECUTING)
    if left.uncertain:
        return OperationDecision(S.RECONCILING)
    if left.approvals:
        return OperationDecision(S.WAITING_APPROVAL)
    if left.inputs:
        return OperationDecision(S.WAITING_INPUT)
    return OperationDecision(S.RESULTS_READY, effects=(WakeAt(now),))
