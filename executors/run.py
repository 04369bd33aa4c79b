"""Run a handler once and say what happened, as a value. No database, no retry: the caller records and decides.

The write table of DESIGN section 6 is `run_write`'s except-clauses: whatever is not proof is `Lost`.
"""

from dataclasses import dataclass
from typing import Any

from executors import results
from executors.context import Context
from executors.outcomes import (
    SURPRISE,
    Absent,
    Accepted,
    Applied,
    NotApplied,
    NotSent,
    StillPending,
    ToolRejected,
    ToolUnavailable,
)
from executors.registry import ToolSpec


@dataclass(frozen=True, slots=True)
class Succeeded:
    observation: results.Observation
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A definite business answer: not applied, and the same request would get it again."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unsent:
    """Nothing left this process."""

    code: str


@dataclass(frozen=True, slots=True)
class Transient:
    """A read that may be tried again after `retry_after` seconds."""

    code: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A read that failed in a way that repeating will not mend."""

    code: str


@dataclass(frozen=True, slots=True)
class Pending:
    reference: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A write that may or may not have been applied."""

    code: str


@dataclass(frozen=True, slots=True)
class Nowhere:
    """Reconciliation: the downstream has no trace of it."""


ReadOutcome = Succeeded | Rejected | Transient | Broken
WriteOutcome = Succeeded | Rejected | Unsent | Pending | Lost
CheckOutcome = Succeeded | Rejected | Pending | Lost | Nowhere


def run_read(spec: ToolSpec, arguments: dict[str, Any], ctx: Context) -> ReadOutcome:
    try:
        answer = spec.handler(spec.load(arguments), ctx)
        return Succeeded(results.success(spec, results.validated(spec, answer)))
    except ToolRejected as refusal:
        return Rejected(results.clean(refusal.code), results.clean(refusal.message))
    except NotSent:
        return Transient("TOOL_UNREACHABLE")
    except ToolUnavailable as failure:
        return Transient("TOOL_UNAVAILABLE", failure.retry_after)
    except results.BadResult:
        return Broken("INVALID_TOOL_RESULT")
    except SURPRISE:  # its text must not reach the model
        return Broken("TOOL_ERROR")


def run_write(spec: ToolSpec, arguments: dict[str, Any], ctx: Context) -> WriteOutcome:
    """The caller has committed STARTED. Only proof leads anywhere but `Lost`."""
    try:
        answer = spec.handler(spec.load(arguments), ctx)
        if isinstance(answer, Accepted):
            return Pending(results.storable(answer.reference))
        observation = results.success(spec, results.validated(spec, answer))
        return Succeeded(observation, results.reference(spec, answer))
    except ToolRejected as refusal:
        return Rejected(results.clean(refusal.code), results.clean(refusal.message))
    except NotSent:
        # The scoped client knows of every request of the attempt; a handler that used another one cannot claim this.
        if ctx.http.sent_unsafe:
            return Lost("TOOL_UNAVAILABLE")
        return Unsent("TOOL_UNREACHABLE" if ctx.http.held() else "LEASE_LOST")
    except ToolUnavailable:
        return Lost("TOOL_UNAVAILABLE")
    except results.BadResult:
        return Lost("INVALID_TOOL_RESULT")
    except SURPRISE:  # the effect may have happened before it raised
        return Lost("TOOL_ERROR")


def run_check(spec: ToolSpec, arguments: dict[str, Any], key: str, reference: str | None, ctx: Context) -> CheckOutcome:
    """Ask the downstream what became of a write; anything but an answer leaves it uncertain."""
    if spec.reconcile is None:
        return Nowhere()
    try:
        answer = spec.reconcile(spec.load(arguments), key, reference, ctx)
        match answer:
            case Applied():
                observation = results.success(spec, results.validated(spec, answer.result))
                given = results.storable(answer.reference) if answer.reference else None
                return Succeeded(observation, given or results.reference(spec, answer.result))
            case NotApplied():
                return Rejected(results.clean(answer.code), results.clean(answer.evidence))
            case StillPending():
                return Pending(results.storable(answer.reference))
            case Absent():
                return Nowhere()
    except SURPRISE:  # no answer is no evidence, and only NotApplied says that nothing happened
        return Lost("CHECK_FAILED")
    return Lost("CHECK_FAILED")
