"""What a pure decision asks the shell to do, in the transaction that saves the new state."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WakeAt:
    """The row is due at this time. The wake-up message itself goes out after the commit."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Tell:
    """Append a notice of the host to the transcript."""

    text: str


@dataclass(frozen=True, slots=True)
class StopWork:
    """The operation has ended: nothing that is not started may be dispatched any more."""


@dataclass(frozen=True, slots=True)
class Park:
    """It failed too often in a way that nobody foresaw: nothing is due until an operator releases it."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The action is final: record its outcome as the observation of the calls that wait for it."""


@dataclass(frozen=True, slots=True)
class AskOperator:
    """No evidence can be had automatically: open a review item."""


OperationEffect = WakeAt | Tell | StopWork | Park
ActionEffect = WakeAt | Settle | AskOperator
