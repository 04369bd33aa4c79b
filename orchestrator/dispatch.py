"""Run one due read or action of a queue: claim, execute outside any transaction, record with the fence, publish.

A write leaves only after its STARTED record has committed; everything that allowed it is checked again in that
transaction. An uncertain outcome is reconciled here too, never sent again because a row says STARTED.
"""

import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection

from executors import results
from executors.context import Context
from executors.http import ScopedClient
from executors.registry import ToolSpec
from executors.run import (
    Broken,
    CheckOutcome,
    Lost,
    Nowhere,
    Pending,
    ReadOutcome,
    Rejected,
    Succeeded,
    Transient,
    Unsent,
    WriteOutcome,
    run_check,
    run_read,
    run_write,
)
from orchestrator import binding, completion, engine, recording
from orchestrator.app import App
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain.action import ActionState
from orchestrator.domain.model import ApprovalState, AttemptState, CallState
from orchestrator.domain.operation import TERMINAL
from orchestrator.failpoints import failpoint
from orchestrator.judge import policy_version, still_authorized
from policy.approvals import Vote, approving
from policy.base import Principal
from policy.retry import backoff, may_send_again, retry_at
from store import actions, approvals, calls, operations, slots
from store.records import ActionRecord, OperationRecord

log = structlog.get_logger()

UNKNOWN_TOOL_WAIT = timedelta(seconds=10)  # a worker of an older release must leave the call to a newer one
CHECK_TIMEOUT = 15.0  # seconds for one reconciliation


def run_one(app: App, queue: str, hint: str | None) -> bool:
    """One due row of the queue, the hinted one first. False: nothing is due (or no slot is free)."""
    if hint is not None and hint.startswith("act_"):
        if _run_action(app, hint):
            return True
        hint = None
    return (queue in app.read_queues and _run_read(app, queue, hint)) or _run_next_action(app, queue)


# --- reads ---------------------------------------------------------------------------------------------------------


def _run_read(app: App, queue: str, hint: str | None) -> bool:
    since = time.monotonic()
    fair = any(spec.concurrency is not None and spec.queue == queue for spec in app.registry.tools)
    longest = max((spec.timeout for spec in app.registry.tools if spec.queue == queue), default=30.0)
    with app.database.autocommit() as connection:
        row = calls.claim(
            connection,
            hint=hint,
            queue=queue,
            lease=app.settings.lease_seconds,
            slot_lease=longest + slots.GRACE_SECONDS,
            worker=app.worker,
            fair=fair,
        )
    if row is None:
        return False
    with (
        structlog.contextvars.bound_contextvars(operation_id=row["operation_id"], call_key=row["call_key"]),
        app.leases.hold("call", row["call_key"], row["fence"], since),
    ):
        failpoint("read.claimed")
        outcome = _read_outcome(app, row)
        failpoint("read.answered")
        _record_read(app, row, outcome)
    return True


def _read_outcome(app: App, row: dict[str, Any]) -> ReadOutcome:
    spec = app.registry.tool(row["tool"])
    left = row["operation_left"].total_seconds()
    if row["ended"] is not None or left <= 0:
        return Rejected("OPERATION_ENDED", "")
    if row["revision"] != row["operation_revision"]:
        return Rejected("SUPERSEDED", "")
    if spec is None:
        return Transient("TOOL_NOT_HERE", UNKNOWN_TOOL_WAIT.total_seconds())
    principal = Principal(row["tenant"], row["subject"], frozenset(row["scopes"]))
    context = _context(app, spec, principal, row, min(spec.timeout, left))
    return run_read(spec, row["arguments"], context)


def _context(app: App, spec: ToolSpec, principal: Principal, row: dict[str, Any], seconds: float) -> Context:
    """`row` has operation_id, attempt_id, and call_key or action_id with idempotency_key."""
    deadline = time.monotonic() + seconds
    key = row.get("idempotency_key")
    headers = {spec.idempotency.name: key} if key and spec.idempotency and spec.idempotency.carrier == "header" else {}
    return Context(
        principal=principal,
        operation_id=row["operation_id"],
        call_id=row.get("call_key", ""),
        attempt_id=row["attempt_id"],
        deadline=deadline,
        http=ScopedClient(app.tool_http, deadline, headers),
        action_id=row.get("action_id"),
        idempotency_key=key,
        completion_token=completion.token(app.settings, row["action_id"], key) if key else None,
    )


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """`evidence` is what was really answered, where the model is told something else."""

    state: CallState
    attempt: AttemptState
    observation: results.Observation
    contacted: bool | None
    evidence: str | None = None


