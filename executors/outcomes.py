"""What a tool handler may return or raise besides its result model.

    ToolError
      ToolRejected      the downstream definitely refused; nothing was applied
      NotSent           nothing left this process (DNS, connect refused, no pooled connection)
      ToolUnavailable   a read may be tried again; after a write was sent this means UNKNOWN

Any other exception is a surprise: a read fails, a write becomes UNKNOWN.
"""

from dataclasses import dataclass
from typing import Any


class ToolError(Exception):
    """Base of what a handler raises on purpose."""


class ToolRejected(ToolError):
    """A definite business answer by the tool's contract: `code` is stable, `message` is shown to the model."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class NotSent(ToolError):
    """Proof that no byte of the request reached the downstream."""


class ToolUnavailable(ToolError):
    """Timeout, lost connection or 5xx. `retry_after` is in seconds when the downstream said so."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Accepted:
    """Returned by a write handler: the downstream took the request and decides later; the action is PENDING."""

    reference: str


@dataclass(frozen=True, slots=True)
class Applied:
    """Reconciliation: the effect is there. `result` is the result model, or the fields to build it from."""

    result: Any
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class NotApplied:
    """Reconciliation: proof that the effect was not and cannot be applied any more (e.g. a recorded rejection)."""

    code: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Absent:
    """Reconciliation: the downstream has no trace of it. By itself no proof: a late request can still arrive."""


@dataclass(frozen=True, slots=True)
class StillPending:
    """Reconciliation: accepted and not decided yet."""

    reference: str


# What code of the host's may raise besides: anything, and where it was written as a program it may call sys.exit().
SURPRISE = (Exception, SystemExit)

Reconciled = Applied | NotApplied | Absent | StillPending
