"""What people and other services see of an operation: one typed view, the same for the CLI, JSON and tests.

Protected columns (bindings, request bodies) are not part of it.
"""

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection

from executors.redaction import HIDDEN, hidden, marked_fields, personal_values
from executors.registry import Registry
from store import actions, approvals, calls, operations, questions
from store.records import ActionRecord, CallRecord, OperationRecord


class TurnView(BaseModel):
    turn: int
    ask: int
    completion: str
    model: str
    raw_reason: str | None
    response_id: str | None
    failure_code: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    seconds: float
    replied_at: datetime


class CallView(BaseModel):
    call_id: str
    tool: str
    effect: str | None
    state: str
    code: str | None
    turn: int
    position: int
    attempts: int
    duplicate: bool
    action_id: str | None
    arguments: Any
    observation: Any
    is_error: bool
    created_at: datetime
    started_at: datetime | None
    settled_at: datetime | None


class ActionView(BaseModel):
    action_id: str
    tool: str
    effect: str
    state: str
    code: str | None
    turn: int
    idempotency_key: str
    attempts: int
    external_ref: str | None
    review: bool
    compensates: str | None  # the action that this one undoes
    arguments: Any


class DecisionView(BaseModel):
    """What one person said: APPROVE, DENY, or EDIT (approved with other arguments)."""

    by: str
    decision: str
    reason: str
    at: datetime


class ApprovalView(BaseModel):
    """`arguments` are complete and canonical: what is approved is what is shown.

    `approvers` different people must approve; with `separate` none of them may be the requester.
    """

    approval_id: str
    action_id: str
    tool: str
    arguments: Any
    action_digest: str
    state: str
    reason: str
    requester: str
    approvers: int
    separate: bool
    decisions: list[DecisionView]
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None


class QuestionView(BaseModel):
    """A question of the model to the caller. Without choices and schema the answer is text."""

    question_id: str
    text: str
    choices: list[str] | None
    answer_schema: Any
    state: str
    created_at: datetime
    expires_at: datetime
    answered_at: datetime | None
    answered_by: str | None
    answer: Any


class AttemptView(BaseModel):
    attempt_id: str
    action_id: str | None
    call_id: str | None
    tool: str
    number: int
    state: str
    code: str | None
    worker: str
    started_at: datetime
    ended_at: datetime | None


class UsageView(BaseModel):
    input_tokens: int
    output_tokens: int
    cost_usd: float
    calls: int
    writes: int
    result_bytes: int


class OperationView(BaseModel):
    operation_id: str
    tenant: str
    subject: str
    profile: str
    state: str
    reason: str | None
    parked: str | None  # what failed too often: nothing of it runs until it is released
    turns: int
    revision: int
    tainted: bool
    calls: list[CallView]
    actions: list[ActionView]
    approvals: list[ApprovalView]
    questions: list[QuestionView]
    attempts: list[AttemptView]
    requests: list[TurnView]
    usage: UsageView
    final_text: str | None
    pending: dict[str, Any] | None
    created_at: datetime
    ended_at: datetime | None
    wake_at: datetime | None
    deadline: datetime

    @property
    def open_approvals(self) -> list[ApprovalView]:
        return [approval for approval in self.approvals if approval.state == "PENDING"]

    @property
    def open_questions(self) -> list[QuestionView]:
        return [question for question in self.questions if question.state == "PENDING"]


def without_personal(whole: OperationView, registry: Registry) -> OperationView:
    """The view with personal values hidden, as the tools' models mark them; all values of a tool that is not here."""
    calls_shown = [
        each.model_copy(
            update={
                "arguments": _hidden(registry, each.tool, each.arguments),
                "observation": _hidden_observation(registry, each),
            }
        )
        for each in whole.calls
    ]
    changes: dict[str, Any] = {"calls": calls_shown}
    for name in ("actions", "approvals"):
        changes[name] = [
            each.model_copy(update={"arguments": _hidden(registry, each.tool, each.arguments)})
            for each in getattr(whole, name)
        ]
    return whole.model_copy(update=changes)


def _hidden(registry: Registry, tool: str, arguments: Any) -> Any:
    spec = registry.tool(tool)
    if arguments is None or spec is None:
        return arguments and dict.fromkeys(arguments, HIDDEN)
    return hidden(spec.arguments, arguments)