def _read_record(outcome: ReadOutcome, spec: ToolSpec | None) -> ReadRecord:
    match outcome:
        case Succeeded(observation, _):
            return ReadRecord(CallState.SUCCEEDED, AttemptState.SUCCEEDED, observation, True)
        case Rejected("OPERATION_ENDED", _):
            observation = results.error("rejected", "OPERATION_ENDED")
            return ReadRecord(CallState.REJECTED, AttemptState.NOT_SENT, observation, False)
        case Rejected("SUPERSEDED", _):
            return ReadRecord(CallState.REJECTED, AttemptState.NOT_SENT, results.SUPERSEDED, False)
        case Rejected(code, message):
            refusal = results.refusal(spec, code, message) if spec else results.error("failed", code, message)
            return ReadRecord(CallState.FAILED, AttemptState.FAILED, refusal, True)
        case Transient(code, _) | Broken(code):
            return ReadRecord(CallState.FAILED, AttemptState.FAILED, results.error("failed", code), None)


def _record_read(app: App, row: dict[str, Any], outcome: ReadOutcome) -> None:
    spec = app.registry.tool(row["tool"])
    if isinstance(outcome, Transient) and _try_again(app, row, outcome, spec):
        return
    record = _read_record(outcome, spec)

    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            settle_read(unit, row, record, spec)
        return unit.wakes

    with suppress(NotOurs):
        wakes = app.database.transact(work)
        failpoint("read.recorded")
        app.publish(wakes)


class NotOurs(Exception):
    """The fence is another worker's by now: roll back, a zombie changes nothing."""


def _superseded(record: ReadRecord) -> ReadRecord:
    """The caller corrected the request meanwhile: the answer is kept as evidence, and the model told that it is old."""
    if record.observation is results.SUPERSEDED:
        return record
    return replace(
        record, state=CallState.FAILED, observation=results.SUPERSEDED, evidence=record.observation.text
    )  # fmt: skip


def settle_read(unit: engine.Unit, row: Mapping[str, Any], record: ReadRecord, spec: ToolSpec | None) -> None:
    """Record a read's one result and count it; the last one moves the operation on. `row`: a claimed call.

    `spec` is None where no handler of ours can have run. Raises NotOurs.
    """
    operation = operations.count_read(  # takes the operation's lock, so its revision stands from here on
        unit.connection,
        row["operation_id"],
        revision=row["revision"],
        size=record.observation.size,
        superseded_size=results.SUPERSEDED.size,
        taints=record.observation.untrusted,
    )
    if operation.revision != row["revision"] and operation.state not in TERMINAL:
        record = _superseded(record)
    half = binding.produced(row["binding"] or {}, spec if record.attempt is not AttemptState.NOT_SENT else None)
    whole, binding_sha256 = digests.bind(half, observation=record.observation.text, state=record.state)
    ours = calls.settle(
        unit.connection,
        call_key=row["call_key"],
        fence=row["fence"],
        state=record.state,
        code=record.observation.code,
        observation=record.observation.text,
        is_error=record.observation.is_error,
        evidence=record.evidence,
        binding=engine.dump(whole),
        binding_sha256=binding_sha256,
        attempt_state=record.attempt,
        contacted=record.contacted,
    )
    if not ours:
        raise NotOurs
    unit.audit(
        row["operation_id"], "call.settled", row["call_key"], tool=row["tool"], state=record.state,
        code=record.observation.code, attempts=row["attempts"], contacted=record.contacted,
        result_sha256=whole["result_sha256"], binding_sha256=binding_sha256,
        evidence_sha256=digests.sha256_bytes(record.evidence.encode()) if record.evidence else None,
    )  # fmt: skip
    if operation.state in TERMINAL:
        return
    if operation.held_reads:
        released = calls.release_held(unit.connection, operation.operation_id, operation.turn, 1)
        unit.wake_rows(released)
        operation = replace(operation, held_reads=operation.held_reads - len(released))
        operations.save(unit.connection, operation.operation_id, held_reads=operation.held_reads)
    if operation.open_reads == 0:
        engine.progress(unit, operation)


