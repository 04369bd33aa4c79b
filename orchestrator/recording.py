"""Write one turn's reply and everything that follows from it, in one transaction that holds the operation's lease."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from adapters.base import Reply, Usage
from executors import results
from executors.contract import redacted
from executors.registry import Registry, ToolSpec
from orchestrator import binding, engine, transcripts
from orchestrator.domain import action as action_machine
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain.action import FINAL, ActionState
from orchestrator.domain.model import CallState
from orchestrator.domain.operation import OperationState
from orchestrator.ids import new_id
from orchestrator.judge import (
    Act,
    Bench,
    Inquire,
    Judged,
    KnownAction,
    Read,
    Refuse,
    Repeat,
    coming_id,
    intent_sha256,
)
from policy import budgets
from policy.base import Ask
from store import actions, approvals, calls, operations, questions
from store.records import ActionRecord, OperationRecord

if TYPE_CHECKING:
    from orchestrator.turn import Asked, Loaded

# Rejections by validation: they used none of the call budget.
NOT_COUNTED = frozenset({"DUPLICATE_CALL_ID", "UNKNOWN_TOOL", "TOOL_NOT_OFFERED", "CALL_BUDGET", "TOOL_CALL_BUDGET"})


def other(unit: engine.Unit, loaded: "Loaded", held: OperationRecord, asked: "Asked", event: e.OperationEvent) -> None:
    """A reply without proposals: the text, refusal, cut or failure, and what the operation becomes."""
    reply = asked.reply
    insert_turn(unit, loaded, held, asked)
    changes: dict[str, Any] = _usage(loaded, held, asked)
    if reply.failure is not None:
        changes |= {"turn": held.turn - 1, "asks": held.asks + asked.tries}
    else:
        row = engine.item_row(held, held.next_seq, "reply", transcripts.reply_body(asked.adapter.api, reply))
        operations.insert_items(unit.connection, [row])
        changes |= {"next_seq": held.next_seq + 1, "asks": 0, "lost": 0, "last_response_id": reply.response_id}
    if not isinstance(event, e.TurnDeferred | e.Paused):
        changes["final_text"] = reply.refusal or _answer(loaded, reply.text)
    engine.apply(unit, held, event, **changes)


def _answer(loaded: "Loaded", text: str) -> str | None:
    """What the caller gets: by the output schema where it fits, else as it was written."""
    return (transcripts.fitted(loaded.profile.output_schema, text) or text) or None


def superseded(unit: engine.Unit, loaded: "Loaded", held: OperationRecord, asked: "Asked") -> None:
    """The caller corrected the request while the model was asked: the reply is kept and charged, nothing follows
    from it, and the model is asked again with the correction."""
    insert_turn(unit, loaded, held, asked)
    row = engine.item_row(
        held, held.next_seq, "superseded", transcripts.reply_body(asked.adapter.api, asked.reply)
    )  # fmt: skip
    operations.insert_items(unit.connection, [row])
    unit.audit(
        held.operation_id, "turn.superseded", turn=held.turn, response_id=asked.reply.response_id,
        request_sha256=asked.request_sha256, calls=len(asked.reply.calls),
    )  # fmt: skip
    changes = _usage(loaded, held, asked) | {"next_seq": held.next_seq + 1, "asks": 0, "lost": 0}
    engine.apply(unit, held, e.Superseded(), **changes)


def insert_turn(unit: engine.Unit, loaded: "Loaded", held: OperationRecord, asked: "Asked") -> None:
    reply, usage = asked.reply, asked.reply.usage
    operations.insert_turn(
        unit.connection,
        {
            "operation_id": held.operation_id,
            "turn": held.turn,
            "ask": held.asks + held.lost + asked.tries,
            "fence": held.fence,
            "api": asked.adapter.api,
            "model": reply.model or asked.request.model,
            "adapter_revision": asked.adapter.revision,
            "request_sha256": asked.request_sha256,
            "completion": reply.completion,
            "raw_reason": reply.raw_reason,
            "response_id": reply.response_id,
            "request_id": reply.request_id,
            "failure_code": reply.failure.code if reply.failure else None,
            "input_tokens": usage.input,
            "cached_tokens": usage.cached,
            "output_tokens": usage.output,
            "reasoning_tokens": usage.reasoning,
            "cost_usd": _cost(loaded, usage),
            "seconds": Decimal(str(round(asked.seconds, 6))),
        },
    )


def _cost(loaded: "Loaded", usage: Usage) -> Decimal | None:
    """None where the provider did not say what was used: unknown is not free."""
    if usage.input is None or usage.output is None:
        return None
    return budgets.cost(loaded.profile.prices, usage.input, usage.cached or 0, usage.output)


def _usage(loaded: "Loaded", held: OperationRecord, asked: "Asked") -> dict[str, Any]:
    """Budget counters. Where the provider does not say, a token is taken for four bytes, so that budgets still bite."""
    reply, usage = asked.reply, asked.reply.usage
    if reply.failure is not None:
        return {}
    spoken = len(reply.text) + sum(len(call.arguments_text) for call in reply.calls)
    read = usage.input if usage.input is not None else _shown(asked) // 4
    written = usage.output if usage.output is not None else spoken // 4
    cost = budgets.cost(loaded.profile.prices, read, usage.cached or 0, written)
    return {
        "input_tokens": held.input_tokens + read,
        "output_tokens": held.output_tokens + written,
        "cost_usd": held.cost_usd + cost,
    }


def _shown(asked: "Asked") -> int:
    return sum(len(str(item)) for item in asked.request.items)


# --- proposals -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rows:
    """Rows of one reply's calls, collected before they are inserted together."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)
    approvals: list[dict[str, Any]] = field(default_factory=list)
    questions: list[dict[str, Any]] = field(default_factory=list)
    audited: list[dict[str, Any]] = field(default_factory=list)
    wakes: list[engine.Wake] = field(default_factory=list)
    reads: int = 0
    waiting: int = 0
    held: int = 0