def _hidden_observation(registry: Registry, call: CallView) -> Any:
    """Also from a refusal's words, where they repeat the call's own personal arguments."""
    observation = call.observation
    spec = registry.tool(call.tool)
    if not isinstance(observation, dict):
        return observation
    if spec is None:
        return {name: HIDDEN if name in _WORDS else value for name, value in observation.items()}
    shown = dict(observation)
    if "data" in shown:
        shown["data"] = hidden(spec.result, shown["data"])
    if "data_head" in shown and marked_fields(spec.result)[0]:
        shown["data_head"] = HIDDEN
    if isinstance(shown.get("message"), str) and call.arguments:
        for value in filter(None, personal_values(spec.arguments, call.arguments)):
            shown["message"] = shown["message"].replace(value, HIDDEN)
    return shown


_WORDS = ("data", "data_head", "message")


def view(connection: Connection, operation: OperationRecord) -> OperationView:
    operation_id = operation.operation_id
    call_rows = calls.of_operation(connection, operation_id)
    action_rows = actions.of_operation(connection, operation_id)
    tools = {action.action_id: action for action in action_rows}
    times = {row["call_key"]: row for row in operations.call_times(connection, operation_id)}
    ending = operations.ending(connection, operation_id)
    return OperationView(
        operation_id=operation_id,
        tenant=operation.tenant,
        subject=operation.subject,
        profile=operation.profile,
        state=operation.state,
        reason=operation.reason,
        parked=operation.parked,
        turns=operation.turn,
        revision=operation.revision,
        tainted=operation.tainted,
        calls=[_call(call, times[call.call_key]) for call in call_rows],
        actions=[ActionView.model_validate(a, from_attributes=True) for a in action_rows],
        approvals=_approvals(connection, operation_id, tools),
        questions=[
            QuestionView.model_validate(q, from_attributes=True)
            for q in questions.of_operation(connection, operation_id)
        ],
        attempts=_attempts(connection, operation_id, call_rows, {k: a.tool for k, a in tools.items()}),
        requests=[TurnView.model_validate(row) for row in operations.turns_of(connection, operation_id)],
        usage=UsageView(
            input_tokens=operation.input_tokens,
            output_tokens=operation.output_tokens,
            cost_usd=float(operation.cost_usd),
            calls=operation.calls_used,
            writes=operation.writes_used,
            result_bytes=operation.result_bytes,
        ),
        created_at=operation.created_at,
        ended_at=operation.ended_at,
        deadline=operation.deadline,
        **ending,
    )


def _approvals(connection: Connection, operation_id: str, tools: dict[str, ActionRecord]) -> list[ApprovalView]:
    rows = approvals.of_operation(connection, operation_id)
    votes = approvals.votes_of_operation(connection, operation_id) if rows else []
    return [
        ApprovalView(
            **{name: getattr(a, name) for name in _APPROVAL},
            tool=tools[a.action_id].tool,
            arguments=tools[a.action_id].arguments,
            decisions=[
                DecisionView(by=v.by, decision=v.decision, reason=v.reason, at=v.at)
                for v in votes
                if v.approval_id == a.approval_id
            ],
        )
        for a in rows
    ]


_APPROVAL = (
    "approval_id", "action_id", "action_digest", "state", "reason", "requester", "approvers", "separate", "created_at",
    "expires_at", "decided_at", "decided_by", "decision_reason",
)  # fmt: skip


def _call(call: CallRecord, times: dict[str, Any]) -> CallView:
    return CallView(
        **{name: getattr(call, name) for name in _CALL},
        observation=_parsed(call.observation),
        created_at=times["created_at"],
        started_at=times["started_at"],
        settled_at=times["settled_at"],
    )


_CALL = (
    "call_id", "tool", "effect", "state", "code", "turn", "position", "attempts", "duplicate", "action_id",
    "arguments", "is_error",
)  # fmt: skip


def _parsed(observation: str | None) -> Any:
    return None if observation is None else json.loads(observation)


def _attempts(
    connection: Connection, operation_id: str, call_rows: list[CallRecord], tools: dict[str, str]
) -> list[AttemptView]:
    by_key = {call.call_key: call for call in call_rows}
    views = []
    for row in operations.attempts_of(connection, operation_id):
        call = by_key.get(row["call_key"])
        tool = call.tool if call else tools.get(row["action_id"], "")  # the row of a tampered call may be gone
        views.append(AttemptView(**row, call_id=call.call_id if call else None, tool=tool))
    return views
