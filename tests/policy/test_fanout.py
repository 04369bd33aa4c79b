"""Which writes of a turn may leave: properties over any turn, played to its end in any order of outcomes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.action import FINAL, ActionState
from orchestrator.domain.model import Outstanding
from orchestrator.fanout import Plan, PlannedWrite, plan

S = ActionState
BROKEN = (S.FAILED, S.REJECTED, S.UNKNOWN)
IN_FLIGHT = (S.STARTED, S.UNKNOWN, S.PENDING)
turns = st.lists(
    st.tuples(st.sampled_from([S.READY, S.READY, S.WAITING_APPROVAL]), st.booleans()), min_size=1, max_size=6
)


def started(rows: list[tuple[ActionState, bool]]) -> list[PlannedWrite]:
    return [PlannedWrite(f"act_{i}", state, False, independent) for i, (state, independent) in enumerate(rows)]


def carried_out(writes: list[PlannedWrite], decided: Plan) -> list[PlannedWrite]:
    after = []
    for write in writes:
        state = S.REJECTED if write.action_id in decided.block else write.state
        after.append(replace(write, state=state, released=write.released or write.action_id in decided.release))
    return after


def check(writes: list[PlannedWrite], decided: Plan, open_reads: int) -> None:
    dependent = [w for w in writes if not w.independent]
    for index, write in enumerate(dependent):
        earlier = dependent[:index]
        if write.action_id in decided.release:
            assert open_reads == 0, "a write waits for the reads of its turn"
            assert all(w.state is S.SUCCEEDED for w in earlier), "writes keep their order and stop at a failure"
        if write.action_id in decided.block:
            assert any(w.state in BROKEN for w in earlier)
            assert write.state in (S.READY, S.WAITING_APPROVAL)
    for write in writes:
        if write.independent:
            assert (write.action_id in decided.release) == (write.state is S.READY and not write.released)
            assert write.action_id not in decided.block
    after = carried_out(writes, decided)
    moving = [w for w in after if not w.independent and ((w.released and w.state is S.READY) or w.state in IN_FLIGHT)]
    assert len(moving) <= 1, "at most one dependent write is on its way"


def check_outstanding(writes: list[PlannedWrite], decided: Plan, open_reads: int) -> None:
    """What the turn is said to wait for is what is there, and nothing hangs."""
    after = carried_out(writes, decided)
    left = decided.outstanding
    assert left.approvals == sum(w.state is S.WAITING_APPROVAL for w in after)
    assert left.uncertain == sum(w.state in (S.UNKNOWN, S.PENDING) for w in after)
    moving = sum(w.state is S.STARTED or (w.state is S.READY and w.released) for w in after)
    assert left.running == open_reads + moving
    assert (left == Outstanding()) == (open_reads == 0 and all(w.state in FINAL for w in after))


@given(turns, st.integers(0, 2), st.data())
def test_any_turn_in_any_order(rows: list[tuple[ActionState, bool]], open_reads: int, data: st.DataObject) -> None:
    writes = started(rows)
    while True:
        decided = plan(writes, open_reads)
        check(writes, decided, open_reads)
        check_outstanding(writes, decided, open_reads)
        writes = carried_out(writes, decided)
        choices = [*(["read"] if open_reads else []), *(w for w in writes if _can_move(w))]
        if not choices:
            break
        chosen = data.draw(st.sampled_from(choices))
        if chosen == "read":
            open_reads -= 1
            continue
        happens = data.draw(st.sampled_from(_next(chosen)))
        writes = [happens if w.action_id == chosen.action_id else w for w in writes]
    assert decided.outstanding == Outstanding()
    assert all(w.state in FINAL for w in writes)


def _can_move(write: PlannedWrite) -> bool:
    return bool(_next(write))


def _next(write: PlannedWrite) -> list[PlannedWrite]:
    """What can happen to a write next; a rejection by policy can also stop one that was released."""
    match write.state:
        case S.WAITING_APPROVAL:
            targets = [S.READY, S.REJECTED]
        case S.READY if write.released:
            targets = [S.STARTED, S.REJECTED]
        case S.STARTED:
            targets = [S.SUCCEEDED, S.FAILED, S.UNKNOWN, S.PENDING]
        case S.UNKNOWN | S.PENDING:
            targets = [S.SUCCEEDED, S.FAILED]
        case _:
            targets = []
    return [replace(write, state=target, released=write.released and target is S.READY) for target in targets]


def dependent(*states: ActionState) -> list[PlannedWrite]:
    return [PlannedWrite(str(i), state, False, False) for i, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "release", "block"),
    [
        ((S.READY, S.READY), ("0",), ()),
        ((S.SUCCEEDED, S.READY, S.READY), ("1",), ()),
        ((S.FAILED, S.READY, S.WAITING_APPROVAL), (), ("1", "2")),
        ((S.REJECTED, S.READY), (), ("1",)),
        ((S.UNKNOWN, S.READY), (), ("1",)),
        ((S.PENDING, S.READY), (), ()),  # it may still succeed
        ((S.WAITING_APPROVAL, S.READY), (), ()),  # its place comes after the decision on the first
        ((S.STARTED, S.READY), (), ()),
    ],
)
def test_order(states: tuple[ActionState, ...], release: tuple[str, ...], block: tuple[str, ...]) -> None:
    decided = plan(dependent(*states), 0)
    assert (decided.release, decided.block) == (release, block)


def test_an_unknown_write_that_is_found_after_all_does_not_unblock_what_was_told_no() -> None:
    decided = plan(dependent(S.SUCCEEDED, S.REJECTED, S.READY), 0)
    assert decided.block == ("2",)


def test_no_writes() -> None:
    assert plan([], 3) == Plan((), (), Outstanding(running=3))
    assert plan([], 0) == Plan((), (), Outstanding())