def proposals(
    unit: engine.Unit,
    loaded: "Loaded",
    held: OperationRecord,
    asked: "Asked",
    verdicts: Sequence[Judged],
    bench: Bench,
) -> None:
    """Reply, calls, actions, approvals, audit and the new state."""
    insert_turn(unit, loaded, held, asked)
    row = engine.item_row(held, held.next_seq, "reply", transcripts.reply_body(asked.adapter.api, asked.reply))
    operations.insert_items(unit.connection, [row])
    rows = _rows(loaded, held, asked, verdicts)
    actions.insert(unit.connection, rows.actions)
    approvals.insert(unit.connection, rows.approvals)
    calls.insert(unit.connection, rows.calls)
    questions.insert(unit.connection, rows.questions)
    unit.wakes.extend(rows.wakes)
    for question in rows.questions:
        unit.audit(held.operation_id, "question.asked", question["question_id"], call_key=question["call_key"])
    unit.audit(
        held.operation_id, "turn.proposed", turn=held.turn, response_id=asked.reply.response_id,
        request_sha256=asked.request_sha256, calls=rows.audited,
    )  # fmt: skip
    judging = replace(
        held,
        state=OperationState.VALIDATING,
        open_reads=rows.reads,
        held_reads=rows.held,
        open_inputs=len(rows.questions),
        open_calls=rows.reads + rows.waiting,
    )
    engine.progress(
        unit,
        judging,
        e.Judged,
        next_seq=held.next_seq + 1,
        asks=0,
        lost=0,
        last_response_id=asked.reply.response_id,
        calls_used=bench.calls_used,
        writes_used=bench.writes_used,
        **_usage(loaded, held, asked),
    )


def _audited(row: dict[str, Any], spec: ToolSpec | None, key: str | None) -> dict[str, Any]:
    """A proposal as the audit keeps it: digests instead of arguments, and whether anybody was contacted (no)."""
    kept = ("call_key", "call_id", "tool", "arguments_sha256", "action_id", "duplicate", "state", "code")
    return {name: row[name] for name in kept} | {
        "arguments": redacted(spec, row["arguments"]), "key": key, "binding_sha256": row["binding_sha256"],
        "contacted": False,
    }  # fmt: skip


