"""Workers, sweeper, people and the queue of one history. Each `yield` is a step at which a process may pause or die.

What happens between two yields is one transaction, or one thing done outside of any.
"""

from collections.abc import Generator
from datetime import timedelta

from orchestrator.domain import events as e
from orchestrator.domain.action import ActionState
from orchestrator.domain.model import ApprovalState, AttemptState, CallState, Reason
from orchestrator.domain.operation import CLAIMABLE, TERMINAL, OperationState
from policy.retry import backoff, retry_at
from tests.simulator.shell import Broken, Shell
from tests.simulator.world import (
    ASK_LIMIT,
    LEASE,
    LOST_LIMIT,
    MAX_ATTEMPTS,
    SWEEP,
    TIMEOUT,
    TURNS,
    WALL,
    Action,
    Attempt,
    Call,
    Operation,
    Process,
)

_LEASE = timedelta(seconds=LEASE)


class Fleet:
    """Every process of one history around one shell."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.rng = shell.rng
        self.clock = shell.clock
        self.fences: dict[str, int] = {}
        self.published = 0

    # --- the queue: loses, doubles, delays and so reorders ----------------------------------------------------------

    def publish(self) -> Process:
        """Hand the wake-ups of the last transaction to the broker, some time after its commit."""
        rows, self.shell.outbox = self.shell.outbox, []
        yield self.rng.uniform(0, 0.1)
        for row in rows:
            copies = self.rng.choices((0, 1, 2), (15, 75, 10))[0] if self.clock.faults else 1
            for _ in range(copies):
                self.published += 1
                slow = self.rng.random() < 0.05
                self.clock.spawn(self.deliver(row), self.rng.uniform(0, 60 if slow else 0.5))

    def deliver(self, row: str) -> Process:
        """A worker takes the hint, serves the row it names if that is due, else what is due of its kind."""
        if row.startswith("op"):
            due = {o.operation_id: o for o in self.shell.due_operations()}
            if due:
                yield from self.turn(due.get(row) or next(iter(due.values())))
        elif row.startswith("call"):
            reads = {c.call_key: c for c in self.shell.due_reads()}
            if reads:
                yield from self.read(reads.get(row) or next(iter(reads.values())))
        else:
            actions = {a.action_id: a for a in self.shell.due_actions()}
            if actions:
                yield from self.act(actions.get(row) or next(iter(actions.values())))

    def claim(self, row_id: str, row: Operation | Call | Action) -> int:
        row.fence += 1
        row.lease_until = self.shell.now + _LEASE
        row.wake_at = None
        if row.fence <= self.fences.get(row_id, 0):
            raise Broken(f"I11 fence {row.fence} of {row_id} was used before")
        self.fences[row_id] = row.fence
        return row.fence

    # --- one model turn ---------------------------------------------------------------------------------------------

    def turn(self, operation: Operation) -> Process:
        shell = self.shell
        if operation.state not in CLAIMABLE or operation.wake_at is None or operation.wake_at > shell.now:
            return
        shell.apply(operation, e.TurnStarted())
        operation.turn += 1
        fence = self.claim(operation.operation_id, operation)
        yield self.rng.uniform(0.2, 8)  # the model thinks
        if operation.fence != fence or operation.state is not OperationState.MODEL_REQUESTED:
            return
        self.record_turn(operation)
        yield from self.publish()

    def record_turn(self, operation: Operation) -> None:
        shell = self.shell
        if shell.now >= operation.deadline:
            return shell.apply(operation, e.Exhausted(Reason.DEADLINE))
        if operation.turn > TURNS:
            return shell.apply(operation, e.Exhausted(Reason.TURN_BUDGET))
        match self.rng.choices(("calls", "text", "failure", "refusal", "cut", "pause"), (70, 16, 9, 1, 1, 3))[0]:
            case "calls":
                operation.asks = operation.lost = 0
                shell.propose(operation)
            case "text":
                mine = [a for a in shell.actions if a.operation is operation]
                unresolved = any(a.state.value in ("STARTED", "UNKNOWN", "PENDING") for a in mine)
                missing = () if self.rng.random() < 0.8 else ("a_tool",)
                shell.apply(operation, e.Answered(missing, unresolved, self.rng.random() < 0.9, not operation.told))
            case "failure":
                operation.turn -= 1
                operation.asks += 1
                at = retry_at(shell.now, operation.asks, ASK_LIMIT, operation.deadline, None, self.rng.random())
                shell.apply(operation, e.TurnDeferred(at) if at else e.TurnFailed(Reason.PROVIDER_UNAVAILABLE))
            case "refusal":
                shell.apply(operation, e.Refused())
            case "cut":
                shell.apply(operation, e.Truncated())
            case _:
                shell.apply(operation, e.Paused())
        return None

    # --- one read ---------------------------------------------------------------------------------------------------

    def read(self, call: Call) -> Process:
        shell = self.shell
        call.state = CallState.RUNNING
        call.attempts += 1
        fence = self.claim(call.call_key, call)
        yield self.rng.uniform(0.05, 5)
        if call.state is not CallState.RUNNING or call.fence != fence:
            return
        if self.rng.random() < 0.15 and call.attempts < MAX_ATTEMPTS:
            call.state, call.lease_until = CallState.READY, None
            call.wake_at = shell.now + backoff(call.attempts, None, self.rng.random())
            return
        shell.settle_call(call, CallState.SUCCEEDED if self.rng.random() < 0.9 else CallState.FAILED)
        shell.progress(call.operation)
        yield from self.publish()

    # --- one action -------------------------------------------------------------------------------------------------

    def act(self, action: Action) -> Process:
        if action.state is ActionState.READY:
            yield from self.write(action)
        elif action.state in (ActionState.UNKNOWN, ActionState.PENDING):
            yield from self.check(action)

    def write(self, action: Action) -> Process:
        """STARTED commits; only then the request leaves; then the outcome is recorded, if the fence is still ours."""
        shell = self.shell
        if shell.objection(action):
            shell.withdraw(action)
            shell.progress(action.operation)
            yield from self.publish()
            return
        if shell.bug != "no_started_record":
            attempt = self.start(action)
        else:
            attempt = Attempt(0, action.fence, action.digest, shell.now, operation_live=True, approved=True)
        held_until = shell.now + _LEASE
        yield self.rng.uniform(0.01, 0.5)
        outcome = "unsent"
        if shell.now < held_until and (not self.clock.faults or self.rng.random() < 0.93):
            yield self.rng.uniform(0.001, 0.05)  # a pause here makes a zombie: its request leaves long after
            outcome = yield from self.send(action, attempt)
        self.record_write(action, attempt, outcome)
        yield from self.publish()

    def start(self, action: Action) -> Attempt:
        shell = self.shell
        shell.save(action, e.Started())
        action.checks = 0
        action.attempts += 1
        action.started_at = action.started_at or shell.now
        fence = self.claim(action.action_id, action)
        live = action.operation.state not in TERMINAL
        approved = action.approval is None or action.approval.consumed == 1
        attempt = Attempt(action.attempts, fence, action.digest, shell.now, live, approved)
        action.tries.append(attempt)
        return attempt

    def send(self, action: Action, attempt: Attempt) -> Generator[float, None, str]:
        """What the client saw within its timeout. The request may arrive late, or never."""
        answer: list[str] = []

        def arrive() -> None:
            answer.append(self.shell.downstream.arrive(action, attempt.digest, self.shell.now))
            self.shell.note(f"downstream {answer[0]} {action.action_id}, sent under fence {attempt.fence}")

        luck = self.rng.random() if self.clock.faults else 1.0
        if luck < 0.10:
            pass  # lost on the way
        elif luck < 0.25:
            self.clock.after(self.rng.uniform(TIMEOUT, 90), arrive)
        else:
            self.clock.after(self.rng.uniform(0.05, 2), arrive)
        yield TIMEOUT if luck < 0.45 else 2.0  # below 0.45 the answer gets lost, if there is one
        return answer[0] if answer and luck >= 0.45 else "lost"

    def record_write(self, action: Action, attempt: Attempt, outcome: str) -> None:
        shell = self.shell
        ours = action.state is ActionState.STARTED and action.fence == attempt.fence
        if shell.bug == "no_started_record" and action.state is ActionState.READY:
            shell.save(action, e.Started())
            ours = True
        if not ours and shell.bug != "no_fence":
            return  # a zombie changes nothing
        if action.fence != attempt.fence:
            raise Broken(f"I11 {action.action_id} is at fence {action.fence}, and {attempt.fence} recorded its outcome")
        ended = {"unsent": AttemptState.NOT_SENT, "applied": AttemptState.SUCCEEDED, "refused": AttemptState.FAILED}
        shell.end_attempt(action, ended.get(outcome, AttemptState.UNKNOWN))
        shell.save(action, self.event(action, outcome))
        shell.progress(action.operation)

    def event(self, action: Action, outcome: str) -> e.ActionEvent:
        shell = self.shell
        check_at = shell.next_check(action)
        match outcome:
            case "applied":
                return e.Confirmed()
            case "refused":
                forgotten = shell.bug == "refused_forgets"
                if action.may_have_arrived() and not action.tool.keyed and not forgotten:
                    return e.OutcomeLost(check_at)
                return e.RefusedDownstream("REFUSED")
            case "unsent":
                again = shell.now, action.attempts, MAX_ATTEMPTS, action.operation.deadline, None, self.rng.random()
                at = retry_at(*again)
                if at is None and action.may_have_arrived() and shell.bug != "unsent_forgets":
                    return e.OutcomeLost(check_at)
                return e.NothingSent(at)
            case "accepted":
                return e.Pended(check_at or shell.now + timedelta(minutes=1))
            case _:
                if shell.bug == "lost_is_failed":
                    return e.RefusedDownstream("TIMEOUT")
                return e.OutcomeLost(check_at)

    def check(self, action: Action) -> Process:
        """Reconciliation: claim, ask the downstream outside of any transaction, record with the fence."""
        shell = self.shell
        before = action.state
        fence = self.claim(action.action_id, action)
        action.wake_at = shell.now  # stays due: a checker that dies is followed by another
        action.checks += 1
        yield self.rng.uniform(0.05, 1)
        try:
            seen = shell.downstream.look_up(action, shell.now) if action.tool.reconcile else "absent"
        except ConnectionError:
            seen = "lost"
        yield self.rng.uniform(0.05, 1)
        if action.fence != fence or action.state is not before:
            return
        shell.save(action, self.checked(action, seen))
        shell.progress(action.operation)
        yield from self.publish()

    def checked(self, action: Action, seen: str) -> e.ActionEvent:
        shell = self.shell
        check_at = shell.next_check(action)
        if seen == "pending":
            return e.Pended(check_at) if check_at else e.OutcomeLost(None)
        if seen != "absent":
            return self.event(action, seen)
        if action.state is ActionState.PENDING:
            return e.OutcomeLost(check_at)
        live = action.operation.state not in TERMINAL and shell.now < action.operation.deadline
        again = live and (shell.may_repeat(action) or shell.bug == "resend_on_absence")
        return e.FoundAbsent(again, check_at)

    # --- people and time --------------------------------------------------------------------------------------------

    def people(self) -> Process:
        """Decide what waits, sometimes twice, sometimes the other way; sometimes change the row behind the approval."""
        while True:
            yield self.rng.uniform(1, 25)
            for action in self.shell.actions:
                if action.approval and action.approval.state is ApprovalState.PENDING and self.rng.random() < 0.5:
                    self.shell.decide(action, self.rng.random() < 0.75)
                    self.shell.decide(action, self.rng.random() < 0.5)
                if action.attempts == 0 and action.approval and self.rng.random() < 0.03:
                    action.digest += 1  # tampered with: nobody approved that
            yield from self.publish()

    def caller(self, operation: Operation) -> Process:
        yield self.rng.uniform(0, WALL / 2)
        if operation.state not in TERMINAL:
            self.shell.apply(operation, e.CancelRequested())
            yield from self.publish()

    def sweeper(self) -> Process:
        """Never two at once; a dead one is followed by another. Every repair is compare-and-set."""
        while True:
            yield SWEEP * self.rng.uniform(0.8, 1.2)
            self.sweep()
            yield from self.publish()

    def sweep(self) -> None:
        shell = self.shell
        if shell.bug == "no_sweeper":
            return
        for operation in shell.operations:
            if operation.state is OperationState.MODEL_REQUESTED and shell.expired(operation):
                operation.turn -= 1
                operation.lost += 1
                shell.apply(operation, e.TurnLost(operation.lost, LOST_LIMIT))
            if operation.state not in TERMINAL and shell.now > operation.deadline:
                shell.apply(operation, e.Exhausted(Reason.DEADLINE))
        self.sweep_reads()
        self.sweep_actions()
        shell.outbox.extend(o.operation_id for o in shell.due_operations())
        shell.outbox.extend(c.call_key for c in shell.due_reads())
        shell.outbox.extend(a.action_id for a in shell.due_actions())

    def sweep_reads(self) -> None:
        shell = self.shell
        for call in shell.calls:
            if call.state is not CallState.RUNNING or not shell.expired(call):
                continue
            if call.attempts < MAX_ATTEMPTS:
                call.state, call.lease_until = CallState.READY, None
                call.wake_at = shell.now + backoff(call.attempts)
            else:
                shell.settle_call(call, CallState.FAILED)
                shell.progress(call.operation)

    def sweep_actions(self) -> None:
        shell = self.shell
        for action in shell.actions:
            if action.state is ActionState.STARTED and shell.expired(action):
                shell.end_attempt(action, AttemptState.LOST)
                resend = shell.bug == "reaper_resends"
                shell.save(action, e.NothingSent(shell.now) if resend else e.OutcomeLost(shell.next_check(action)))
                shell.progress(action.operation)
            approval = action.approval
            if approval and approval.expires_at < shell.now and shell.close(action, ApprovalState.EXPIRED):
                shell.save(action, e.Blocked("APPROVAL_EXPIRED"))
                shell.progress(action.operation)
