"""What an outcome of a write or a reconciliation makes of its action and its operation."""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from executors import results
from executors.registry import ToolSpec
from executors.run import (
    CheckOutcome,
    Lost,
    Nowhere,
    Pending,
    Rejected,
    Succeeded,
    Unsent,
    WriteOutcome,
)
from orchestrator import engine
from orchestrator.app import App
from orchestrator.domain import events as e
from orchestrator.domain.action import ActionState
from orchestrator.domain.operation import TERMINAL
from policy.retry import backoff, may_send_again, retry_at
from store import actions
from store.records import ActionRecord, OperationRecord


def apply(
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
            if _may_be_our_own_doing(unit, spec, action):
                return e.OutcomeLost(check_at), None, {"evidence": code}
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


def _may_be_our_own_doing(unit: engine.Unit, spec: ToolSpec, action: ActionRecord) -> bool:
    """Whether a refusal can come of an earlier try that was applied, such as a version that it has changed.

    Not where the downstream enforces the key: it answers the same request with what it said the first time.
    """
    sent_now = action.state is ActionState.STARTED
    return sent_now and spec.idempotency is None and actions.may_have_arrived(unit.connection, action.action_id)


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
