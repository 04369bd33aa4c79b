"""What breaks each time it is touched is counted in the database and parked; whatever stands behind it goes on."""

import pytest

from orchestrator import commands, dispatch, settling, turn
from orchestrator.domain.errors import Conflict, NotFound, UserError
from policy.profile import Budgets
from store import actions
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.recovery import cursed
from tests.store.rows import eventually

LIMIT = 5


def submit(bench: Desk, *tools: str, **changed: object) -> str:
    names = tuple(spec.name for spec in (*lab.TOOLS, *cursed.TOOLS))
    proposed = [call(name, text=f"{name}-{at}") for at, name in enumerate(tools)]
    return bench.submit(calls(*proposed), DONE, tools=names, **changed)  # type: ignore[arg-type]


def break_turn(bench: Desk, operation: str) -> None:
    bench.hurry(operation)
    with pytest.raises(RuntimeError):
        turn.advance(bench.app, operation)


def parked(bench: Desk) -> dict[str, str]:
    return {row["operation_id"]: row["parked"] for row in commands.list_operations(bench.app, parked=True, limit=1000)}


def test_a_turn_that_breaks_each_time_is_parked_and_released(bench: Desk) -> None:
    cursed.CURSES.add("schema")
    operation = submit(bench, "cursed_look")
    for tries in range(1, LIMIT + 1):
        assert operation not in parked(bench)
        break_turn(bench, operation)
        assert bench.view(operation).state == "READY", "given back at once: no lease has to run out"
        [*_, last] = bench.audit(operation, "turn.broken")
        assert (last["body"]["tries"], last["body"]["error"]) == (tries, "RuntimeError")
    view = bench.view(operation)
    assert (view.parked, view.wake_at, view.turns, view.calls) == ("POISON_TURN", None, 0, [])
    assert parked(bench)[operation] == "POISON_TURN"
    bench.sweep()
    assert not turn.advance(bench.app, operation)
    assert cursed.SECRET not in str(bench.sql("SELECT body FROM audit"))

    cursed.CURSES.clear()
    commands.release(bench.app, operation, by="ops")
    assert bench.run(operation).state == "COMPLETED"
    assert [entry["body"]["by"] for entry in bench.audit(operation, "operation.released")] == ["ops"]
    assert bench.view(operation).parked is None
    with pytest.raises(Conflict, match="not parked"):
        commands.release(bench.app, operation, by="ops")


def test_a_turn_that_breaks_now_and_then_is_not_parked(bench: Desk) -> None:
    operation = bench.submit(
        calls(call("cursed_look", text="a")), calls(call("cursed_look", text="b")), DONE, tools=("cursed_look",)
    )
    for _ in range(2):
        cursed.CURSES.add("schema")
        for _ in range(LIMIT - 1):
            break_turn(bench, operation)
        cursed.CURSES.clear()
        bench.hurry(operation)
        bench.advance(operation)
        bench.step("reads")
    assert bench.run(operation).state == "COMPLETED"


def test_the_rows_behind_a_broken_one_go_on(bench: Desk) -> None:
    """In the same task: the broken row is the oldest, and is due later when the next one is looked for."""
    cursed.CURSES.add("schema")
    broken, healthy = submit(bench, "cursed_look"), submit(bench, "look")
    with pytest.raises(RuntimeError):
        turn.advance(bench.app, None)
    assert turn.advance(bench.app, None)
    assert [len(bench.view(each).calls) for each in (broken, healthy)] == [0, 1]


def test_a_parked_operation_can_be_cancelled_and_ends_at_its_deadline(bench: Desk) -> None:
    cursed.CURSES.add("schema")
    first, second = (submit(bench, "cursed_look", budgets=Budgets(wall_seconds=3600)) for _ in range(2))
    for operation in (first, second):
        for _ in range(LIMIT):
            break_turn(bench, operation)
    commands.cancel(bench.app, first)
    bench.sql("UPDATE operations SET deadline = now() WHERE operation_id = :o", o=second)
    bench.sweep()
    views = [bench.view(first), bench.view(second)]
    assert [(view.state, view.reason, view.parked) for view in views] == [
        ("CANCELLED", None, None), ("INCOMPLETE", "DEADLINE", None),
    ]  # fmt: skip
    assert not {first, second} & parked(bench).keys()


def test_release_asks_who_and_whose(bench: Desk) -> None:
    operation = submit(bench, "look")
    with pytest.raises(UserError, match="by"):
        commands.release(bench.app, operation, by=" ")
    with pytest.raises(NotFound):
        commands.release(bench.app, operation, by="ops", tenant="other")


