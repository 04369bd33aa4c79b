"""A model of the shell around the pure core, transaction by transaction: engine, turn, dispatch, commands, sweeper.

Only the shell is modelled. The two machines, the fan-out plan and the retry rules are the production code. Every method
that changes rows is one transaction: it runs at one instant of the virtual clock, whole or not at all. `bug` plants one
wrong rule.
"""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

from orchestrator import fanout
from orchestrator.domain import action as action_machine
from orchestrator.domain import events as e
from orchestrator.domain import operation as operation_machine
from orchestrator.domain.action import UNRESOLVED, UNSTARTED, ActionState
from orchestrator.domain.effects import AskOperator, Park, Settle, StopWork, Tell, WakeAt
from orchestrator.domain.model import SETTLED_CALLS, ApprovalState, AttemptState, CallState
from orchestrator.domain.operation import TERMINAL
from policy.retry import backoff, may_send_again
from tests.simulator.world import (
    APPROVAL_TTL,
    CHECK_LIMIT,
    EPOCH,
    MAX_ATTEMPTS,
    RETENTION,
    Action,
    Approval,
    Call,
    Clock,
    Downstream,
    Operation,
    Tool,
)

CALL_STATE = {
    ActionState.SUCCEEDED: CallState.SUCCEEDED,
    ActionState.FAILED: CallState.FAILED,
    ActionState.REJECTED: CallState.REJECTED,
}


class Broken(AssertionError):
    """An invariant does not hold; the message begins with its name."""