def _try_again(app: App, row: dict[str, Any], outcome: Transient, spec: ToolSpec | None) -> bool:
    """Hand the read back to its retry owner, the row. False: it was tried often enough."""
    limit = spec.max_attempts if spec else row["attempts"] + 1
    delay = backoff(row["attempts"], outcome.retry_after, random.random())  # noqa: S311 - jitter
    if row["attempts"] >= limit or delay >= row["operation_left"]:
        return False
    with app.database.transaction() as connection:
        calls.try_again(
            connection,
            call_key=row["call_key"],
            fence=row["fence"],
            delay=delay.total_seconds(),
            attempt_state=AttemptState.FAILED,
            code=outcome.code,
            contacted=None,
        )
    return True


# --- actions -------------------------------------------------------------------------------------------------------


def _run_next_action(app: App, queue: str) -> bool:
    """The action longest due; one that another worker took first is passed over."""
    passed: list[str] = []
    for _ in range(4):
        with app.database.autocommit() as connection:
            action_id = actions.next_due(connection, queue, passed)
        if action_id is None:
            return False
        if _run_action(app, action_id):
            return True
        passed.append(action_id)
    return False


def _run_action(app: App, action_id: str) -> bool:
    with app.database.autocommit() as connection:
        action = actions.load(connection, action_id)
    if action is None:
        return False
    spec = app.registry.tool(action.tool)
    if spec is None:
        log.warning("action.tool_not_here", tool=action.tool)
        return False
    with structlog.contextvars.bound_contextvars(operation_id=action.operation_id, action_id=action_id):
        if action.state is ActionState.READY:
            return _start(app, spec, action)
        if action.state in (ActionState.UNKNOWN, ActionState.PENDING):
            return _check(app, spec, action)
    return False


class _NoSlot(Exception):
    """No free slot, or another worker was first: leave the action as it is."""


@dataclass(frozen=True, slots=True)
class _StartedAction:
    action: ActionRecord
    operation: OperationRecord
    attempt_id: str


def _start(app: App, spec: ToolSpec, action: ActionRecord) -> bool:
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
            code = objection or _objection(app, unit, spec, current, held)
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
        return False
    app.publish(wakes)
    if started is None:
        return acted
    failpoint("write.after_started")
    with app.leases.hold("action", action.action_id, started.action.fence, since) as lease:
        outcome = _write_outcome(app, spec, started) if lease.held() else Unsent("LEASE_LOST")
        failpoint("write.after_effect")
        _record_write(app, spec, started, outcome)
    return True


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
    except Exception:  # noqa: BLE001 - no answer is no permission
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
    version = policy_version(spec, app.profile(operation.profile_digest))
    if version != action.policy_version:
        return "POLICY_CHANGED"
    digest = recording.action_digest(
        operation, spec, action.arguments, action.idempotency_key, version, action.resource_version
    )
    if digest != action.digest:
        return "ACTION_CHANGED"
    return _objection_of_approval(unit, action, operation, digest)


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


def _write_outcome(app: App, spec: ToolSpec, started: _StartedAction) -> WriteOutcome:
    operation, action = started.operation, started.action
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    left = (operation.deadline - operation.now).total_seconds()
    row = {
        "operation_id": action.operation_id, "attempt_id": started.attempt_id, "action_id": action.action_id,
        "idempotency_key": action.idempotency_key,
    }  # fmt: skip
    return run_write(spec, action.arguments, _context(app, spec, principal, row, min(spec.timeout, left)))


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
            apply_outcome(app, unit, spec, held, current, outcome, contacted)
        failpoint("write.uncommitted")
        return unit.wakes

    wakes = app.database.transact(work)
    failpoint("write.recorded")
    app.publish(wakes)


def apply_outcome(
    app: App,
    unit: engine.Unit,
    spec: ToolSpec,
    operation: OperationRecord,
    action: ActionRecord,
    outcome: WriteOutcome | CheckOutcome,
    contacted: bool | None,
) -> None:
    """Turn an outcome into the action's next state and its operation's. Both rows are locked."""
    event, observation, changes = _outcome_event(app, unit, spec, operation, action, outcome)
    settled = engine.save_action(
        unit, operation, action, event, observation=observation, contacted=contacted, **changes
    )
    size = observation.size * settled if observation else 0
    engine.progress(
        unit,
        replace(operation, open_calls=operation.open_calls - settled, result_bytes=operation.result_bytes + size),
    )