def test_after_a_release_the_numbers_of_requests_go_on(bench: Desk) -> None:
    """The turn had requests that failed and losses in between: a new number must not be an old one."""
    failing = {**calls(call("cursed_look", text="a")), "fault": {"status": 503, "times": 3}}
    operation = bench.submit(failing, DONE, tools=("cursed_look",))
    cursed.CURSES.add("schema")
    bench.advance(operation)  # three requests, all refused
    assert bench.view(operation).requests[-1].failure_code is not None
    for _ in range(LIMIT):
        break_turn(bench, operation)
    cursed.CURSES.clear()
    commands.release(bench.app, operation, by="ops")
    assert bench.run(operation).state == "COMPLETED"


# --- writes --------------------------------------------------------------------------------------------------------


def test_a_write_that_breaks_before_its_start_is_parked_and_not_failed(bench: Desk) -> None:
    operation = submit(bench, "cursed_write")
    bench.advance(operation)
    other = submit(bench, "write")
    bench.advance(other)
    cursed.CURSES.add("schema")
    with pytest.raises(RuntimeError):
        dispatch.run_one(bench.app, "writes", None)
    bench.step("writes")  # the one behind it
    assert bench.action(other).state == "SUCCEEDED"
    for _ in range(LIMIT - 1):
        bench.hurry(operation)
        with pytest.raises(RuntimeError):
            dispatch.run_one(bench.app, "writes", None)
    view = bench.view(operation)
    assert (view.state, view.parked) == ("EXECUTING", "POISON_WRITE")
    assert (bench.action(operation).state, bench.action(operation).attempts) == ("READY", 0)
    assert bench.idle("writes")
    tries = [entry["body"]["tries"] for entry in bench.audit(operation, "action.broken")]
    assert tries == list(range(1, LIMIT + 1))

    cursed.CURSES.clear()
    commands.release(bench.app, operation, by="ops")
    assert bench.run(operation).state == "COMPLETED"
    assert bench.action(operation).attempts == 1
    assert len(bench.lab.effects) == 2


def test_a_start_that_kills_its_workers_is_counted_beforehand(bench: Desk) -> None:
    """The host's hook takes the process with it: nothing is left that could count afterwards."""
    operation = bench.submit(calls(call("careful")), DONE)
    bench.advance(operation)
    commands.approve(bench.app, bench.approval(operation), by="boss")
    [action] = bench.actions(operation)
    bench.sql("UPDATE actions SET faults = 4 WHERE action_id = :a", a=action.action_id)  # four workers died of it
    bench.step("writes")
    assert bench.action(operation).state == "SUCCEEDED", "the fifth lives"

    operation = bench.submit(calls(call("careful", text="b")), DONE)
    bench.advance(operation)
    commands.approve(bench.app, bench.approval(operation), by="boss")
    [action] = bench.actions(operation)
    bench.sql("UPDATE actions SET faults = 5 WHERE action_id = :a", a=action.action_id)
    bench.step("writes")
    assert (bench.action(operation).state, bench.view(operation).parked) == ("READY", "POISON_WRITE")
    assert bench.audit(operation, "action.broken")[-1]["body"]["error"] == "WORKER_LOST"


def test_a_hint_of_a_parked_write_sets_nothing_going(bench: Desk) -> None:
    operation = submit(bench, "cursed_write")
    bench.advance(operation)
    cursed.CURSES.add("schema")
    for _ in range(LIMIT):
        bench.hurry(operation)
        with pytest.raises(RuntimeError):
            dispatch.run_one(bench.app, "writes", None)
    [action] = bench.actions(operation)
    for _ in range(3):
        assert not dispatch.run_one(bench.app, "writes", action.action_id)
    assert len(bench.audit(operation, "action.broken")) == LIMIT


def test_waiting_for_a_slot_is_no_fault(bench: Desk) -> None:
    operation = bench.submit(calls(call("careful")), DONE)
    bench.advance(operation)
    commands.approve(bench.app, bench.approval(operation), by="boss")
    [action] = bench.actions(operation)
    bench.sql("UPDATE actions SET limited = true WHERE action_id = :a", a=action.action_id)  # of a tool without slots
    for _ in range(LIMIT + 1):
        assert not dispatch.run_one(bench.app, "writes", action.action_id)
    assert bench.view(operation).parked is None
    bench.sql("UPDATE actions SET limited = false WHERE action_id = :a", a=action.action_id)
    assert bench.run(operation).state == "COMPLETED"


def test_a_started_write_whose_outcome_cannot_be_recorded_is_unknown(bench: Desk) -> None:
    cursed.CURSES.add("refusal")
    operation = submit(bench, "refused_write")
    bench.advance(operation)
    with pytest.raises((TypeError, AttributeError)):
        dispatch.run_one(bench.app, "writes", None)
    assert bench.action(operation).state == "STARTED"
    bench.expire_leases(operation)
    bench.sweep()
    assert (bench.action(operation).state, bench.action(operation).review) == ("UNKNOWN", True)
    assert len(bench.lab.effects) == 1


