"""Which calls of a turn may be dispatched now: pure, over what the turn holds.

Reads run in parallel. Writes run one at a time in proposal order after the turn's reads, unless their specs call them
independent. When a write fails or is unknown, the later ones of its turn are not dispatched and say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.action import FINAL, ActionState
from orchestrator.domain.model import Outstanding


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """One action of the turn, in proposal order. `released`: its wake_at is set."""

    action_id: str
    state: ActionState
    released: bool
    independent: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """`release` may start now, `block` must not start any more, `outstanding` is what is left after both."""

    release: tuple[str, ...]
    block: tuple[str, ...]
    outstanding: Outstanding


def plan(writes: Sequence[PlannedWrite], open_reads: int) -> Plan:
    release: list[str] = []
    block: list[str] = []
    running, uncertain, approvals = open_reads, 0, 0
    waiting, broken = open_reads > 0, False  # the gate in front of the next dependent write
    for write in writes:
        gated = not write.independent
        if gated and broken and write.state in (ActionState.READY, ActionState.WAITING_APPROVAL):
            block.append(write.action_id)
            continue
        match write.state:
            case ActionState.READY if write.released:
                running += 1
            case ActionState.READY if gated and waiting:
                continue  # its turn has not come; whatever holds the gate is counted
            case ActionState.READY:
                release.append(write.action_id)
                running += 1
            case ActionState.STARTED:
                running += 1
            case ActionState.WAITING_APPROVAL:
                approvals += 1
            case ActionState.UNKNOWN | ActionState.PENDING:
                uncertain += 1
            case _:
                pass
        if gated:
            broken = broken or write.state in (ActionState.FAILED, ActionState.REJECTED, ActionState.UNKNOWN)
            waiting = waiting or write.state not in FINAL
    return Plan(tuple(release), tuple(block), Outstanding(running, uncertain, approvals))
