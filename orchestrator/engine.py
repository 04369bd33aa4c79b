"""The shell around the two machines: decide, save, record, in the caller's transaction; wake-ups go out after commit.

Everything here runs with the operation's row locked. Lock order everywhere: operation, action, slot, call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, func

from executors import results
from orchestrator import binding, fanout
from orchestrator.domain import action as action_machine
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain import operation as operation_machine
from orchestrator.domain.action import ActionState
from orchestrator.domain.effects import AskOperator, Park, Settle, StopWork, Tell, WakeAt
from orchestrator.domain.model import ApprovalState, CallState, Parked, QuestionState
from orchestrator.domain.operation import TERMINAL, OperationState
from store import actions, approvals, audit, calls, operations, questions
from store.records import ActionRecord, CallRecord, OperationRecord

ORCHESTRATOR_QUEUE = "orchestrator"


@dataclass(frozen=True, slots=True)
class Wake:
    """A hint to be published after the commit: this row of this queue is due. `tool` is None for a model turn."""

    queue: str
    row_id: str
    tool: str | None = None


@dataclass(slots=True)
class Unit:
    """One transaction's work in progress. `actor` goes into the audit.

    In a `with` block, which should be the transaction's last, entries of the audit are written together at its end,
    with one statement. The row of each audited operation must be locked by then.
    """

    connection: Connection
    actor: str
    wakes: list[Wake] = field(default_factory=list)
    _entries: list[audit.Entry] | None = None  # None outside of a block: each entry is written at once

    def __enter__(self) -> Self:
        self._entries = []
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        entries, self._entries = self._entries, None
        if kind is None and entries:
            audit.append(self.connection, entries)

    def audit(self, operation_id: str, kind: str, subject_id: str | None = None, **body: Any) -> None:
        """Record a fact; `body` holds text, integers, booleans, nulls, lists and objects, redacted."""
        entry = audit.Entry(operation_id, kind, self.actor, subject_id, body)
        if self._entries is None:
            audit.append(self.connection, [entry])
        else:
            self._entries.append(entry)

    def wake_rows(self, rows: Sequence[tuple[str, str, str]]) -> None:
        self.wakes.extend(Wake(queue, row_id, tool) for row_id, tool, queue in rows)


# --- operation -----------------------------------------------------------------------------------------------------


def apply(unit: Unit, operation: OperationRecord, event: e.OperationEvent, **changes: Any) -> OperationRecord:
    """Put the event to the operation machine and save what it decides, with `changes` to other columns.

    An event out of place changes nothing, `changes` included. Returns the operation as it is now.
    """
    if (operation.state, type(event)) not in operation_machine.MOVES:
        return operation
    decision = operation_machine.decide(operation.state, event, operation.now)
    changes |= {"state": decision.state, "reason": decision.reason, "wake_at": None, "parked": None}
    operation = replace(operation, state=decision.state, reason=decision.reason)
    for effect in decision.effects:
        match effect:
            case WakeAt(at):
                changes["wake_at"] = at
                if at <= operation.now:
                    unit.wakes.append(Wake(ORCHESTRATOR_QUEUE, operation.operation_id))
            case Tell(text):
                row = item_row(operation, changes.get("next_seq", operation.next_seq), "notice", {"text": text})
                operations.insert_items(unit.connection, [row])
                changes |= {"next_seq": row["seq"] + 1, "told": True}
            case Park():
                changes["parked"] = Parked.TURN
                unit.audit(operation.operation_id, "operation.parked", code=Parked.TURN)
            case StopWork():
                changes |= _end(unit, operation, changes)
    operations.save(unit.connection, operation.operation_id, **changes)
    if decision.state in TERMINAL:
        unit.audit(operation.operation_id, "operation.ended", state=decision.state, reason=decision.reason)
    return operation


def item_row(operation: OperationRecord, seq: int, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"operation_id": operation.operation_id, "seq": seq, "turn": operation.turn, "kind": kind, "body": body}


def _end(unit: Unit, operation: OperationRecord, changes: dict[str, Any]) -> dict[str, Any]:
    """Stop what has not started and write the terminal record: what happened, what is open, what never began."""
    code = "CANCELLED" if operation.state is OperationState.CANCELLED else "OPERATION_ENDED"
    held = replace(operation, **{name: changes[name] for name in _counts(operation) if name in changes})
    held = stop_unstarted(unit, held, code, results.error("rejected", code))
    return _counts(held) | {
        "pending": _terminal_record(unit, operation.operation_id),
        "ended_at": func.clock_timestamp(),
    }


def stop_unstarted(
    unit: Unit, operation: OperationRecord, code: str, observation: results.Observation
) -> OperationRecord:
    """Nothing of the turn may be dispatched any more: writes that wait, reads not yet taken, questions without answer.

    What was dispatched goes on. Returns the operation with the counts of what is left open; the caller saves them.
    """
    if operation.open_calls == 0:  # the usual end: an answer, with nothing left to stop
        return operation
    settled = 0
    for action in actions.unstarted(unit.connection, operation.operation_id):
        if action.compensates is None:  # an operator's, not the model's
            settled += withdraw(unit, operation, action, code, observation, check=True)
    reads = calls.unstarted(unit.connection, operation.operation_id)
    asked = (
        questions.close(unit.connection, operation.operation_id, QuestionState.REVOKED) if operation.open_inputs else []
    )
    for call in (*reads, *asked):
        settle_call(unit, call, CallState.REJECTED, observation)
    # Rows that were tampered with may not fit the counts; the operation must go on all the same.
    open_reads = max(0, operation.open_reads - len(reads))
    open_calls = operation.open_calls - settled - len(reads) - len(asked)
    open_calls = max(open_reads, open_calls)
    return replace(operation, open_calls=open_calls, open_reads=open_reads, open_inputs=0, held_reads=0)


def withdraw(
    unit: Unit,
    operation: OperationRecord,
    action: ActionRecord,
    code: str,
    observation: results.Observation | None = None,
    *,
    check: bool = False,
) -> int:
    """It must not start (again); its approval goes with it. Returns how many calls were settled.

    An action of which an earlier attempt may have arrived is not called rejected: it is unknown, and looked into by
    its handler (`check`) or by an operator.
    """
    approvals.close(unit.connection, action.action_id, ApprovalState.REVOKED)
    if action.attempts and actions.may_have_arrived(unit.connection, action.action_id):
        lost = e.OutcomeLost(operation.now if check else None)
        return save_action(unit, operation, action, lost, contacted=None, evidence=code)
    return save_action(unit, operation, action, e.Blocked(code), observation=observation)


def _terminal_record(unit: Unit, operation_id: str) -> dict[str, list[dict[str, Any]]]:
    record: dict[str, list[dict[str, Any]]] = {"happened": [], "unresolved": [], "not_started": [], "failed": []}
    for action_id, tool, state, reference in actions.states(unit.connection, operation_id):
        record[_RECORD[state]].append({"action_id": action_id, "tool": tool, "state": state, "external_ref": reference})
    return record


_RECORD = {
    ActionState.SUCCEEDED: "happened",
    ActionState.STARTED: "unresolved",
    ActionState.UNKNOWN: "unresolved",
    ActionState.PENDING: "unresolved",
    ActionState.FAILED: "failed",
    ActionState.PROPOSED: "not_started",
    ActionState.WAITING_APPROVAL: "not_started",
    ActionState.READY: "not_started",
    ActionState.REJECTED: "not_started",
}


def progress(
    unit: Unit, operation: OperationRecord, event: type[e.Judged] | type[e.Progressed] = e.Progressed, **changes: Any
) -> OperationRecord:
    """After anything of the turn changed: release and block writes, then let the operation rest where it belongs.

    `operation` carries the open counts as they are now; they are saved here.
    """
    if operation.state in TERMINAL:
        # A late outcome is evidence: the terminal record says so, the state stays.
        late = _terminal_record(unit, operation.operation_id)
        operations.save(unit.connection, operation.operation_id, pending=late, **_counts(operation))
        return operation
    turn_actions = (
        actions.of_turn(unit.connection, operation.operation_id, operation.turn)
        if operation.open_calls > operation.open_reads + operation.open_inputs
        else []
    )
    planned = fanout.plan(
        [fanout.PlannedWrite(a.action_id, a.state, a.wake_at is not None, a.independent) for a in turn_actions],
        operation.open_reads,
    )
    settled = 0
    for action in turn_actions:
        if action.action_id in planned.block:
            settled += withdraw(unit, operation, action, "EARLIER_WRITE_NOT_DONE")
    operation = replace(operation, open_calls=operation.open_calls - settled)
    if planned.release:
        unit.wake_rows(actions.release(unit.connection, planned.release))
    outstanding = replace(planned.outstanding, inputs=operation.open_inputs)
    return apply(unit, operation, event(outstanding), **changes, **_counts(operation))


def _counts(operation: OperationRecord) -> dict[str, int]:
    return {
        "open_calls": operation.open_calls,
        "open_reads": operation.open_reads,
        "held_reads": operation.held_reads,
        "open_inputs": operation.open_inputs,
        "result_bytes": operation.result_bytes,
    }


# --- actions and calls ---------------------------------------------------------------------------------------------


def save_action(
    unit: Unit,
    operation: OperationRecord,
    action: ActionRecord,
    event: e.ActionEvent,
    *,
    observation: results.Observation | None = None,
    contacted: bool | None = False,
    **changes: Any,
) -> int:
    """Put the event to the action machine, save, and give its waiting calls their result once it is final.

    `contacted`: whether the external system was, for what this event tells; None where that is not known.
    Returns how many calls were settled; 0 also when the event was out of place or another worker was first. The
    caller then calls `progress` with the operation's open count lowered by that number.
    """
    if (action.state, type(event)) not in action_machine.MOVES:
        return 0
    decision = action_machine.decide(action.state, event, operation.now)
    changes |= {"state": decision.state, "wake_at": None}
    final = False
    for effect in decision.effects:
        match effect:
            case WakeAt(at):
                changes |= {"wake_at": at, "review": False}
                if at <= operation.now:
                    unit.wakes.append(Wake(action.queue, action.action_id, action.tool))
            case AskOperator():
                changes["review"] = True
            case Settle():
                final = True
    if final:
        observation = observation or _observation(decision.state, decision.code or "NOT_DONE")
        if observation.untrusted and not operation.tainted:
            operations.save(unit.connection, operation.operation_id, tainted=True)
        observation = results.marked(observation, _marks(operation, action, decision.state))
        changes |= {
            "code": observation.code, "observation": observation.text, "review": False,
            "settled_at": func.clock_timestamp(),
        }  # fmt: skip
    if not actions.save(unit.connection, action, **changes):
        return 0
    unit.audit(
        action.operation_id, f"action.{decision.state.lower()}", action.action_id, tool=action.tool,
        key=action.idempotency_key, arguments_sha256=action.arguments_sha256, code=changes.get("code"),
        evidence=_words(changes.get("evidence")), contacted=contacted, external_ref=changes.get("external_ref"),
    )  # fmt: skip
    if observation is None or not final:
        return 0
    return settle_waiting(unit, replace(action, state=decision.state), observation)


def _marks(operation: OperationRecord, action: ActionRecord, state: ActionState) -> dict[str, Any]:
    """What the model must know besides the outcome: a person changed the arguments, or the caller the request."""
    marks: dict[str, Any] = {}
    if action.replaces is not None:
        marks |= {"edited_by_person": True, "arguments_used": action.arguments}
    if action.revision != operation.revision and state is not ActionState.REJECTED:
        marks["of_earlier_request"] = True
    return marks


def _words(evidence: str | None) -> str | None:
    return None if evidence is None else results.clean(evidence)


def _observation(state: ActionState, code: str) -> results.Observation:
    return results.error("rejected" if state is ActionState.REJECTED else "failed", code)


CALL_STATE = {
    ActionState.SUCCEEDED: CallState.SUCCEEDED,
    ActionState.FAILED: CallState.FAILED,
    ActionState.REJECTED: CallState.REJECTED,
}


def settle_waiting(unit: Unit, action: ActionRecord, observation: results.Observation) -> int:
    """The action is final: every call that refers to it gets the same outcome."""
    settled = 0
    for call in calls.waiting_on(unit.connection, action.action_id):
        settled += settle_call(unit, call, CALL_STATE[action.state], observation)
    return settled


def settle_call(unit: Unit, call: CallRecord, state: CallState, observation: results.Observation) -> bool:
    """Give a call that no worker is running its one result, bound to its request."""
    half = binding.produced(call.binding or {}, None)
    whole, binding_sha256 = digests.bind(half, observation=observation.text, state=state)
    settled = calls.settle_waiting(
        unit.connection,
        call_key=call.call_key,
        state=state,
        code=observation.code,
        observation=observation.text,
        is_error=observation.is_error,
        binding=dump(whole),
        binding_sha256=binding_sha256,
    )
    if settled:
        unit.audit(
            call.operation_id, "call.settled", call.call_key, tool=call.tool, state=state, code=observation.code,
            action_id=call.action_id, duplicate=call.duplicate, result_sha256=whole["result_sha256"],
            binding_sha256=binding_sha256,
        )  # fmt: skip
    return settled


def dump(value: Any) -> str:
    return digests.canonical(value).decode()