def test_a_reconciliation_that_breaks_each_time_goes_to_an_operator(bench: Desk) -> None:
    cursed.CURSES.add("check")
    operation = submit(bench, "doubtful")
    bench.advance(operation)
    bench.lab.will(cut=True)
    bench.step("writes")
    assert bench.action(operation).state == "UNKNOWN"
    for _ in range(LIMIT):
        bench.hurry(operation)
        with pytest.raises(TypeError):
            dispatch.run_one(bench.app, "writes", None)
    action = bench.action(operation)
    assert (action.state, action.review) == ("UNKNOWN", True)
    assert [row["action_id"] for row in settling.reviews(bench.app)].count(action.action_id) == 1
    assert bench.idle("writes")

    cursed.CURSES.clear()
    commands.release(bench.app, operation, by="ops")
    assert bench.run(operation).state == "COMPLETED"
    assert (bench.action(operation).state, len(bench.lab.effects)) == ("SUCCEEDED", 1)


# --- reads and repairs ---------------------------------------------------------------------------------------------


def test_a_read_that_breaks_outside_of_its_handler_uses_up_its_attempts(bench: Desk) -> None:
    cursed.CURSES.add("refusal")
    operation = submit(bench, "refused_look")
    bench.advance(operation)
    for _ in range(2):
        bench.hurry(operation)
        with pytest.raises((TypeError, AttributeError)):
            dispatch.run_one(bench.app, "reads", None)
    found = bench.call(operation)
    assert (found.state, found.code, found.attempts) == ("FAILED", "INTERNAL", 2)
    assert bench.run(operation).state == "COMPLETED"


def test_a_reconciliation_that_kills_its_workers_goes_to_an_operator(bench: Desk) -> None:
    cursed.CURSES.add("check")
    operation = submit(bench, "doubtful")
    bench.advance(operation)
    bench.lab.will(cut=True)
    bench.step("writes")
    [action] = bench.actions(operation)
    for _ in range(LIMIT):
        assert not bench.action(operation).review
        bench.hurry(operation)
        with bench.app.database.autocommit() as connection:
            assert actions.claim_check(connection, action.action_id, lease=60) is not None
        bench.expire_leases(operation)
    bench.hurry(operation)
    bench.step("writes")
    assert (bench.action(operation).state, bench.action(operation).review) == ("UNKNOWN", True)


def test_what_the_sweeper_cannot_repair_holds_up_nothing_and_is_marked(bench: Desk) -> None:
    operation = submit(bench, "look", "write")
    other = submit(bench, "look")
    for each in (operation, other):
        bench.advance(each)
        bench.sql(
            "UPDATE calls SET state = 'RUNNING', wake_at = NULL, attempts = 9, lease_until = now() - interval '1 hour' "
            "WHERE operation_id = :o AND tool = 'look'", o=each,
        )  # fmt: skip
    bench.sql("UPDATE calls SET binding = '7' WHERE operation_id = :o AND tool = 'look'", o=operation)
    bench.sweep()
    assert bench.call(other).code == "WORKER_LOST", "the row behind it was repaired in the same round"
    eventually(lambda: bench.sweep() is not None and bench.view(operation).parked == "POISON_REPAIR")
    tries = [entry["body"]["tries"] for entry in bench.audit(operation, "repair.failed")]
    assert tries == list(range(1, LIMIT + 1))
    assert [each.state for each in bench.actions(operation)] == ["READY"], "the write of the turn waits for the read"
    commands.cancel(bench.app, operation)
    assert bench.view(operation).parked is None


def test_a_started_write_that_cannot_be_repaired_is_unknown_in_the_end(bench: Desk) -> None:
    operation = submit(bench, "vague")
    bench.advance(operation)
    bench.lab.will(cut=True)
    with pytest.raises(TypeError):
        dispatch.run_one(bench.app, "writes", None)
    assert bench.action(operation).state == "STARTED"
    bench.expire_leases(operation)
    eventually(lambda: bench.sweep() is not None and bench.action(operation).state != "STARTED")
    action = bench.action(operation)
    assert (action.state, action.review, bench.view(operation).parked) == ("UNKNOWN", True, "POISON_REPAIR")
    verdict = settling.Verdict("succeeded", "r-1")
    assert settling.resolve(bench.app, action.action_id, verdict, by="ops") == "SUCCEEDED"
    assert bench.run(operation).state == "COMPLETED"