class Shell:
    """The rows of one history and the transactions on them."""

    def __init__(self, rng: random.Random, clock: Clock, bug: str | None = None, trace: bool = False) -> None:
        self.rng = rng
        self.clock = clock
        self.bug = bug
        self.trace: list[str] | None = [] if trace else None
        self.downstream = Downstream(rng)
        self.operations: list[Operation] = []
        self.calls: list[Call] = []
        self.actions: list[Action] = []
        self.outbox: list[
            str
        ] = []  # wake-ups of the transaction that runs; published after it, or lost with its process

    @property
    def now(self) -> datetime:
        return self.clock.now

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{(self.now - EPOCH).total_seconds():9.3f}  {what}")

    # --- engine -----------------------------------------------------------------------------------------------------

    def apply(self, operation: Operation, event: e.OperationEvent) -> None:
        if (operation.state, type(event)) not in operation_machine.MOVES:
            return
        decision = operation_machine.decide(operation.state, event, self.now)
        if operation.state in TERMINAL or decision.state not in operation_machine.MOVES[operation.state, type(event)]:
            raise Broken(f"I10 {operation.state} -> {decision.state} by {type(event).__name__}")
        self.note(f"{operation.operation_id} {operation.state} -> {decision.state} by {type(event).__name__}")
        operation.state, operation.reason, operation.wake_at = decision.state, decision.reason, None
        operation.lease_until = None
        for effect in decision.effects:
            match effect:
                case WakeAt(at):
                    operation.wake_at = at
                    if at <= self.now:
                        self.outbox.append(operation.operation_id)
                case Tell():
                    operation.told = True
                case Park():
                    pass  # nobody releases it here: its deadline ends it
                case StopWork():
                    self._end(operation)

    def _end(self, operation: Operation) -> None:
        operation.ended_at = self.now
        mine = [action for action in self.actions if action.operation is operation]
        operation.unresolved_at_end = any(action.state in UNRESOLVED for action in mine)
        if self.bug == "cancel_leaves_work":
            return
        for action in mine:
            if action.state in UNSTARTED:
                self.withdraw(action, check=True)
        for call in self.calls:
            if call.operation is operation and call.action is None and call.state is CallState.READY:
                self.settle_call(call, CallState.REJECTED)

    def withdraw(self, action: Action, *, check: bool = False) -> None:
        """It must not start (again): rejected, unless an earlier attempt may have arrived."""
        self.close(action, ApprovalState.REVOKED)
        if action.attempts and action.may_have_arrived() and self.bug != "withdraw_forgets":
            self.save(action, e.OutcomeLost(self.now if check else None))
        else:
            self.save(action, e.Blocked("WITHDRAWN"))

    def close(self, action: Action, state: ApprovalState) -> bool:
        approval = action.approval
        if approval is None or approval.state not in (ApprovalState.PENDING, ApprovalState.APPROVED):
            return False
        approval.state = state
        return True

    def progress(self, operation: Operation, event: type[e.Judged] | type[e.Progressed] = e.Progressed) -> None:
        if operation.state in TERMINAL:
            return
        turn = [call for call in self.calls if call.operation is operation and call.turn == operation.turn]
        open_reads = sum(call.action is None and call.state not in SETTLED_CALLS for call in turn)
        actions = list(dict.fromkeys(call.action.action_id for call in turn if call.action))
        known = [self.action(action_id) for action_id in actions]
        planned = fanout.plan(
            [fanout.PlannedWrite(a.action_id, a.state, a.wake_at is not None, a.tool.independent) for a in known],
            open_reads,
        )
        for action_id in planned.block:
            self.withdraw(self.action(action_id))
        for action_id in planned.release:
            self.action(action_id).wake_at = self.now
            self.outbox.append(action_id)
        self.apply(operation, event(planned.outstanding))

    def save(self, action: Action, event: e.ActionEvent) -> None:
        if (action.state, type(event)) not in action_machine.MOVES:
            return
        decision = action_machine.decide(action.state, event, self.now)
        if action.state in action_machine.FINAL:
            raise Broken(f"I10 {action.state} is final, {type(event).__name__} changed it")
        self.note(f"{action.action_id} {action.state} -> {decision.state} by {type(event).__name__}")
        action.state, action.wake_at, action.lease_until = decision.state, None, None
        for effect in decision.effects:
            match effect:
                case WakeAt(at):
                    action.wake_at, action.review = at, False
                    if at <= self.now:
                        self.outbox.append(action.action_id)
                case AskOperator():
                    action.review = True
                case Settle():
                    action.review = False
                    for call in self.calls:
                        if call.action is action and call.state is CallState.WAITING:
                            self.settle_call(call, CALL_STATE[action.state])

    def settle_call(self, call: Call, state: CallState) -> None:
        call.state, call.wake_at, call.lease_until = state, None, None
        call.settled += 1

    # --- lookups ----------------------------------------------------------------------------------------------------

    def action(self, action_id: str) -> Action:
        return next(action for action in self.actions if action.action_id == action_id)

    def due_actions(self) -> Iterator[Action]:
        return (a for a in self.actions if a.wake_at is not None and a.wake_at <= self.now and not self.leased(a))

    def due_reads(self) -> Iterator[Call]:
        return (c for c in self.calls if c.state is CallState.READY and c.wake_at is not None and c.wake_at <= self.now)

    def due_operations(self) -> Iterator[Operation]:
        ready = operation_machine.CLAIMABLE
        return (o for o in self.operations if o.state in ready and o.wake_at is not None and o.wake_at <= self.now)

    def leased(self, row: Operation | Call | Action) -> bool:
        return row.lease_until is not None and row.lease_until >= self.now

    def expired(self, row: Operation | Call | Action) -> bool:
        return row.lease_until is not None and row.lease_until < self.now

    # --- turn -------------------------------------------------------------------------------------------------------

    def propose(self, operation: Operation) -> None:
        """The transaction that records a reply with proposals."""
        for _ in range(self.rng.randint(1, 4)):
            number = len(self.calls)
            if self.rng.random() < 0.3:
                call = Call(f"call{number}", operation, operation.turn, CallState.READY, wake_at=self.now)
                self.outbox.append(call.call_key)
            else:
                action = self._repeated(operation) or self._act(operation)
                call = Call(f"call{number}", operation, operation.turn, CallState.WAITING, action)
                if action.state in action_machine.FINAL:
                    self.settle_call(call, CALL_STATE[action.state])
            self.calls.append(call)
        self.apply(operation, e.Proposed())
        self.progress(operation, e.Judged)

    def _repeated(self, operation: Operation) -> Action | None:
        """Now and then the model proposes an intent again; it refers to the action that exists."""
        mine = [action for action in self.actions if action.operation is operation]
        return self.rng.choice(mine) if mine and self.rng.random() < 0.2 else None

    def _act(self, operation: Operation) -> Action:
        rng = self.rng
        kind = rng.choice(("keyed", "keyed", "bare", "overwrite"))
        tool = Tool(kind == "keyed", kind == "overwrite", rng.random() < 0.2, rng.random() < 0.3, rng.random() < 0.8)
        action = Action(f"act{len(self.actions)}", operation, operation.turn, tool, digest=1)
        self.actions.append(action)
        if tool.approval:
            action.approval = Approval(action.digest, self.now + timedelta(seconds=APPROVAL_TTL))
        self.save(action, e.ApprovalRequired() if tool.approval else e.Cleared())
        return action

    # --- decisions --------------------------------------------------------------------------------------------------

    def decide(self, action: Action, approve: bool) -> None:
        approval = action.approval
        if approval is None or approval.state is not ApprovalState.PENDING or approval.expires_at <= self.now:
            return
        approval.state = ApprovalState.APPROVED if approve else ApprovalState.DENIED
        self.save(action, e.Approved() if approve else e.Blocked("APPROVAL_DENIED"))
        self.progress(action.operation)

    # --- rules of dispatch ------------------------------------------------------------------------------------------

    def may_repeat(self, action: Action) -> bool:
        return may_send_again(
            key_retention=RETENTION if action.tool.keyed else None,
            repeatable_overwrite=action.tool.overwrite,
            first_started=action.started_at,
            now=self.now,
            attempts=action.attempts,
            limit=MAX_ATTEMPTS,
        )

    def next_check(self, action: Action) -> datetime | None:
        if action.checks >= CHECK_LIMIT:
            return None
        if not action.tool.reconcile and not self.may_repeat(action):
            return None
        return self.now + backoff(action.checks + 1, None, self.rng.random())

    def objection(self, action: Action) -> bool:
        """Everything that allowed the action, asked again; consumes the approval."""
        operation = action.operation
        if (operation.state in TERMINAL or self.now >= operation.deadline) and self.bug != "cancel_leaves_work":
            return True
        approval = action.approval
        if approval is None:
            return False
        if self.bug == "approval_of_any_digest" and approval.state is ApprovalState.APPROVED:
            approval.digest = action.digest
        if approval.digest != action.digest:
            return True
        if approval.state is ApprovalState.CONSUMED:
            return not action.attempts
        if approval.state is not ApprovalState.APPROVED or approval.expires_at <= self.now:
            return True
        approval.state = ApprovalState.CONSUMED
        approval.consumed += 1
        return False

    def end_attempt(self, action: Action, state: AttemptState) -> None:
        for attempt in action.tries:
            if attempt.state is AttemptState.STARTED:
                attempt.state = state