def _rows(loaded: "Loaded", held: OperationRecord, asked: "Asked", verdicts: Sequence[Judged]) -> _Rows:
    rows = _Rows()
    known = {action.action_id: action for action in loaded.actions}
    keys: dict[str | None, str] = {action.action_id: action.idempotency_key for action in loaded.actions}
    coming: dict[str, dict[str, Any]] = {}
    for position, judged in enumerate(verdicts):
        row = _call_row(held, position, asked.reply, judged)
        match judged.verdict:
            case Refuse(code, message, _):
                row["state"] = CallState.REJECTED
                _result(row, results.error("rejected", code, message))
            case Read(spec, _):
                _read(rows, loaded, row, spec)
            case Inquire(spec, arguments):
                rows.questions.append(_question_row(loaded, held, row, arguments))
                row["state"] = CallState.WAITING
                rows.waiting += 1
            case Act(spec, _, _, _, _, _, ask):
                action = _action_row(held, position, judged, judged.verdict)
                coming[coming_id(position)] = action
                keys[action["action_id"]] = action["idempotency_key"]
                rows.actions.append(action)
                if ask is not None:
                    rows.approvals.append(approval_row(held, action, spec, ask))
                row |= {"action_id": action["action_id"], "state": CallState.WAITING}
                rows.waiting += 1
            case Repeat(_, _, action_id):
                if action_id in coming:
                    action_id = coming[action_id]["action_id"]
                _repeat(rows, row, action_id, known.get(action_id))
        key = keys.get(row["action_id"])
        _bind(loaded, held, asked, row, judged, key)
        rows.calls.append(row)
        rows.audited.append(_audited(row, _spec(judged), key))
    return rows


def _spec(judged: Judged) -> ToolSpec | None:
    return None if isinstance(judged.verdict, Refuse) else judged.verdict.spec


def _call_row(held: OperationRecord, position: int, reply: Reply, judged: Judged) -> dict[str, Any]:
    verdict = judged.verdict
    spec = _spec(judged)
    return {
        "call_key": new_id("call"),
        "operation_id": held.operation_id,
        "tenant": held.tenant,
        "turn": held.turn,
        "position": position,
        "revision": held.revision,
        "response_id": reply.response_id,
        "call_id": judged.call.call_id,
        "tool": judged.call.name,
        "tool_version": spec.version if spec else None,
        "effect": spec.effect if spec else None,
        "queue": spec.queue if spec else None,
        "limited": spec is not None and spec.concurrency is not None,
        "arguments": verdict.arguments,
        "arguments_sha256": judged.arguments_sha256,
        "action_id": None,
        "duplicate": False,
        "state": CallState.READY,
        "code": None,
        "wake_at": None,
        "observation": None,
        "is_error": False,
        "binding_sha256": None,
        "settled_at": None,
    }


def _read(rows: _Rows, loaded: "Loaded", row: dict[str, Any], spec: ToolSpec) -> None:
    rows.reads += 1
    if rows.reads - rows.held > loaded.profile.budgets.parallel:
        rows.held += 1
        return
    row["wake_at"] = loaded.operation.now
    rows.wakes.append(engine.Wake(spec.queue, row["call_key"], spec.name))


def _repeat(rows: _Rows, row: dict[str, Any], action_id: str, action: ActionRecord | None) -> None:
    """A suppressed duplicate: the stored outcome if there is one, else it waits for it."""
    row |= {"action_id": action_id, "duplicate": True, "state": CallState.WAITING}
    if action is None or action.state not in FINAL:
        rows.waiting += 1
        return
    row["state"] = engine.CALL_STATE[action.state]
    observation = results.Observation(action.observation or "", action.state is not ActionState.SUCCEEDED, action.code)
    _result(row, observation)


def _result(row: dict[str, Any], observation: results.Observation) -> None:
    row |= {"observation": observation.text, "is_error": observation.is_error, "code": observation.code}


def _bind(
    loaded: "Loaded", held: OperationRecord, asked: "Asked", row: dict[str, Any], judged: Judged, key: str | None
) -> None:
    version = judged.verdict.policy_version if isinstance(judged.verdict, Act) else loaded.profile.digest[:32]
    half = binding.request_half(held, asked, row | {"idempotency_key": key}, _spec(judged), version)
    row["binding"] = half
    if row["observation"] is not None:
        row["binding"], row["binding_sha256"] = digests.bind(
            binding.produced(half, None), observation=row["observation"], state=row["state"]
        )
        row["settled_at"] = loaded.operation.now


