"""Approve with an edit: another action, with a digest and a key of its own, takes the place of the one asked for."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from executors.outcomes import SURPRISE
from executors.registry import ToolSpec
from orchestrator import engine, recording
from orchestrator.app import App
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain.action import ActionState
from orchestrator.domain.errors import ConfigError, Conflict, TurnqueueError, UserError
from orchestrator.domain.model import ApprovalState, DecisionKind
from orchestrator.ids import new_id
from orchestrator.judge import Refuse, approval_decision, check_arguments, intent_sha256, policy_version
from policy.base import Ask, Deny, Principal
from store import actions, approvals, calls, operations, versions
from store.approvals import ApprovalRecord
from store.records import ActionRecord, OperationRecord


@dataclass(frozen=True, slots=True)
class Edit:
    """New arguments, checked as a model's are. `revision` and `digest` are those of what they replace."""

    spec: ToolSpec
    arguments: dict[str, Any]
    ask: Ask | None
    generation: int
    policy_version: str
    resource_version: str | None
    revision: int
    digest: str


def prepared(
    app: App, approval_id: str, arguments: Mapping[str, Any], tenant: str | None
) -> Edit | TurnqueueError | None:
    """Check new arguments: schema, authorization, approval rules, intent. Hooks may do I/O: no transaction is open.

    None where there is nothing to edit: no such approval, or the arguments are the ones asked for. Raises ConfigError
    TOOL_NOT_HERE; what is wrong with the edit itself is returned, to be audited.
    """
    with app.database.autocommit() as connection:
        approval = approvals.load(connection, approval_id)
        if approval is None or (tenant is not None and approval.tenant != tenant):
            return None
        operation = operations.load(connection, approval.operation_id)
        all_actions = actions.of_operation(connection, approval.operation_id)
    if operation is not None:
        versions.check(operation.operation_id, operation.schema_version)
    [action] = [action for action in all_actions if action.action_id == approval.action_id]
    spec = app.registry.tool(action.tool)
    if spec is None or operation is None:
        raise ConfigError("TOOL_NOT_HERE", f"tool {action.tool!r} is not registered here; set TURNQUEUE_MODULES")
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    checked = check_arguments(spec, json.dumps(dict(arguments)), principal)
    if isinstance(checked, Refuse):
        return _refusal(checked)
    model, normal = checked
    if digests.sha256("arguments-v1", normal) == action.arguments_sha256:
        return None
    profile = app.profile(operation.profile_digest)
    decision = approval_decision(spec, profile, principal, model, normal, operation.tainted)
    if isinstance(decision, Deny):
        return Conflict(decision.code, f"{spec.name} is not allowed with these arguments")
    intent = intent_sha256(spec, normal)
    same = [known for known in recording.known_actions(app.registry, all_actions) if known.intent_sha256 == intent]
    if any(not known.gives_way and known.action_id != action.action_id for known in same):
        return Conflict("CONFLICTING_INTENT", "another action of this operation does that already")
    try:
        version = spec.resource_version(model, principal) if spec.resource_version else None
    except SURPRISE:  # a hook that crashes has not allowed it
        return Conflict("POLICY_UNAVAILABLE", "the resource's version cannot be read now")
    return Edit(
        spec=spec,
        arguments=normal,
        ask=decision if isinstance(decision, Ask) else None,
        generation=len(same),
        policy_version=policy_version(spec, profile),
        resource_version=version,
        revision=operation.revision,
        digest=action.digest,
    )


def _refusal(refused: Refuse) -> UserError:
    if refused.arguments is None:
        return UserError("BAD_ARGUMENTS", f"arguments: {refused.message or refused.code}")
    return Conflict("FORBIDDEN", f"not allowed with these arguments: {refused.code}")


