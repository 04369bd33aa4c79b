"""Start one write: all that allowed it is checked again in the transaction that records STARTED; then it is sent.

What may or may not have been applied is never sent again here because a row says STARTED; see `checks`.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from executors import results
from executors.outcomes import SURPRISE
from executors.registry import ToolSpec
from executors.run import (
    Lost,
    Nowhere,
    Pending,
    Rejected,
    Succeeded,
    Unsent,
    WriteOutcome,
    run_write,
)
from orchestrator import attempt, consequences, engine, recording
from orchestrator.app import App
from orchestrator.domain.action import ActionState
from orchestrator.domain.errors import Unavailable
from orchestrator.domain.model import ApprovalState, AttemptState
from orchestrator.domain.operation import TERMINAL
from orchestrator.failpoints import failpoint
from orchestrator.judge import policy_version, still_authorized
from orchestrator.leases import Lease
from policy.approvals import Vote, approving
from policy.base import Principal
from store import actions, approvals, halts, operations, slots
from store.records import ActionRecord, OperationRecord


class _NoSlot(Exception):
    """No free slot, or another worker was first: leave the action as it is."""


@dataclass(frozen=True, slots=True)
class _StartedAction:
    action: ActionRecord
    operation: OperationRecord
    attempt_id: str


def start(app: App, spec: ToolSpec, action: ActionRecord) -> bool:
    since = time.monotonic()
    with app.database.autocommit() as connection:
        operation = operations.load(connection, action.operation_id)
    if operation is None:
        return False
    objection = _objection_of_resource(spec, action, operation)

    def begin(connection: Connection) -> tuple[_StartedAction | None, list[engine.Wake], bool]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock(connection, action.operation_id)
            current = actions.lock(connection, action.action_id)
            if current.state is not ActionState.READY or current.wake_at is None:
                return None, [], False
            code = objection or _objection(app, unit, spec, current, held) or _forgotten(unit, spec, current, held)
            if code is None:
                return _mark_started(app, unit, spec, current, held), unit.wakes, True
            observation = results.SUPERSEDED if code == "SUPERSEDED" else None
            settled = engine.withdraw(unit, held, current, code, observation)
            engine.progress(unit, replace(held, open_calls=held.open_calls - settled))
            return None, unit.wakes, True

    failpoint("write.before_started")
    try:
        started, wakes, acted = app.database.transact(begin)
    except _NoSlot:
        _raise_halt(app)
        return False
    app.publish(wakes)
    if started is None:
        return acted
    failpoint("write.after_started")
    with app.leases.hold("action", action.action_id, started.action.fence, since) as lease:
        outcome = _write_outcome(app, spec, started, lease) if lease.held() else Unsent("LEASE_LOST")
        failpoint("write.after_effect")
        _record_write(app, spec, started, outcome)
    return True


def _raise_halt(app: App) -> None:
    """Raises Unavailable with the halt's code while no write may start."""
    with app.database.autocommit() as connection:
        halt = halts.current(connection)
    if halt is not None:
        raise Unavailable(halt.code, f"no write starts: {halt.detail}; `turnqueue audit accept` ends that")


def _mark_started(
    app: App, unit: engine.Unit, spec: ToolSpec, action: ActionRecord, operation: OperationRecord
) -> _StartedAction:
    """The atomic `started` record: approval consumed, attempt and slot taken, state STARTED. Raises _NoSlot."""
    taken = actions.start(
        unit.connection,
        action.action_id,
        lease=app.settings.lease_seconds,
        slot_lease=spec.timeout + slots.GRACE_SECONDS,
        worker=app.worker,
    )
    if taken is None:
        raise _NoSlot  # rolls back: the approval that this transaction consumed stays usable
    attempt_id, fence = taken
    unit.audit(
        action.operation_id, "action.started", action.action_id, tool=action.tool, key=action.idempotency_key,
        arguments_sha256=action.arguments_sha256, digest=action.digest, attempt_id=attempt_id,
        attempt=action.attempts + 1, contacted=False,
    )  # fmt: skip
    started = replace(
        action,
        state=ActionState.STARTED,
        fence=fence,
        attempts=action.attempts + 1,
        started_at=action.started_at or operation.now,
        wake_at=None,
    )
    return _StartedAction(started, operation, attempt_id)


def _objection_of_resource(spec: ToolSpec, action: ActionRecord, operation: OperationRecord) -> str | None:
    """Authorization and resource version again, just before the start; both may ask other systems."""
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    denied = still_authorized(spec, action.arguments, principal)
    if denied is not None:
        return denied.code
    if spec.resource_version is None:
        return None
    try:
        current = spec.resource_version(spec.load(action.arguments), principal)
    except SURPRISE:  # no answer is no permission
        return "POLICY_UNAVAILABLE"
    return None if current == action.resource_version else "RESOURCE_CHANGED"


