"""Rows as frozen values, so that what the code reads of a table is written down and typed."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar, cast

import structlog
from sqlalchemy import RowMapping

from orchestrator.domain.action import ActionState
from orchestrator.domain.model import CallState, Effect
from orchestrator.domain.operation import OperationState
from store.versions import NewerVersion

log = structlog.get_logger()
R = TypeVar("R")


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def record(cls: type[R], row: RowMapping) -> R:
    """Build `cls` from a row that has at least its columns. Raises NewerVersion for a state that we do not know."""
    try:
        return cls(**{name: row[name] for name in _names(cast(Any, cls))})
    except ValueError:
        raise NewerVersion(str(row[_names(cast(Any, cls))[0]])) from None


def readable(cls: type[R], rows: Iterable[RowMapping]) -> list[R]:
    """Those of a batch that we can read: one row of a newer release must not keep the others from their repair."""
    found = []
    for row in rows:
        try:
            found.append(record(cls, row))
        except NewerVersion as error:
            log.warning("row.unreadable", code=error.code, kind=cls.__name__, problem=error.message)
    return found


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """`now` is the database clock at the time of reading."""

    operation_id: str
    schema_version: int
    tenant: str
    subject: str
    scopes: list[str]
    profile: str
    profile_digest: str
    state: OperationState
    reason: str | None
    revision: int
    fence: int
    deadline: datetime
    turn: int
    asks: int
    lost: int
    parked: str | None
    open_calls: int
    open_reads: int
    held_reads: int
    open_inputs: int
    next_seq: int
    calls_used: int
    writes_used: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    result_bytes: int
    told: bool
    tainted: bool
    last_response_id: str | None
    created_at: datetime
    ended_at: datetime | None
    now: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", OperationState(self.state))


@dataclass(frozen=True, slots=True)
class CallRecord:
    call_key: str
    operation_id: str
    tenant: str
    turn: int
    position: int
    revision: int
    response_id: str | None
    call_id: str
    tool: str
    tool_version: str | None
    effect: Effect | None
    queue: str | None
    arguments: dict[str, Any] | None
    arguments_sha256: str
    action_id: str | None
    duplicate: bool
    state: CallState
    code: str | None
    fence: int
    attempts: int
    observation: str | None
    is_error: bool
    binding: dict[str, Any] | None
    binding_sha256: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", CallState(self.state))
        object.__setattr__(self, "effect", Effect(self.effect) if self.effect else None)


@dataclass(frozen=True, slots=True)
class ActionRecord:
    action_id: str
    operation_id: str
    tenant: str
    turn: int
    position: int
    revision: int
    tool: str
    tool_version: str
    effect: Effect
    queue: str
    limited: bool
    independent: bool
    arguments: dict[str, Any]
    arguments_sha256: str
    idempotency_key: str
    digest: str
    policy_version: str
    resource_version: str | None
    needs_approval: bool
    replaces: str | None
    state: ActionState
    code: str | None
    fence: int
    wake_at: datetime | None
    attempts: int
    checks: int
    faults: int
    review: bool
    external_ref: str | None
    observation: str | None
    started_at: datetime | None
    compensates: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", ActionState(self.state))
        object.__setattr__(self, "effect", Effect(self.effect))
