"""What people say to an operation that goes on: approve, deny, answer, amend.

Each is one transaction. A refusal is an entry of the audit too, committed before it is raised: who tried what, and why
it did not count.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from executors import questions as asking
from executors import results
from orchestrator import editing, engine
from orchestrator.app import App
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain.errors import Conflict, NotFound, TurnqueueError, UserError
from orchestrator.domain.model import ApprovalState, CallState, DecisionKind, QuestionState
from orchestrator.domain.operation import CLAIMABLE, TERMINAL, OperationState
from orchestrator.failpoints import failpoint
from orchestrator.submission import Correction, Person
from policy.approvals import Vote, approving
from store import actions, approvals, operations, questions
from store.approvals import ApprovalRecord
from store.questions import QuestionRecord
from store.records import ActionRecord, OperationRecord

T = TypeVar("T")
_ACT = "only a PENDING one can be decided"


def _text(kind: Any, field: str, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UserError("BAD_FIELD", f"{field}: {error.errors(include_input=False)[0]['msg']}") from None


def _person(by: str, who: str) -> str:
    if not by.strip():
        raise UserError("BAD_FIELD", f"by: name the person who {who}")
    return str(_text(Person, "by", by.strip()))


def _commit(app: App, actor: str, work: Callable[[engine.Unit], T | TurnqueueError]) -> T:
    """One transaction. An error that `work` returns is raised after the commit; one that it raises rolls back."""

    def transaction(connection: Connection) -> tuple[T | TurnqueueError, list[engine.Wake]]:
        with engine.Unit(connection, actor) as unit:
            return work(unit), unit.wakes

    outcome, wakes = app.database.transact(transaction)
    failpoint("decision.committed")
    app.publish(wakes)
    if isinstance(outcome, TurnqueueError):
        raise outcome
    return outcome


# --- approvals -----------------------------------------------------------------------------------------------------


def approve(
    app: App,
    approval_id: str,
    *,
    by: str,
    reason: str = "",
    tenant: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """Approve exactly the action that the approval shows, or with `arguments` the same tool with other ones.

    Where several people must approve, this is one of them. Returns the id of the action, which is a new one after an
    edit. Raises NotFound UNKNOWN_APPROVAL; Conflict NOT_PENDING when it was decided, used or revoked, or has expired,
    SAME_PRINCIPAL where the requester may not, ALREADY_DECIDED by this person, APPROVAL_INVALID where the stored
    approval is not what was asked for; for an edit also UserError BAD_ARGUMENTS, Conflict FORBIDDEN or
    CONFLICTING_INTENT, and ConfigError TOOL_NOT_HERE.
    """
    by = _person(by, "decides")
    edit = None if arguments is None else editing.prepared(app, approval_id, arguments, tenant)

    def work(unit: engine.Unit, approval: ApprovalRecord, operation: OperationRecord, action: ActionRecord) -> Any:
        if isinstance(edit, TurnqueueError):
            return _refused(unit, approval, by, edit)
        if edit is not None:
            approval, action = editing.replaced(unit, operation, approval, action, edit, by=by, reason=reason)
        return _approved(unit, approval, operation, action, by, reason)

    return _decide(app, approval_id, DecisionKind.APPROVE, by, tenant, work)


def approvals_missing(app: App, action_id: str) -> int:
    """How many more people must approve the action; 0 when it waits for nobody."""
    with app.database.autocommit() as connection:
        asked = approvals.of_action(connection, action_id)
        if asked is None or asked.state is not ApprovalState.PENDING:
            return 0
        votes = approvals.votes(connection, asked.approval_id)
    return asked.approvers - len({vote.by for vote in votes})


def deny(app: App, approval_id: str, *, by: str, reason: str = "", tenant: str | None = None) -> str:
    """Refuse the action; one refusal is enough. The model is told and goes on. Same errors as `approve`."""
    by = _person(by, "decides")

    def work(unit: engine.Unit, approval: ApprovalRecord, operation: OperationRecord, action: ActionRecord) -> str:
        approvals.vote(unit.connection, approval, decision=DecisionKind.DENY, by=by, reason=reason)
        _closed(unit, approval, ApprovalState.DENIED, by, reason)
        settled = engine.save_action(unit, operation, action, e.Blocked("APPROVAL_DENIED"))
        engine.progress(unit, replace(operation, open_calls=operation.open_calls - settled))
        return action.action_id

    return _decide(app, approval_id, DecisionKind.DENY, by, tenant, work)


_Work = Callable[[engine.Unit, ApprovalRecord, OperationRecord, ActionRecord], Any]


def _decide(app: App, approval_id: str, kind: DecisionKind, by: str, tenant: str | None, work: _Work) -> str:
    def decide(unit: engine.Unit) -> str | TurnqueueError:
        known = approvals.load(unit.connection, approval_id)
        unknown = NotFound("UNKNOWN_APPROVAL", f"there is no approval {approval_id!r}")
        if known is None:
            raise unknown
        operation = operations.lock(unit.connection, known.operation_id)
        if tenant is not None and known.tenant != tenant:
            return _refused(unit, known, by, unknown, code="OTHER_TENANT")
        action = actions.lock(unit.connection, known.action_id)
        approval = approvals.load(unit.connection, approval_id) or known  # as it is under the lock
        problem = _objection(unit, approval, operation, action, kind, by)
        decided: str | TurnqueueError = problem or work(unit, approval, operation, action)
        return _refused(unit, approval, by, decided) if decided is problem and problem else decided

    return _commit(app, f"approver:{by}", decide)


def _objection(
    unit: engine.Unit,
    approval: ApprovalRecord,
    operation: OperationRecord,
    action: ActionRecord,
    kind: DecisionKind,
    by: str,
) -> Conflict | None:
    if approval.state is not ApprovalState.PENDING:
        decided = f" by {approval.decided_by}" if approval.decided_by else ""
        return Conflict("NOT_PENDING", f"the approval is {approval.state}{decided}; {_ACT}")
    if approval.expires_at <= operation.now:
        return Conflict("NOT_PENDING", f"the approval expired at {approval.expires_at:%Y-%m-%d %H:%M:%S %Z}")
    if approval.binding(action.digest) != approval.bound_sha256:
        return Conflict("APPROVAL_INVALID", "the stored approval is not the one that was asked for")
    if kind is DecisionKind.APPROVE and approval.separate and by == approval.requester:
        return Conflict("SAME_PRINCIPAL", f"{by} asked for it; somebody else must approve it")
    if any(vote.by == by for vote in approvals.votes(unit.connection, approval.approval_id)):
        return Conflict("ALREADY_DECIDED", f"{by} has approved it already; another person must")
    return None


def _refused(
    unit: engine.Unit, approval: ApprovalRecord, by: str, error: TurnqueueError, code: str | None = None
) -> TurnqueueError:
    unit.audit(
        approval.operation_id, "approval.refused", approval.approval_id, code=code or error.code, by=by,
        action_id=approval.action_id, state=approval.state,
    )  # fmt: skip
    return error


def _approved(
    unit: engine.Unit,
    approval: ApprovalRecord,
    operation: OperationRecord,
    action: ActionRecord,
    by: str,
    reason: str,
) -> str:
    """One more approval; with enough of them the action may start."""
    approvals.vote(unit.connection, approval, decision=DecisionKind.APPROVE, by=by, reason=reason)
    votes = [Vote(v.by, v.decision, v.bound_sha256) for v in approvals.votes(unit.connection, approval.approval_id)]
    have = approving(
        votes, bound_sha256=approval.bound_sha256, requester=approval.requester, separate=approval.separate
    )
    settled = 0
    if len(have) >= approval.approvers:
        _closed(unit, approval, ApprovalState.APPROVED, by, reason)
        settled = engine.save_action(unit, operation, action, e.Approved())
    else:
        unit.audit(
            approval.operation_id, "approval.counted", approval.approval_id, action_id=approval.action_id,
            digest=approval.action_digest, by=by, approved=len(have), needed=approval.approvers,
        )  # fmt: skip
    engine.progress(unit, replace(operation, open_calls=operation.open_calls - settled))
    return action.action_id


def _closed(unit: engine.Unit, approval: ApprovalRecord, state: ApprovalState, by: str, reason: str) -> None:
    if approvals.decide(unit.connection, approval.approval_id, state=state, by=by, reason=reason) is None:
        raise Conflict("NOT_PENDING", f"the approval has just expired; {_ACT}")
    unit.audit(
        approval.operation_id, f"approval.{state.lower()}", approval.approval_id, action_id=approval.action_id,
        digest=approval.action_digest, bound_sha256=approval.bound_sha256, by=by,
    )  # fmt: skip


# --- questions -----------------------------------------------------------------------------------------------------


def answer(app: App, asked_id: str, given: Any, *, by: str, tenant: str | None = None) -> str:
    """Answer a question of the model; `asked_id` is the question, or an operation with one that is open.

    `given` is text, one of the question's choices, or JSON that fits its schema. Returns the question's id. Raises
    NotFound UNKNOWN_QUESTION or UNKNOWN_OPERATION, Conflict NOT_PENDING or AMBIGUOUS, UserError BAD_ANSWER.
    """
    by = _person(by, "answers")

    def work(unit: engine.Unit) -> str | TurnqueueError:
        named = _question(unit, asked_id, tenant)
        operation = operations.lock(unit.connection, named.operation_id)
        question = questions.load(unit.connection, named.question_id) or named  # as it is under the lock
        problem = _no_answer(question, operation, given, tenant)
        if problem is not None:
            code = "OTHER_TENANT" if isinstance(problem, NotFound) else problem.code
            unit.audit(question.operation_id, "question.refused", question.question_id, code=code, by=by)
            return problem
        _answered(unit, operation, question, given, by)
        return question.question_id

    return _commit(app, f"caller:{by}", work)


def _question(unit: engine.Unit, asked_id: str, tenant: str | None) -> QuestionRecord:
    if not asked_id.startswith("op_"):
        found = questions.load(unit.connection, asked_id)
        if found is None:
            raise NotFound("UNKNOWN_QUESTION", f"there is no question {asked_id!r}")
        return found
    operation = operations.load(unit.connection, asked_id)
    if operation is None or (tenant is not None and operation.tenant != tenant):
        raise NotFound("UNKNOWN_OPERATION", f"there is no operation {asked_id!r}")
    asked = questions.of_operation(unit.connection, asked_id)
    pending = [question for question in asked if question.state is QuestionState.PENDING]
    if not pending:
        raise Conflict("NOT_PENDING", f"{asked_id} waits for no answer")
    if len(pending) > 1:
        named = ", ".join(question.question_id for question in pending)
        raise Conflict("AMBIGUOUS", f"{asked_id} has {len(pending)} open questions; name one of {named}")
    return pending[0]


def _no_answer(
    question: QuestionRecord, operation: OperationRecord, given: Any, tenant: str | None
) -> UserError | None:
    if tenant is not None and question.tenant != tenant:
        return NotFound("UNKNOWN_QUESTION", f"there is no question {question.question_id!r}")
    if question.state is not QuestionState.PENDING:
        said = f" by {question.answered_by}" if question.answered_by else ""
        return Conflict("NOT_PENDING", f"the question is {question.state}{said}")
    if question.expires_at <= operation.now:
        return Conflict("NOT_PENDING", f"the question expired at {question.expires_at:%Y-%m-%d %H:%M:%S %Z}")
    wrong = asking.problem(given, choices=question.choices, answer_schema=question.answer_schema)
    return None if wrong is None else UserError("BAD_ANSWER", f"answer: {wrong}")


def _answered(unit: engine.Unit, operation: OperationRecord, question: QuestionRecord, given: Any, by: str) -> None:
    if not questions.answer(unit.connection, question.question_id, answer=given, by=by):
        raise Conflict("NOT_PENDING", "the question has just expired")
    unit.audit(
        question.operation_id, "question.answered", question.question_id, call_key=question.call_key, by=by,
        answer_sha256=digests.sha256("answer-v1", given),
    )  # fmt: skip
    observation = results.answered(given)
    engine.settle_call(unit, questions.call_of(unit.connection, question), CallState.SUCCEEDED, observation)
    left = replace(
        operation,
        open_calls=operation.open_calls - 1,
        open_inputs=operation.open_inputs - 1,
        result_bytes=operation.result_bytes + observation.size,
    )
    engine.progress(unit, left)


# --- corrections ---------------------------------------------------------------------------------------------------


def amend(app: App, operation_id: str, text: str, *, by: str = "caller", tenant: str | None = None) -> int:
    """Correct the request while it is worked on. Returns the operation's new revision.

    What has not started is not started any more, and what comes late is not shown; a write that has started keeps its
    true outcome. Then the model is asked again, with the correction last. Raises UserError BAD_FIELD, NotFound
    UNKNOWN_OPERATION, Conflict ALREADY_ENDED.
    """
    by = _person(by, "corrects")
    text = str(_text(Correction, "text", text))

    def work(unit: engine.Unit) -> int:
        found = operations.load(unit.connection, operation_id)
        if found is None or (tenant is not None and found.tenant != tenant):
            raise NotFound("UNKNOWN_OPERATION", f"there is no operation {operation_id!r}")
        operation = operations.lock(unit.connection, operation_id)
        if operation.state in TERMINAL:
            raise Conflict("ALREADY_ENDED", f"{operation_id} is {operation.state} already")
        return _amended(unit, operation, text, by)

    return _commit(app, f"caller:{by}", work)


def _amended(unit: engine.Unit, operation: OperationRecord, text: str, by: str) -> int:
    amended = replace(operation, revision=operation.revision + 1, next_seq=operation.next_seq + 1, told=False)
    body = {"text": text, "revision": amended.revision}
    operations.insert_items(unit.connection, [engine.item_row(operation, operation.next_seq, "user", body)])
    operations.save(
        unit.connection, operation.operation_id, revision=amended.revision, next_seq=amended.next_seq, told=False
    )
    unit.audit(
        operation.operation_id, "operation.amended", by=by, revision=amended.revision, state=operation.state,
        text_sha256=digests.sha256("correction-v1", text),
    )  # fmt: skip
    if operation.state not in CLAIMABLE | {OperationState.MODEL_REQUESTED}:
        left = engine.stop_unstarted(unit, amended, "SUPERSEDED", results.SUPERSEDED)
        engine.progress(unit, left)
    return amended.revision