def _objection(
    app: App, unit: engine.Unit, spec: ToolSpec, action: ActionRecord, operation: OperationRecord
) -> str | None:
    """Everything that allowed the action, asked again inside the transaction that starts it."""
    if action.compensates is None:  # an operator may undo what an operation did after its end
        if operation.state in TERMINAL:
            return "OPERATION_ENDED"
        if operation.now >= operation.deadline:
            return "DEADLINE"
        if operation.revision != action.revision:
            return "SUPERSEDED"
    if spec.version != action.tool_version:
        return "TOOL_CHANGED"
    version = policy_version(spec, app.profile(operation.profile_digest, unit.connection))
    if version != action.policy_version:
        return "POLICY_CHANGED"
    digest = recording.action_digest(
        operation, spec, action.arguments, action.idempotency_key, version, action.resource_version
    )
    if digest != action.digest:
        return "ACTION_CHANGED"
    return _objection_of_approval(unit, action, operation, digest)


def _forgotten(unit: engine.Unit, spec: ToolSpec, action: ActionRecord, operation: OperationRecord) -> str | None:
    """A repeat that waited so long that the downstream may have forgotten the key could be applied twice."""
    if not action.attempts or consequences.may_repeat(spec, replace(action, attempts=0), operation.now):
        return None
    return "KEY_FORGOTTEN" if actions.may_have_arrived(unit.connection, action.action_id) else None


def _objection_of_approval(
    unit: engine.Unit, action: ActionRecord, operation: OperationRecord, digest: str
) -> str | None:
    """Consumes the approval, where one is needed: of exactly this action, by enough people, in time, once."""
    approval = approvals.of_action(unit.connection, action.action_id)
    if approval is None:
        return "APPROVAL_MISSING" if action.needs_approval else None
    if approval.state is ApprovalState.CONSUMED:  # a retry of the action that it was used for, or a second use
        return None if action.attempts and approval.action_digest == digest else "APPROVAL_USED"
    if approval.state is ApprovalState.APPROVED and approval.expires_at <= operation.now:
        return "APPROVAL_EXPIRED"
    bound = approval.binding(digest)
    votes = [Vote(v.by, v.decision, v.bound_sha256) for v in approvals.votes(unit.connection, approval.approval_id)]
    approved = approving(votes, bound_sha256=bound, requester=approval.requester, separate=approval.separate)
    if bound != approval.bound_sha256 or len(approved) < approval.approvers:
        return "APPROVAL_INVALID"
    return None if approvals.consume(unit.connection, approval, digest=digest) else "APPROVAL_INVALID"


def _write_outcome(app: App, spec: ToolSpec, started: _StartedAction, lease: Lease) -> WriteOutcome:
    operation, action = started.operation, started.action
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    left = (operation.deadline - operation.now).total_seconds()
    row = {
        "operation_id": action.operation_id, "attempt_id": started.attempt_id, "action_id": action.action_id,
        "idempotency_key": action.idempotency_key,
    }  # fmt: skip
    context = attempt.context(app, spec, principal, row, min(spec.timeout, left), lease)
    return run_write(spec, action.arguments, context)


_ATTEMPT: dict[type[Any], tuple[AttemptState, bool | None]] = {
    Succeeded: (AttemptState.SUCCEEDED, True),
    Rejected: (AttemptState.FAILED, True),
    Unsent: (AttemptState.NOT_SENT, False),
    Pending: (AttemptState.PENDING, True),
    Lost: (AttemptState.UNKNOWN, None),
    Nowhere: (AttemptState.UNKNOWN, True),
}


def _record_write(app: App, spec: ToolSpec, started: _StartedAction, outcome: WriteOutcome) -> None:
    action = started.action

    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock(connection, action.operation_id)
            current = actions.lock(connection, action.action_id)
            state, contacted = _ATTEMPT[type(outcome)]
            if current.fence != action.fence or current.state is not ActionState.STARTED:
                # A zombie changes nothing; what it saw is kept as evidence for the operator.
                unit.audit(
                    action.operation_id, "action.late_result", action.action_id, key=action.idempotency_key,
                    fence=action.fence, outcome=type(outcome).__name__.lower(),
                    reference=getattr(outcome, "reference", None), contacted=contacted,
                )  # fmt: skip
                return []
            code = getattr(outcome, "code", None)
            actions.end_attempt(connection, action.action_id, state=state, code=code, contacted=contacted)
            if action.limited:
                slots.free(connection, action.action_id)
            consequences.apply(app, unit, spec, held, current, outcome, contacted)
        failpoint("write.uncommitted")
        return unit.wakes

    wakes = app.database.transact(work, again=app.settings.lease_seconds)
    failpoint("write.recorded")
    app.publish(wakes)
