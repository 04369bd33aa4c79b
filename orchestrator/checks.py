"""Reconcile one uncertain action: ask its downstream what became of it, by key or reference."""

import random
import time

from sqlalchemy import Connection

from executors.registry import ToolSpec
from executors.run import (
    CheckOutcome,
    Lost,
    run_check,
)
from orchestrator import attempt, consequences, engine
from orchestrator.app import App
from orchestrator.failpoints import failpoint
from orchestrator.leases import Lease
from policy.base import Principal
from policy.retry import apart
from store import actions, operations
from store.records import ActionRecord, OperationRecord

CHECK_TIMEOUT = 15.0  # seconds for one reconciliation


def check(app: App, spec: ToolSpec, action: ActionRecord) -> bool:
    since = time.monotonic()
    with app.database.autocommit() as connection:
        wait = apart(action.faults + 1, app.settings.lease_seconds, random.random()).total_seconds()  # noqa: S311
        held = actions.claim_check(connection, action.action_id, lease=app.settings.lease_seconds, apart=wait)
        operation = operations.load(connection, action.operation_id)
    if held is None or operation is None:
        return False
    with app.leases.hold("action", held.action_id, held.fence, since) as lease:
        outcome = _ask_downstream(app, spec, operation, held, lease) if lease.held() else Lost("LEASE_LOST")
        failpoint("check.answered")
        _record_check(app, spec, held, outcome)
    return True


def _ask_downstream(
    app: App, spec: ToolSpec, operation: OperationRecord, action: ActionRecord, lease: Lease
) -> CheckOutcome:
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    row = {
        "operation_id": action.operation_id, "attempt_id": f"{action.action_id}:check:{action.checks}",
        "action_id": action.action_id, "idempotency_key": action.idempotency_key,
    }  # fmt: skip
    context = attempt.context(app, spec, principal, row, min(spec.timeout, CHECK_TIMEOUT), lease)
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
                consequences.apply(app, unit, spec, held, current, outcome, contacted)
        return unit.wakes

    app.publish(app.database.transact(work, again=app.settings.lease_seconds))
