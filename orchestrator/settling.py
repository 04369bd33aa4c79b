"""Settling what is uncertain or done: an operator's evidence, a downstream's later report, and undoing as an action.

All three leave an audit entry with who said so and why. None of them sends anything itself: a retry or a compensation
becomes due and goes through the same start as every write.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ValidationError
from sqlalchemy import Connection

from executors import results
from executors.registry import ToolSpec
from orchestrator import completion, consequences, engine, recording
from orchestrator.app import App
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain.action import UNCERTAIN, UNRESOLVED, ActionState
from orchestrator.domain.errors import Conflict, NotFound, UserError
from orchestrator.domain.operation import TERMINAL
from orchestrator.ids import new_id
from orchestrator.judge import policy_version, still_authorized
from policy.base import Principal
from store import actions, operations
from store.records import ActionRecord, OperationRecord

COMPENSATION_POSITION = 1_000_000  # after every call of a turn: no model proposed it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an operator found out about an uncertain action.

    `succeeded` takes the downstream's reference in `evidence`; `not_applied` and `retry` take the evidence in words.
    `result` are the fields of the tool's result, where the operator has them.
    """

    kind: Literal["succeeded", "not_applied", "retry"]
    evidence: str
    result: Mapping[str, Any] | None = None


def resolve(app: App, action_id: str, verdict: Verdict, *, by: str, tenant: str | None = None) -> ActionState:
    """Settle an UNKNOWN or PENDING action by an operator's evidence. Returns its new state.

    Raises NotFound UNKNOWN_ACTION, UserError BAD_FIELD, Conflict NOT_UNCERTAIN or ALREADY_ENDED, and Conflict
    RETRY_UNSAFE where a second arrival could apply it twice.
    """
    if not by.strip():
        raise UserError("BAD_FIELD", "by: name the person who decides")
    if not verdict.evidence.strip():
        raise UserError("BAD_FIELD", "evidence: say how you know (a reference, a ticket, what was looked up)")

    def work(unit: engine.Unit, operation: OperationRecord, action: ActionRecord, spec: ToolSpec) -> None:
        if action.state not in UNCERTAIN:
            raise Conflict("NOT_UNCERTAIN", f"{action_id} is {action.state}; only UNKNOWN or PENDING can be resolved")
        unit.audit(
            action.operation_id, "action.resolved", action_id, by=by, verdict=verdict.kind, key=action.idempotency_key,
            evidence=results.storable(verdict.evidence)[: results.MAX_MESSAGE],
        )  # fmt: skip
        _settle(unit, operation, action, *_resolution(operation, action, spec, verdict))

    return _locked(app, action_id, f"operator:{by}", tenant, work)