def replaced(
    unit: engine.Unit,
    operation: OperationRecord,
    approval: ApprovalRecord,
    action: ActionRecord,
    edit: Edit,
    *,
    by: str,
    reason: str,
) -> tuple[ApprovalRecord, ActionRecord]:
    """The new action in the old one's place, and its approval, PENDING until the editor's own vote is counted.

    All rows are locked. The old action is REJECTED (EDITED), its approval REVOKED.
    """
    if operation.revision != edit.revision or action.digest != edit.digest:
        raise Conflict("NOT_PENDING", "the request changed meanwhile; look again")
    row = _action_row(operation, action, edit)
    actions.insert(unit.connection, [row])
    asked = _approval_row(operation, approval, row, edit)
    approvals.insert(unit.connection, [asked])
    approvals.vote(unit.connection, approval, decision=DecisionKind.EDIT, by=by, reason=reason)
    approvals.decide(unit.connection, approval.approval_id, state=ApprovalState.REVOKED, by=by, reason=reason)
    unit.audit(
        operation.operation_id, "approval.edited", approval.approval_id, by=by, action_id=action.action_id,
        digest=action.digest, new_approval_id=asked["approval_id"], new_action_id=row["action_id"],
        new_digest=row["digest"], new_arguments_sha256=row["arguments_sha256"], key=row["idempotency_key"],
    )  # fmt: skip
    for call in actions.redirect(unit.connection, action.action_id, row["action_id"]):
        half = call["binding"] | {"action_id": row["action_id"], "idempotency_key": row["idempotency_key"]}
        calls.rebind(unit.connection, call["call_key"], engine.dump(half))
        unit.audit(
            operation.operation_id, "call.redirected", call["call_key"], action_id=row["action_id"],
            replaces=action.action_id,
        )  # fmt: skip
    engine.save_action(unit, operation, action, e.Blocked("EDITED"))
    made = approvals.load(unit.connection, asked["approval_id"])
    if made is None:
        raise AssertionError("it has just been inserted")
    return made, actions.lock(unit.connection, row["action_id"])


_KEPT = ("operation_id", "tenant", "turn", "position", "revision", "tool", "independent")


def _action_row(operation: OperationRecord, action: ActionRecord, edit: Edit) -> dict[str, Any]:
    spec = edit.spec
    key = digests.idempotency_key(
        tenant=operation.tenant,
        operation_id=operation.operation_id,
        tool=spec.name,
        intent={name: edit.arguments.get(name) for name in spec.intent_fields},
        generation=edit.generation,
    )
    return {name: getattr(action, name) for name in _KEPT} | {
        "action_id": new_id("act"),
        "tool_version": spec.version,
        "effect": spec.effect,
        "queue": spec.queue,
        "limited": spec.concurrency is not None,
        "arguments": edit.arguments,
        "arguments_sha256": digests.sha256("arguments-v1", edit.arguments),
        "idempotency_key": key,
        "digest": recording.action_digest(
            operation, spec, edit.arguments, key, edit.policy_version, edit.resource_version
        ),
        "policy_version": edit.policy_version,
        "resource_version": edit.resource_version,
        "needs_approval": True,
        "replaces": action.action_id,
        "state": ActionState.WAITING_APPROVAL,
    }


def _approval_row(
    operation: OperationRecord, approval: ApprovalRecord, action: dict[str, Any], edit: Edit
) -> dict[str, Any]:
    """Never less than what the first approval or the rules for the new arguments want, and no longer."""
    ask = edit.ask or Ask(approval.reason)
    expires_at = approval.expires_at
    if ask.ttl_seconds is not None:
        expires_at = min(expires_at, operation.now + timedelta(seconds=ask.ttl_seconds))
    row = {
        "approval_id": new_id("apr"),
        "action_id": action["action_id"],
        "operation_id": operation.operation_id,
        "tenant": operation.tenant,
        "requester": approval.requester,
        "action_digest": action["digest"],
        "tool_version": action["tool_version"],
        "policy_version": action["policy_version"],
        "resource_version": action["resource_version"],
        "approvers": max(approval.approvers, ask.approvers),
        "separate": approval.separate or ask.separate,
        "nonce": secrets.token_hex(16),
        "expires_at": expires_at,
    }
    return row | {"bound_sha256": digests.approval_binding(**row), "reason": ask.reason}
