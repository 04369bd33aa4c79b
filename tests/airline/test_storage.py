"""The writes that would do harm when repeated: what they do without a key, and that one key is one effect."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from examples.airline.tools import AIRLINE
from examples.worlds.storage import Store
from executors.outcomes import Absent, Applied, NotApplied
from tests.replay.desk import Answer, Desk
from tests.replay.recordings import PlainWorld
from tests.replay.workload import Call, Workload, digest

THREADS = 20
OWNER = "raj_brown_5782"
CANCEL = Call("cancel_reservation", {"reservation_id": "VA5SGQ"})
CERTIFICATE = Call("send_certificate", {"user_id": OWNER, "amount": 50})


def booking(workload: Workload) -> Call:
    """The one booking of the benchmark that succeeds when it is repeated."""
    task = next(task for task in workload.tasks if task.subject == OWNER)
    return next(action.call for action in task.actions if action.call.tool == "book_reservation")


@pytest.fixture(params=["book_reservation", "cancel_reservation", "send_certificate"])
def harmful(request: pytest.FixtureRequest, workload: Workload) -> Call:
    calls = [booking(workload), CANCEL, CERTIFICATE]
    return next(call for call in calls if call.tool == request.param)


def state_after(workload: Workload, call: Call, times: int) -> str:
    """Digest of the whole state, worked out without the store."""
    world = PlainWorld(workload.state())
    for _ in range(times):
        AIRLINE.apply(world, call.tool, call.arguments)
    state = workload.state()
    for (table, key), record in world.changed.items():
        state[table][key] = record
    return digest(state)


def test_one_key_in_twenty_threads_is_one_effect(desk: Desk, store: Store, workload: Workload, harmful: Call) -> None:
    barrier, world = Barrier(THREADS), f"race-{harmful.tool}"

    def submit(_: int) -> Answer:
        barrier.wait()
        return desk.call(world, harmful, OWNER, key=world)

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(submit, range(THREADS)))
    assert answers[0].data is not None
    assert all(answer == answers[0] for answer in answers)
    assert len(store.effects([world])) == 1
    assert store.state_digest(world) == state_after(workload, harmful, 1)


def test_two_keys_are_two_effects(desk: Desk, store: Store, workload: Workload, harmful: Call) -> None:
    """The canary is alive: the domain itself does not stop a repetition."""
    world = f"twice-{harmful.tool}"
    answers = [desk.call(world, harmful, OWNER, key=f"{world}-{n}") for n in range(2)]
    assert all(answer.data is not None for answer in answers)
    assert len(store.effects([world])) == 2
    assert store.state_digest(world) == state_after(workload, harmful, 2) != state_after(workload, harmful, 1)


def test_reconciliation_finds_what_was_applied(desk: Desk, harmful: Call) -> None:
    world = f"found-{harmful.tool}"
    assert desk.reconcile(world, harmful, world) == Absent()
    answer = desk.call(world, harmful, OWNER, key=world)
    outcome = desk.reconcile(world, harmful, world)
    assert isinstance(outcome, Applied)
    assert outcome.result.model_dump(mode="json") == answer.data


def test_a_refusal_is_kept_under_its_key(desk: Desk, store: Store) -> None:
    call = Call("cancel_reservation", {"reservation_id": "ZZZZZZ"})
    assert desk.call("refusal", call, None, key="refused") == Answer(error="Reservation ZZZZZZ not found")
    outcome = desk.reconcile("refusal", call, "refused")
    assert outcome == NotApplied("RESERVATION_NOT_FOUND", "Reservation ZZZZZZ not found")
    assert store.effects(["refusal"]) == []


def test_bookings_at_the_same_time_get_different_ids_and_seats(desk: Desk, store: Store, workload: Workload) -> None:
    """Three ids for twenty bookings by keys of their own: three effects, the others are refused."""
    call, barrier = booking(workload), Barrier(THREADS)

    def submit(number: int) -> Answer:
        barrier.wait()
        return desk.call("ids", call, OWNER, key=f"booking-{number}")

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(submit, range(THREADS)))
    booked = [answer.data["reservation_id"] for answer in answers if answer.data is not None]
    assert sorted(booked) == ["HATHAT", "HATHAU", "HATHAV"]
    assert {answer.error for answer in answers if answer.data is None} == {"Too many reservations"}
    assert len(store.effects(["ids"])) == 3
    assert store.state_digest("ids") == state_after(workload, call, 3)