def _outcome_event(
    app: App,
    unit: engine.Unit,
    spec: ToolSpec,
    operation: OperationRecord,
    action: ActionRecord,
    outcome: WriteOutcome | CheckOutcome,
) -> tuple[e.ActionEvent, results.Observation | None, dict[str, Any]]:
    now = operation.now
    check_at = next_check(app, spec, action, now)
    match outcome:
        case Succeeded(observation, reference):
            return e.Confirmed(), observation, {"external_ref": reference or action.external_ref}
        case Rejected(code, message):
            observation = results.refusal(spec, code, message)
            return e.RefusedDownstream(code), observation, {"evidence": message[: results.MAX_MESSAGE] or code}
        case Unsent(code):
            at = retry_at(now, action.attempts, spec.max_attempts, operation.deadline, None, random.random())  # noqa: S311
            if at is None and actions.may_have_arrived(unit.connection, action.action_id):
                return e.OutcomeLost(check_at), None, {"evidence": code}  # this try proves nothing of an earlier one
            return e.NothingSent(at), results.error("failed", code), {"evidence": code}
        case Pending(reference):
            return e.Pended(check_at or now + timedelta(minutes=1)), None, {"external_ref": reference}
        case Lost(code):
            return e.OutcomeLost(check_at), None, {"evidence": code}
        case Nowhere():
            if action.state is ActionState.PENDING:
                return e.OutcomeLost(check_at), None, {"evidence": "ABSENT"}
            live = operation.state not in TERMINAL and now < operation.deadline
            live = live and (action.revision == operation.revision or action.compensates is not None)
            again = live and may_repeat(spec, action, now) and _is_conclusive(unit, spec, action, now)
            return e.FoundAbsent(again, check_at), None, {"evidence": "ABSENT"}


def _is_conclusive(unit: engine.Unit, spec: ToolSpec, action: ActionRecord, now: datetime) -> bool:
    """Whether the last send is long enough ago for "absent" to mean something. Without a handler nobody was asked."""
    if spec.reconcile is None:
        return True
    sent = actions.last_sent(unit.connection, action.action_id)
    return sent is None or now >= sent + spec.conclusive_after


def may_repeat(spec: ToolSpec, action: ActionRecord, now: datetime) -> bool:
    return may_send_again(
        key_retention=spec.idempotency.retention if spec.idempotency else None,
        repeatable_overwrite=spec.repeatable,
        first_started=action.started_at,
        now=now,
        attempts=action.attempts,
        limit=spec.max_attempts,
    )


def next_check(app: App, spec: ToolSpec, action: ActionRecord, now: datetime) -> datetime | None:
    """When to ask about an uncertain action (again); None: nobody can be asked any more, an operator must settle it."""
    if action.checks >= app.settings.check_limit:
        return None
    if spec.reconcile is None and not may_repeat(spec, action, now):
        return None
    return now + backoff(action.checks + 1, None, random.random())  # noqa: S311 - jitter


def _check(app: App, spec: ToolSpec, action: ActionRecord) -> bool:
    since = time.monotonic()
    with app.database.transaction() as connection:
        held = actions.claim_check(connection, action.action_id, lease=app.settings.lease_seconds)
        operation = operations.load(connection, action.operation_id)
    if held is None or operation is None:
        return False
    with app.leases.hold("action", held.action_id, held.fence, since) as lease:
        outcome = _ask_downstream(app, spec, operation, held) if lease.held() else Lost("LEASE_LOST")
        failpoint("check.answered")
        _record_check(app, spec, held, outcome)
    return True


def _ask_downstream(app: App, spec: ToolSpec, operation: OperationRecord, action: ActionRecord) -> CheckOutcome:
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    row = {
        "operation_id": action.operation_id, "attempt_id": f"{action.action_id}:check:{action.checks}",
        "action_id": action.action_id, "idempotency_key": action.idempotency_key,
    }  # fmt: skip
    context = _context(app, spec, principal, row, min(spec.timeout, CHECK_TIMEOUT))
    return run_check(spec, action.arguments, action.idempotency_key, action.external_ref, context)


def _record_check(app: App, spec: ToolSpec, action: ActionRecord, outcome: CheckOutcome) -> None:
    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock(connection, action.operation_id)
            current = actions.lock(connection, action.action_id)
            if current.fence == action.fence and current.state is action.state:
                contacted = spec.reconcile is not None
                unit.audit(
                    action.operation_id, "action.checked", action.action_id, key=action.idempotency_key,
                    check=action.checks, outcome=type(outcome).__name__.lower(), contacted=contacted,
                )  # fmt: skip
                apply_outcome(app, unit, spec, held, current, outcome, contacted)
        return unit.wakes

    app.publish(app.database.transact(work))