def _action_row(held: OperationRecord, position: int, judged: Judged, act: Act) -> dict[str, Any]:
    key = digests.idempotency_key(
        tenant=held.tenant,
        operation_id=held.operation_id,
        tool=act.spec.name,
        intent={name: act.arguments.get(name) for name in act.spec.intent_fields},
        generation=act.generation,
    )
    event: e.ActionEvent = e.Cleared() if act.ask is None else e.ApprovalRequired()
    return {
        "action_id": new_id("act"),
        "operation_id": held.operation_id,
        "tenant": held.tenant,
        "turn": held.turn,
        "position": position,
        "revision": held.revision,
        "tool": act.spec.name,
        "tool_version": act.spec.version,
        "effect": act.spec.effect,
        "queue": act.spec.queue,
        "limited": act.spec.concurrency is not None,
        "independent": act.spec.independent,
        "arguments": act.arguments,
        "arguments_sha256": judged.arguments_sha256,
        "idempotency_key": key,
        "digest": action_digest(held, act.spec, act.arguments, key, act.policy_version, act.resource_version),
        "policy_version": act.policy_version,
        "resource_version": act.resource_version,
        "needs_approval": act.ask is not None,
        "state": action_machine.decide(ActionState.PROPOSED, event, held.now).state,
    }


def action_digest(
    operation: OperationRecord,
    spec: ToolSpec,
    arguments: dict[str, Any],
    key: str,
    policy_version: str,
    resource_version: str | None,
) -> str:
    """The digest that an approval is bound to; recomputed from current facts just before the start."""
    return digests.action_digest(
        tenant=operation.tenant,
        subject=operation.subject,
        operation_id=operation.operation_id,
        revision=operation.revision,
        tool=spec.name,
        tool_version=spec.version,
        arguments=arguments,
        idempotency_key=key,
        policy_version=policy_version,
        resource_version=resource_version,
    )


def known_actions(registry: Registry, actions: Sequence[ActionRecord]) -> list[KnownAction]:
    """An action that a person edited stands for the one that took its place: who proposes it again gets its outcome."""
    instead = {action.replaces: action for action in actions if action.replaces is not None}
    known = []
    for action in actions:
        spec = registry.tool(action.tool)
        intent = intent_sha256(spec, action.arguments) if spec else ""
        now = action
        while now.action_id in instead:
            now = instead[now.action_id]
        known.append(KnownAction(now.action_id, action.tool, intent, action.arguments_sha256, now.state, now.code))
    return known


def approval_row(held: OperationRecord, action: dict[str, Any], spec: ToolSpec, ask: Ask) -> dict[str, Any]:
    """An approval of exactly this action, not to be mistaken for any other: it has a nonce of its own."""
    ttl = spec.approval_ttl.total_seconds()
    row = {
        "approval_id": new_id("apr"),
        "action_id": action["action_id"],
        "operation_id": held.operation_id,
        "tenant": held.tenant,
        "requester": held.subject,
        "action_digest": action["digest"],
        "tool_version": spec.version,
        "policy_version": action["policy_version"],
        "resource_version": action["resource_version"],
        "approvers": ask.approvers,
        "separate": ask.separate,
        "nonce": secrets.token_hex(16),
        "expires_at": held.now + timedelta(seconds=ttl if ask.ttl_seconds is None else min(ttl, ask.ttl_seconds)),
    }
    return row | {"bound_sha256": digests.approval_binding(**row), "reason": ask.reason}


def _question_row(
    loaded: "Loaded", held: OperationRecord, call: dict[str, Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "question_id": new_id("ask"),
        "operation_id": held.operation_id,
        "tenant": held.tenant,
        "call_key": call["call_key"],
        "text": arguments["question"],
        "choices": arguments["choices"],
        "answer_schema": arguments["answer_schema"],
        "expires_at": held.now + timedelta(seconds=loaded.profile.budgets.input_seconds),
    }
