"""Facts that can happen to an operation or an action: one frozen class each, so that a forgotten one fails type checks.

Every time in an event comes from the database clock.
"""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.model import Outstanding, Reason

# --- operation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A worker claimed the operation and will ask the model."""


@dataclass(frozen=True, slots=True)
class TurnLost:
    """The worker died, or taking the turn failed unexpectedly. Nothing of that turn was dispatched."""

    lost: int  # how often in a row, this one included
    limit: int
    may_ask_again: bool = True  # False: provider-side tools may have run and the profile says stop
    again_at: datetime | None = None  # None: at once


@dataclass(frozen=True, slots=True)
class TurnDeferred:
    """The request failed in a way that may pass; ask again at `until`."""

    until: datetime


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The request failed for good, or too often."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Proposed:
    """The reply proposes tool calls."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The reply is a final text with an explicit completion reason; is there evidence for it?

    `missing` are required tools that have not succeeded, `unresolved` says that a write is started, unknown or
    pending, `may_tell` that the model can still be told and asked again, `expired` that nobody approved a missing one
    in time. `refused_for` is the budget for which a call of the operation was refused: what was left undone is not
    called complete.
    """

    missing: tuple[str, ...] = ()
    unresolved: bool = False
    output_valid: bool = True
    may_tell: bool = True
    expired: bool = False
    refused_for: Reason | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The model or a filter refused."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The reply was cut; calls in it are not proposals."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The provider wants to be asked to go on."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """The caller corrected the request while the model was asked: nothing of the reply is judged, ask again."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Every call of the reply has its verdict."""

    open: Outstanding


@dataclass(frozen=True, slots=True)
class Progressed:
    """A result, decision or reconciliation was recorded; `open` is what the turn still waits for."""

    open: Outstanding


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A budget, the deadline or the loop guard ended it."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The caller or an operator wants it to stop."""


OperationEvent = (
    TurnStarted
    | TurnLost
    | TurnDeferred
    | TurnFailed
    | Proposed
    | Answered
    | Refused
    | Truncated
    | Paused
    | Superseded
    | Judged
    | Progressed
    | Exhausted
    | CancelRequested
)

# --- action ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApprovalRequired:
    """A person must decide first."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Policy lets it run without a person."""


@dataclass(frozen=True, slots=True)
class Approved:
    """A person approved exactly this digest."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """It must not be dispatched: denied, expired, unauthorised, cancelled, or an earlier write went wrong."""

    code: str


@dataclass(frozen=True, slots=True)
class Started:
    """The attempt's record has committed; only now may the request leave."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The downstream confirmed the effect."""


@dataclass(frozen=True, slots=True)
class RefusedDownstream:
    """Evidence shows that the effect was not applied and will not be."""

    code: str


@dataclass(frozen=True, slots=True)
class NothingSent:
    """Nothing left this process; `retry_at` is None when the retry owner gives up."""

    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Pended:
    """The downstream accepted it and decides later."""

    check_at: datetime


@dataclass(frozen=True, slots=True)
class OutcomeLost:
    """It may or may not have been applied."""

    check_at: datetime | None  # None: nothing can be asked, an operator must settle it


@dataclass(frozen=True, slots=True)
class FoundAbsent:
    """Asked, and the downstream has no trace of it, or it cannot be asked.

    `repeatable` is true only where a second arrival is harmless: the downstream enforces the key within its
    retention window, or the write is a declared overwrite.
    """

    repeatable: bool
    check_at: datetime | None


ActionEvent = (
    ApprovalRequired
    | Cleared
    | Approved
    | Blocked
    | Started
    | Confirmed
    | RefusedDownstream
    | NothingSent
    | Pended
    | OutcomeLost
    | FoundAbsent
)
