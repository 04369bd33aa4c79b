"""Keys, locks and the ledger, under threads that want the same thing at the same time."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import psycopg
import pytest

from examples.retail import semantics
from examples.worlds.storage import KeyConflict, Store, Write
from examples.worlds.world import Record, Refusal, World
from executors.outcomes import Absent, Applied, NotApplied
from tests.replay.desk import Answer, Desk
from tests.replay.workload import Action, Call, Workload, digest

THREADS = 20


def first_write(workload: Workload, tool: str) -> tuple[Action, str | None]:
    return next(
        (action, task.subject)
        for task in workload.tasks
        for action in task.actions[:]
        if action.call.tool == tool and action.error is None and sum(a.writes for a in task.actions) == 1
    )


def test_one_key_in_twenty_threads_is_one_effect(desk: Desk, store: Store, workload: Workload) -> None:
    action, subject = first_write(workload, "return_delivered_order_items")
    barrier = Barrier(THREADS)

    def submit(_: int) -> Answer:
        barrier.wait()
        return desk.call("race", action.call, subject, key="one-key")

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(submit, range(THREADS)))
    assert answers[0].data is not None
    assert all(answer == answers[0] for answer in answers)
    assert len(store.effects(["race"])) == 1


def test_many_keys_on_one_order_are_one_effect_and_refusals(desk: Desk, store: Store, workload: Workload) -> None:
    action, subject = first_write(workload, "return_delivered_order_items")
    barrier = Barrier(THREADS)

    def submit(number: int) -> Answer:
        barrier.wait()
        return desk.call("keys", action.call, subject, key=f"key-{number}")

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(submit, range(THREADS)))
    refused = Answer(error="Non-delivered order cannot be returned")
    assert sorted(a.error or "" for a in answers) == ["", *[refused.error] * (THREADS - 1)]
    assert len(store.effects(["keys"])) == 1


def test_concurrent_refunds_to_one_gift_card_are_all_counted(store: Store) -> None:
    """Writes that meet in one user's record (through different orders) lose no update."""

    def spend(world: World, amount: float) -> Record:
        user = semantics.get_user_details(world, user_id="yusuf_rossi_9620")
        changed = {**user, "spent": user.get("spent", 0.0) + amount}
        world.put("users", "yusuf_rossi_9620", changed)
        return changed

    def write(number: int) -> None:
        arguments = {"user_id": "yusuf_rossi_9620", "number": number}
        store.write(Write("sum", f"sum-{number}", "spend", arguments, partial(spend, amount=1.0), semantics.touched))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, range(200)))
    total = store.read("sum", lambda world: semantics.get_user_details(world, user_id="yusuf_rossi_9620"))["spent"]
    assert total == 200.0


def test_a_key_with_another_request_is_a_conflict(store: Store) -> None:
    def note(world: World) -> str:
        return semantics.transfer_to_human_agents(world, summary="x")

    def write(world: str, summary: str) -> object:
        return store.write(Write(world, "note", "transfer", {"summary": summary}, note, semantics.touched))

    assert write("a", "x") == write("a", "x") == "Transfer successful"
    for world, summary in (("a", "y"), ("b", "x")):
        with pytest.raises(KeyConflict):
            write(world, summary)
    assert len(store.effects(["a", "b"])) == 1


def test_a_refusal_is_kept_under_its_key(desk: Desk, store: Store) -> None:
    call = Call("cancel_pending_order", {"order_id": "#W0000000", "reason": "no longer needed"})
    assert desk.call("refusal", call, None, key="refused") == Answer(error="Order not found")
    assert desk.reconcile("refusal", call, "refused") == NotApplied("ORDER_NOT_FOUND", "Order not found")
    assert store.effects(["refusal"]) == []


def test_reconciliation_finds_what_was_applied(desk: Desk, workload: Workload) -> None:
    action, subject = first_write(workload, "cancel_pending_order")
    assert desk.reconcile("found", action.call, "found-key") == Absent()
    answer = desk.call("found", action.call, subject, key="found-key")
    outcome = desk.reconcile("found", action.call, "found-key")
    assert isinstance(outcome, Applied)
    assert outcome.result.model_dump(mode="json") == answer.data


def test_added_records_count_in_the_digest_wherever_their_names_sort(store: Store, workload: Workload) -> None:
    added: dict[str, Record] = {"aaa": {"n": 1}, "zzz": {"n": 1.5}, "\U0001f600": {}, "\ufb33": {"x": None}}

    def add(world: World) -> None:
        for key, record in added.items():
            world.put("users", key, record)
        world.put("notes", "1", {"text": "a table of its own"})

    store.write(Write("added", "added-key", "add", {}, add, lambda *_: []))
    state = workload.state()
    whole = {**state, "users": {**state["users"], **added}, "notes": {"1": {"text": "a table of its own"}}}
    assert store.state_digest("added") == digest(whole)
    assert list(store.read("added", lambda world: dict(world.all("users"))))[-4:] == list(added)


def test_a_write_that_breaks_leaves_nothing(store: Store) -> None:
    def breaks(world: World) -> None:
        world.put("users", "yusuf_rossi_9620", {})
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError):
        store.write(Write("broken", "broken-key", "breaks", {}, breaks, semantics.touched))
    assert store.lookup("broken-key") is None
    assert store.effects(["broken"]) == []


def test_the_ledger_can_only_grow(desk: Desk, store: Store, database_url: str) -> None:
    desk.call("ledger", Call("transfer_to_human_agents", {"summary": "help"}), None)
    with psycopg.connect(database_url.replace("+psycopg", "")) as conn, pytest.raises(psycopg.Error, match="append"):
        conn.execute("DELETE FROM retail.effects")


def test_another_starting_state_is_refused(store: Store, workload: Workload) -> None:
    assert store.seed(workload.state()) == workload.base_digest
    with pytest.raises(ValueError, match="fresh database"):
        store.seed({"orders": {}})


@pytest.mark.parametrize("order_id", ["#W\0", "\ud800", "", "#W" + "9" * 5000])
def test_ids_that_cannot_exist_are_not_found(store: Store, order_id: str) -> None:
    with pytest.raises(Refusal, match="Order not found"):
        store.read("odd", lambda world: semantics.get_order_details(world, order_id=order_id))
