"""One seeded history: run it, let it come to rest, check the invariants."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from orchestrator.domain.action import FINAL, UNCERTAIN, ActionState
from orchestrator.domain.model import SETTLED_CALLS, ApprovalState
from orchestrator.domain.operation import TERMINAL, OperationState
from tests.simulator.processes import Fleet
from tests.simulator.shell import Broken, Shell
from tests.simulator.world import EPOCH, WALL, Action, Clock, Operation

BUGS = (
    "no_started_record",  # the request leaves before the record
    "no_fence",  # an outcome is recorded whatever the row says by now
    "reaper_resends",  # an expired STARTED is taken for "not sent"
    "resend_on_absence",  # "not found" is taken for proof without key enforcement
    "lost_is_failed",  # a timeout is taken for a refusal
    "withdraw_forgets",  # an action whose earlier attempt may arrive is called rejected
    "unsent_forgets",  # an action whose last attempt was not sent is failed, though an earlier one may arrive
    "refused_forgets",  # so is an overwrite whose last attempt was refused
    "approval_of_any_digest",  # the start does not compare what was approved
    "cancel_leaves_work",  # what had not started when the operation ended may still start
    "no_sweeper",  # nobody repairs lost wake-ups and leases
)


CALM_SLICES = 7  # of 30 s: no request is under way for longer (a pause of 4 leases before it leaves, 90 s on the way)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`problem` is None when every invariant holds; the rest says how much happened."""

    seed: int
    problem: str | None
    steps: int
    kills: int
    pauses: int
    effects: int
    ends: tuple[str, ...]  # how operations and actions ended
    trace: tuple[str, ...] = ()


def play(seed: int, bug: str | None = None, *, trace: bool = False) -> Outcome:
    rng = random.Random(seed)
    clock = Clock(rng)
    shell = Shell(rng, clock, bug, trace)
    fleet = Fleet(shell)
    problem = None
    try:
        _submit(shell, fleet)
        _guard(fleet, "sweeper")
        _guard(fleet, "people")
        _come_to_rest(shell)
        problem = next(iter(problems(shell)), None)
    except Broken as broken:
        problem = str(broken)
    ends = tuple(sorted([*(o.state.value for o in shell.operations), *(a.state.value for a in shell.actions)]))
    effects = len(shell.downstream.ledger)
    return Outcome(seed, problem, clock.steps, clock.kills, clock.pauses, effects, ends, tuple(shell.trace or ()))


def _come_to_rest(shell: Shell) -> None:
    """Until nothing has moved for longer than a late request takes, or time is up; faults end some time before that."""
    clock, calm = shell.clock, 0
    while calm < CALM_SLICES and clock.now < EPOCH + timedelta(seconds=3 * WALL):
        clock.faults = clock.now < EPOCH + timedelta(seconds=WALL + 60)
        clock.run(clock.now + timedelta(seconds=30))
        calm = calm + 1 if _resting(shell) else 0


def _resting(shell: Shell) -> bool:
    settled = all(a.state in FINAL or (a.state in UNCERTAIN and a.review) for a in shell.actions)
    return settled and all(operation.state in TERMINAL for operation in shell.operations)


def _submit(shell: Shell, fleet: Fleet) -> None:
    for number in range(shell.rng.choice((1, 1, 2))):
        operation = Operation(f"op{number}", EPOCH + timedelta(seconds=WALL), wake_at=shell.now)
        shell.operations.append(operation)
        shell.outbox.append(operation.operation_id)
        if shell.rng.random() < 0.4:
            fleet.clock.spawn(fleet.caller(operation))
    fleet.clock.spawn(fleet.publish())


def _guard(fleet: Fleet, name: str) -> None:
    """Start a standing process, and another one whenever it may have died."""
    standing = getattr(fleet, name)()
    fleet.clock.spawn(standing)

    def again() -> None:
        if standing.gi_frame is None:
            _guard(fleet, name)
        else:
            fleet.clock.after(20, again)

    fleet.clock.after(20, again)


# --- invariants ----------------------------------------------------------------------------------------------------


def problems(shell: Shell) -> Iterable[str]:
    """Each broken invariant after quiescence, in words that begin with its name."""
    for operation in shell.operations:
        yield from _operation(shell, operation)
    for action in shell.actions:
        yield from _action(shell, action)
    for call in shell.calls:
        if call.settled > 1:
            yield f"I2 {call.call_key} got {call.settled} results"
        if call.state not in SETTLED_CALLS and not (call.action and call.action.state in UNCERTAIN):
            yield f"I2 {call.call_key} is left {call.state}"


def _operation(shell: Shell, operation: Operation) -> Iterable[str]:
    if operation.state not in TERMINAL:
        yield f"I2 {operation.operation_id} is lost in {operation.state}"
    if operation.state is OperationState.COMPLETED and operation.unresolved_at_end:
        yield f"I3 {operation.operation_id} completed over an unresolved write"


def _action(shell: Shell, action: Action) -> Iterable[str]:
    name = f"{action.action_id} ({action.state})"
    effects = [effect for effect in shell.downstream.ledger if effect.action_id == action.action_id]
    if len(effects) > 1 and not action.tool.overwrite:
        yield f"I1 {name} has {len(effects)} effects"
    if action.state not in FINAL and not (action.state in UNCERTAIN and action.review):
        yield f"I3 {name} is neither settled nor up for review"
    for effect in effects:
        if not any(t.started_at <= effect.at and t.digest == effect.digest for t in action.tries):
            yield f"I4 {name} had an effect without a started record of it"
    approval = action.approval
    if effects and approval and (approval.consumed != 1 or any(effect.digest != 1 for effect in effects)):
        yield f"I4 {name} had an effect that nobody approved"
    if any(not attempt.operation_live or not attempt.approved for attempt in action.tries):
        yield f"I4 {name} started without permission"
    if approval and approval.consumed and approval.state is not ApprovalState.CONSUMED:
        yield f"I4 the approval of {name} was used and is {approval.state}"
    if action.state is ActionState.SUCCEEDED and not effects:
        yield f"I5 {name} has no effect"
    if action.state in (ActionState.FAILED, ActionState.REJECTED) and effects:
        yield f"I5 {name} has an effect"
    numbers, fences = [t.number for t in action.tries], [t.fence for t in action.tries]
    if numbers != list(range(1, len(numbers) + 1)) or fences != sorted(set(fences)):
        yield f"I11 {name} has attempts {numbers} under fences {fences}"
