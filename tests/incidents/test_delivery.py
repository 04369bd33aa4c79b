"""Reports about redelivery, fan-in, claims and workers that die. A message is a hint: the rows decide."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import commands, dispatch, turn
from orchestrator.app import App
from orchestrator.settings import Settings
from policy.profile import Budgets
from store import calls as call_store
from store import operations
from tests.acceptance.desks import restarted
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually

READ = calls(call("look", text="a"))


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """What each returned or raised, all of them started at the same moment."""
    barrier, results = threading.Barrier(len(work)), [None] * len(work)

    def run(index: int) -> None:
        barrier.wait(60)
        try:
            results[index] = work[index]()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


def call_keys(desk: Desk, operation: str) -> list[str]:
    rows = desk.sql("SELECT call_key FROM calls WHERE operation_id = :o ORDER BY position", o=operation)
    return [row["call_key"] for row in rows]


def claim_and_die(desk: Desk) -> None:
    with desk.app.database.autocommit() as connection:
        claim = {"hint": None, "queue": "reads", "lease": 60, "slot_lease": 60, "worker": "dead", "fair": False}
        assert call_store.claim(connection, **claim) is not None


def test_inc_01_a_second_delivery_while_the_first_still_runs(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    [key] = call_keys(desk, operation)
    desk.lab.will(wait=True)
    first = threading.Thread(target=dispatch.run_one, args=(desk.app, "reads", key))
    first.start()
    eventually(lambda: bool(desk.lab.seen))
    assert not dispatch.run_one(desk.app, "reads", key), "the claim is seen"
    desk.lab.released.set()
    first.join(60)
    assert not dispatch.run_one(desk.app, "reads", key)
    assert (desk.call(operation).attempts, len(desk.view(operation).attempts), len(desk.lab.seen)) == (1, 1, 1)


def test_inc_02_a_wait_longer_than_the_visibility_timeout_is_a_row_and_no_message(desk: Desk) -> None:
    limited = DONE | {"fault": {"status": 429, "headers": {"retry-after": "7200"}, "times": 1}}
    operation = desk.submit(limited, budgets=Budgets(wall_seconds=86400))
    desk.advance(operation)
    assert at_once(*[lambda: turn.advance(desk.app, operation)] * 5) == [False] * 5, "early copies do nothing"
    desk.hurry(operation)
    assert sorted(at_once(*[lambda: turn.advance(desk.app, operation)] * 5)) == [False] * 4 + [True]
    assert (desk.view(operation).state, len(desk.requests(operation))) == ("COMPLETED", 2)


def test_inc_03_many_copies_of_one_message(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    assert [turn.advance(desk.app, operation) for _ in range(6)] == [True] + [False] * 5
    [key] = call_keys(desk, operation)
    for _ in range(6):
        dispatch.run_one(desk.app, "reads", key)
    assert (desk.call(operation).attempts, len(desk.requests(operation))) == (1, 1)


def test_inc_05_a_write_that_is_delivered_again_after_its_end(desk: Desk) -> None:
    """Without a broker in between; tests/incidents/test_workers.py restarts a real one."""
    operation = desk.submit(calls(call("write")), DONE)
    desk.advance(operation)
    desk.step("writes")
    action = desk.action(operation)
    for _ in range(3):
        assert not dispatch.run_one(desk.app, "writes", action.action_id)
    assert desk.run(operation).state == "COMPLETED"
    assert (desk.action(operation).attempts, len(desk.lab.effects)) == (1, 1)


@pytest.mark.parametrize("step", ["turn", "read", "write"])
def test_inc_11_a_step_that_kills_its_worker_every_time(desk: Desk, step: str) -> None:
    operation = desk.submit(calls(call("write" if step == "write" else "look")), DONE)
    if step == "turn":
        for _ in range(desk.app.settings.lost_limit):
            desk.hurry(operation)
            with desk.app.database.autocommit() as connection:
                assert operations.claim_turn(connection, operation, 60) is not None
            desk.expire_leases(operation)
            desk.sweep()
        assert (desk.view(operation).state, desk.view(operation).parked) == ("READY", "POISON_TURN")
        return
    desk.advance(operation)
    if step == "read":
        for _ in range(3):
            desk.hurry(operation)
            claim_and_die(desk)
            desk.expire_leases(operation)
            desk.sweep()
        assert desk.call(operation).code == "WORKER_LOST"
        assert desk.run(operation).state == "COMPLETED"
        return
    desk.lab.will(cut=True)
    desk.step("writes")
    desk.run(operation)
    assert (desk.action(operation).state, desk.action(operation).review) == ("UNKNOWN", True), "not even a second time"
    assert len(desk.lab.seen) == 1


def test_inc_12_one_of_eight_reads_kills_its_worker_every_time(desk: Desk) -> None:
    operation = desk.submit(calls(*[call("look", text=str(n)) for n in range(8)]), DONE)
    desk.advance(operation)
    [poison, *others] = call_keys(desk, operation)
    for key in others:
        assert dispatch.run_one(desk.app, "reads", key)
    for _ in range(3):
        desk.hurry(operation)
        claim_and_die(desk)
        desk.expire_leases(operation)
        desk.sweep()
    assert desk.run(operation).state == "COMPLETED"
    assert [c.code or c.state for c in desk.view(operation).calls] == ["WORKER_LOST"] + ["SUCCEEDED"] * 7
    told = [i for i in desk.requests(operation)[1]["input"] if i.get("type") == "function_call_output"]
    assert (len(told), poison in others) == (8, False)


def test_inc_13_one_of_several_reads_is_delivered_twice(desk: Desk) -> None:
    operation = desk.submit(calls(*[call("look", text=str(n)) for n in range(4)]), DONE)
    desk.advance(operation)
    keys = call_keys(desk, operation)
    for key in [keys[0], *keys]:
        dispatch.run_one(desk.app, "reads", key)
    while dispatch.run_one(desk.app, "reads", None):
        pass
    assert desk.view(operation).state == "RESULTS_READY"
    assert sorted(at_once(*[lambda: turn.advance(desk.app, operation)] * 4)) == [False] * 3 + [True]
    told = [i for i in desk.requests(operation)[1]["input"] if i.get("type") == "function_call_output"]
    assert (len(told), len(desk.requests(operation)), len(desk.lab.seen)) == (4, 2, 4)


@pytest.mark.timeout(280)
def test_inc_14_a_hundred_reads_end_at_nearly_the_same_time(desk: Desk) -> None:
    budgets = Budgets(calls=100, parallel=100)
    operation = desk.submit(calls(*[call("look", text=str(n)) for n in range(100)]), DONE, budgets=budgets)
    desk.advance(operation)

    def work() -> None:
        while dispatch.run_one(desk.app, "reads", None):
            pass

    assert at_once(*[work] * 6) == [None] * 6
    assert desk.view(operation).state == "RESULTS_READY"
    assert sorted(at_once(*[lambda: turn.advance(desk.app, operation)] * 6)) == [False] * 5 + [True]
    assert (len(desk.requests(operation)), len(desk.lab.seen)) == (2, 100)


def test_inc_16_two_sweepers_in_the_same_second(desk: Desk) -> None:
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    claim_and_die(desk)
    desk.expire_leases(operation)
    done = at_once(*[desk.sweep] * 4)
    assert sum(round_["lost_reads"] for round_ in done) == 1
    assert desk.run(operation).state == "COMPLETED"
    assert [a.state for a in desk.view(operation).attempts] == ["LOST", "SUCCEEDED"]


def test_inc_17_the_same_submission_twice_at_the_same_time(desk: Desk) -> None:
    desk.submit(DONE)
    [profile] = desk.app.registry.profiles
    request = commands.submission(
        profile=profile.name, input="Please.", tenant="acme", subject="alice", idempotency_key=profile.name
    )
    answers = at_once(*[lambda: commands.submit(desk.app, request)] * 8)
    assert len({answer.operation_id for answer in answers}) == 1
    assert sorted(answer.created for answer in answers) == [False] * 7 + [True]


def test_inc_19_serial_steps_of_one_run_never_overlap(desk: Desk) -> None:
    operation = desk.submit(calls(call("write", text="1"), call("write", text="2")), DONE)
    desk.advance(operation)
    desk.lab.will(wait=True)
    first = threading.Thread(target=dispatch.run_one, args=(desk.app, "writes", None))
    first.start()
    eventually(lambda: bool(desk.lab.seen))
    second = desk.actions(operation)[1].action_id
    assert not dispatch.run_one(desk.app, "writes", second), "nor by its name"
    assert not turn.advance(desk.app, operation)
    desk.lab.released.set()
    first.join(60)
    assert desk.run(operation).state == "COMPLETED"
    assert [seen.path for seen in desk.lab.effects] == ["/notes/1", "/notes/2"]


def test_inc_59_a_stale_worker_does_not_overwrite_the_newer_result(desk: Desk) -> None:
    """A stands still past its lease, B finishes, A comes back: its fence is too low."""
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    desk.lab.will(wait=True, json={"id": "old", "text": "stale"})
    desk.lab.will(json={"id": "new", "text": "fresh"})
    stale = threading.Thread(target=dispatch.run_one, args=(desk.app, "reads", None))
    stale.start()
    eventually(lambda: bool(desk.lab.seen))
    desk.expire_leases(operation)
    assert desk.sweep()["lost_reads"] == 1
    desk.hurry(operation)
    desk.step("reads")
    desk.lab.released.set()
    stale.join(60)
    assert desk.call(operation).observation["data"]["id"] == "new"
    assert desk.run(operation).state == "COMPLETED"


def test_inc_60_runs_whose_owner_died_do_not_stay_running(desk: Desk) -> None:
    """One in each state that holds a lease; one sweep finds them all, and another process ends them."""
    asking, reading, writing = (
        desk.submit(DONE),
        desk.submit(READ, DONE),
        desk.submit(calls(call("checked")), DONE),
    )
    with desk.app.database.autocommit() as connection:
        assert operations.claim_turn(connection, asking, 60) is not None
    desk.advance(reading)
    claim_and_die(desk)
    desk.advance(writing)
    desk.lab.will(cut=True)
    desk.step("writes")
    for operation in (asking, reading, writing):
        desk.expire_leases(operation)
    with restarted(desk):
        desk.sweep()
        desk.lab.will(json={"id": "r-1"})
        assert desk.run(writing).state == "COMPLETED"
        assert {desk.run(operation).state for operation in (asking, reading)} == {"COMPLETED"}


def test_inc_61_a_long_read_with_heartbeats_is_not_taken_for_dead(desk: Desk, settings: Settings) -> None:
    """Longer than many leases: each is renewed, and the sweeper leaves it alone."""
    quick = App(settings.model_copy(update={"lease_seconds": 0.6}), desk.app.registry)
    operation = desk.submit(READ, DONE)
    desk.advance(operation)
    desk.lab.will(wait=True)
    worker = threading.Thread(target=dispatch.run_one, args=(quick, "reads", None))
    worker.start()
    leases: set[Any] = set()

    def renewed() -> bool:
        desk.sweep()
        [row] = desk.sql("SELECT lease_until FROM calls WHERE operation_id = :o", o=operation)
        leases.add(row["lease_until"])
        return len(leases) >= 8

    eventually(renewed)
    desk.lab.released.set()
    worker.join(60)
    quick.close()
    assert (desk.call(operation).state, desk.call(operation).attempts) == ("SUCCEEDED", 1)