def reviews(app: App, *, tenant: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
    """What waits for `resolve`: uncertain actions that nothing can settle by itself, oldest first."""
    with app.database.autocommit() as connection:
        return actions.reviews(connection, tenant, limit)


def _resolution(
    operation: OperationRecord, action: ActionRecord, spec: ToolSpec, verdict: Verdict
) -> tuple[e.ActionEvent, results.Observation | None, dict[str, Any]]:
    match verdict.kind:
        case "succeeded":
            observation = _confirmed(spec, verdict.result, verdict.evidence)
            return e.Confirmed(), observation, {"external_ref": verdict.evidence, "evidence": "OPERATOR"}
        case "not_applied":
            observation = results.error("failed", "NOT_APPLIED", "An operator found that it was not applied.")
            return e.RefusedDownstream("NOT_APPLIED"), observation, {"evidence": verdict.evidence}
        case "retry":
            return _retry(operation, action, spec), None, {"evidence": verdict.evidence, "checks": 0}


def _retry(operation: OperationRecord, action: ActionRecord, spec: ToolSpec) -> e.ActionEvent:
    """An operator may repeat what has run out of attempts, but not what could be applied twice."""
    if operation.state in TERMINAL:
        raise Conflict("ALREADY_ENDED", f"{operation.operation_id} has ended; nothing is sent for it any more")
    if action.state is not ActionState.UNKNOWN or not consequences.may_repeat(
        spec, replace(action, attempts=0), operation.now
    ):
        raise Conflict(
            "RETRY_UNSAFE",
            "the downstream does not enforce its key (any more), so a second request could be applied twice; "
            "find out what happened and say --succeeded or --not-applied",
        )
    return e.FoundAbsent(repeatable=True, check_at=None)


def _confirmed(spec: ToolSpec, result: Mapping[str, Any] | None, reference: str) -> results.Observation:
    if result is None:
        return results.confirmed_without_result(reference)
    try:
        return results.success(spec, results.validated(spec, dict(result)))
    except results.BadResult as problem:
        raise UserError("BAD_FIELD", f"result: {problem}") from None


# --- completion callbacks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Completed:
    """A downstream's report: `result` and perhaps `reference` for success, `code` for a definite refusal."""

    result: Mapping[str, Any] | None = None
    reference: str | None = None
    code: str | None = None


def complete(app: App, action_id: str, token: str, report: Completed) -> ActionState:
    """Take a downstream's report about an action that it had accepted. The token counts once.

    Raises UserError TOKEN_BAD, TOKEN_EXPIRED or BAD_FIELD, NotFound UNKNOWN_ACTION, Conflict ALREADY_SETTLED.
    """
    named, key = completion.opened(app.settings, token)
    if named != action_id:
        raise UserError("TOKEN_BAD", "token: it belongs to another action")

    def work(unit: engine.Unit, operation: OperationRecord, action: ActionRecord, spec: ToolSpec) -> None:
        if action.idempotency_key != key:
            raise UserError("TOKEN_BAD", "token: it belongs to another action")
        if action.state not in UNRESOLVED:
            raise Conflict("ALREADY_SETTLED", f"{action_id} is {action.state}; a token counts once")
        unit.audit(
            action.operation_id, "action.reported", action_id, key=key, code=report.code,
            digest=digests.sha256("report-v1", dict(report.result or {})),
        )  # fmt: skip
        _settle(unit, operation, action, *_reported(spec, report))

    return _locked(app, action_id, "downstream", None, work)


def _reported(spec: ToolSpec, report: Completed) -> tuple[e.ActionEvent, results.Observation, dict[str, Any]]:
    if report.code is not None:
        code = results.stable_code(report.code)
        return e.RefusedDownstream(code), results.error("failed", code), {"evidence": "REPORTED"}
    if report.result is None:
        raise UserError("BAD_FIELD", "result: give the fields of the tool's result, or a code for a refusal")
    observation = _confirmed(spec, report.result, report.reference or "")
    reference = report.reference or results.reference(spec, dict(report.result))
    return e.Confirmed(), observation, {"external_ref": reference, "evidence": "REPORTED"}


# --- compensation --------------------------------------------------------------------------------------------------


def compensate(app: App, action_id: str, *, arguments: Mapping[str, Any], by: str, tenant: str | None = None) -> str:
    """Undo a SUCCEEDED action with the tool that its spec names: a separate action, authorised and started like any
    write, visible in the same operation whether it succeeds or fails. Returns its id.

    Raises NotFound UNKNOWN_ACTION, UserError NO_COMPENSATION or BAD_FIELD, Conflict NOT_SUCCEEDED or FORBIDDEN.
    """
    if not by.strip():
        raise UserError("BAD_FIELD", "by: name the person who decides")
    undo, given = _undoing(app, action_id, arguments, tenant)
    made: list[str] = []

    def work(unit: engine.Unit, operation: OperationRecord, action: ActionRecord, spec: ToolSpec) -> None:
        _only_succeeded(action)
        version = policy_version(undo, app.profile(operation.profile_digest, unit.connection))
        row = _compensation_row(operation, action, undo, given, version)
        actions.insert(unit.connection, [row])
        unit.audit(
            action.operation_id, "action.compensating", row["action_id"], by=by, undoes=action_id, tool=undo.name,
            key=row["idempotency_key"], digest=row["digest"],
        )  # fmt: skip
        unit.wakes.append(engine.Wake(undo.queue, row["action_id"], undo.name))
        made.append(row["action_id"])

    _locked(app, action_id, f"operator:{by}", tenant, work)
    return made[-1]


def _only_succeeded(action: ActionRecord) -> None:
    if action.state is not ActionState.SUCCEEDED:
        raise Conflict("NOT_SUCCEEDED", f"{action.action_id} is {action.state}; only what happened can be undone")


def _undoing(
    app: App, action_id: str, arguments: Mapping[str, Any], tenant: str | None
) -> tuple[ToolSpec, dict[str, Any]]:
    """The tool that undoes the action, and its checked arguments. The hook may do I/O: no transaction is open."""
    with app.database.autocommit() as connection:
        action, operation, spec = _known(app, connection, action_id, tenant)
    _only_succeeded(action)
    undo = app.registry.tool(spec.compensation) if spec.compensation else None
    if undo is None:
        raise UserError("NO_COMPENSATION", f"tool {spec.name!r} names no tool that undoes it")
    try:
        given = undo.arguments.model_validate(dict(arguments))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise UserError("BAD_FIELD", f"arguments.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    normal = given.model_dump(mode="json", exclude_unset=undo.sparse_arguments)
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    denied = still_authorized(undo, normal, principal)
    if denied is not None:
        raise Conflict("FORBIDDEN", f"{undo.name} is not allowed here: {denied.code}")
    return undo, normal


def _compensation_row(
    operation: OperationRecord, action: ActionRecord, undo: ToolSpec, arguments: dict[str, Any], version: str
) -> dict[str, Any]:
    key = digests.idempotency_key(
        tenant=operation.tenant,
        operation_id=operation.operation_id,
        tool=undo.name,
        intent={"undoes": action.action_id},
        generation=0,
    )
    return {
        "action_id": new_id("act"),
        "operation_id": operation.operation_id,
        "tenant": operation.tenant,
        "turn": max(operation.turn, 1),
        "position": COMPENSATION_POSITION,
        "revision": operation.revision,
        "tool": undo.name,
        "tool_version": undo.version,
        "effect": undo.effect,
        "queue": undo.queue,
        "limited": undo.concurrency is not None,
        "independent": True,
        "arguments": arguments,
        "arguments_sha256": digests.sha256("arguments-v1", arguments),
        "idempotency_key": key,
        "digest": recording.action_digest(operation, undo, arguments, key, version, None),
        "policy_version": version,
        "resource_version": None,
        "state": ActionState.READY,
        "wake_at": operation.now,
        "compensates": action.action_id,
    }


# --- shared --------------------------------------------------------------------------------------------------------


def _settle(
    unit: engine.Unit,
    operation: OperationRecord,
    action: ActionRecord,
    event: e.ActionEvent,
    observation: results.Observation | None,
    changes: dict[str, Any],
) -> None:
    settled = engine.save_action(unit, operation, action, event, observation=observation, **changes)
    engine.progress(unit, replace(operation, open_calls=operation.open_calls - settled))


def _known(
    app: App, connection: Connection, action_id: str, tenant: str | None
) -> tuple[ActionRecord, OperationRecord, ToolSpec]:
    action = actions.load(connection, action_id)
    operation = operations.load(connection, action.operation_id) if action else None
    if action is None or operation is None or (tenant is not None and action.tenant != tenant):
        raise NotFound("UNKNOWN_ACTION", f"there is no action {action_id!r}")
    spec = app.registry.tool(action.tool)
    if spec is None:
        raise NotFound("UNKNOWN_TOOL", f"tool {action.tool!r} is not registered here; set TURNQUEUE_MODULES")
    return action, operation, spec


def _locked(
    app: App,
    action_id: str,
    actor: str,
    tenant: str | None,
    work: Callable[[engine.Unit, OperationRecord, ActionRecord, ToolSpec], None],
) -> ActionState:
    """Run `work` with operation and action locked; publish what became due. Returns the action's state afterwards."""

    def transaction(connection: Connection) -> tuple[ActionState, list[engine.Wake]]:
        with engine.Unit(connection, actor) as unit:
            known, _, spec = _known(app, connection, action_id, tenant)
            operation = operations.lock(connection, known.operation_id)
            work(unit, operation, actions.lock(connection, action_id), spec)
            return actions.lock(connection, action_id).state, unit.wakes

    state, wakes = app.database.transact(transaction)
    app.publish(wakes)
    return state
