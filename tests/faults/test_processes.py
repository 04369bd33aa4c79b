"""Workers and sweepers that die, come back under the same name, or are there twice."""

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection

from embedded.servers import Servers
from embedded.stack import Worker
from orchestrator.hints import transport_options
from orchestrator.settings import Settings
from orchestrator.sweeper import _LOCK
from store import operations
from tests.conftest import redis_client
from tests.faults.floor import EXECUTORS, ORCHESTRATOR, Floor, floor, sweeper, worker
from tests.faults.tools import TRIES
from tests.orchestrator.desk import DONE, call, calls
from tests.system.scene import wait_until

SWEEPERS = ("sweeper", "sweeper2", "sweeper3")
LOST = 12
SURPRISES = ("memory", "recursion", "exit")  # of RLIMIT_AS, of a loop, of sys.exit()


@pytest.fixture(scope="module")
def here(servers: Servers, database_url: str, broker_url: str) -> Iterator[Floor]:
    """Two executors of one name, as after a careless copy of a unit file; a prefork pool; three sweepers."""
    twin = Worker("executors", EXECUTORS.queues, 4).process()
    twins = [worker(EXECUTORS), type(twin)("twin", twin.argv, ready=twin.ready)]
    apart = worker(Worker("apart", ("killable",), 1, pool="prefork"))
    processes = [worker(ORCHESTRATOR), *twins, apart, *(sweeper(name) for name in SWEEPERS)]
    with floor(servers, database_url, broker_url, processes) as running:
        yield running


def told(view: Any) -> list[str]:
    return [each.code or each.state for each in view.calls]


# --- F28: a tool that takes its process with it --------------------------------------------------------------------


def test_a_read_that_kills_its_worker_is_given_up(here: Floor) -> None:
    """So many tries, then the model is told; the read beside it is not harmed."""
    operation = here.submit(calls(call("look", text="a"), call("die", text="abort")), DONE)
    view = here.ended(operation)
    assert (view.state, told(view)) == ("COMPLETED", ["SUCCEEDED", "WORKER_LOST"])
    assert view.calls[1].attempts == TRIES


@pytest.mark.parametrize("surprise", SURPRISES)
def test_what_python_can_catch_is_an_error_of_the_tool(here: Floor, surprise: str) -> None:
    before = [here.stack.pid(name) for name in ("executors", "twin")]
    view = here.ended(here.submit(calls(call("die", text=surprise)), DONE))
    assert (view.state, told(view), view.calls[0].attempts) == ("COMPLETED", ["TOOL_ERROR"], 1)
    assert [here.stack.pid(name) for name in ("executors", "twin")] == before


@pytest.mark.parametrize(("tool", "death"), [("die_writing", "segfault"), ("die_writing_apart", "abort")])
def test_a_write_that_kills_its_worker_is_sent_once(here: Floor, tool: str, death: str) -> None:
    before = len(here.lab.effects)
    operation = here.submit(calls(call(tool, text=death, size=1)), DONE)
    wait_until(lambda: any(action.review for action in here.view(operation).actions))
    [action] = here.view(operation).actions
    assert (action.state, action.attempts, len(here.lab.effects)) == ("UNKNOWN", 1, before + 1)


def test_in_a_prefork_pool_only_the_child_dies(here: Floor) -> None:
    """The worker goes on with a new child, which has connections of its own."""
    before = here.stack.pid("apart")
    view = here.ended(here.submit(calls(call("die_apart", text="killed")), calls(call("look_apart", text="a")), DONE))
    assert (view.state, told(view)) == ("COMPLETED", ["WORKER_LOST", "SUCCEEDED"])
    assert here.stack.pid("apart") == before


# --- F24: a name that is used again --------------------------------------------------------------------------------


def test_a_restarted_worker_does_not_take_its_earlier_leases_for_its_own(here: Floor) -> None:
    """Two workers of one name and host, both killed in the middle of their reads and started again."""
    asked = len(here.lab.seen)
    for _ in range(6):
        here.lab.will(wait=True)
    running = [here.submit(calls(call("look", text=str(number))), DONE) for number in range(6)]
    wait_until(lambda: len(here.lab.seen) >= asked + 6)
    held = attempts(here, running)
    assert len({row["worker"] for row in held}) == 2, "each boot has a name of its own"
    for name in ("executors", "twin"):
        here.stack.kill(name)
    here.stack.wait_ready(90)
    assert {here.ended(operation).state for operation in running} == {"COMPLETED"}
    after = attempts(here, running)
    assert [(row["number"], row["state"]) for row in after] == [(1, "LOST"), (2, "SUCCEEDED")] * 6
    assert {row["worker"] for row in after if row["number"] == 2}.isdisjoint(row["worker"] for row in held)
    here.lab.released.set()
    here.lab.released.clear()


def attempts(here: Floor, running: list[str]) -> list[dict[str, Any]]:
    statement = (
        "SELECT operation_id, number, state, worker FROM attempts WHERE operation_id = ANY(:many) "
        "ORDER BY operation_id, number"
    )
    return here.sql(statement, many=running)


# --- F3: a message that comes again while its work is under way ----------------------------------------------------


def test_a_message_restored_by_the_broker_starts_nothing_twice(here: Floor, broker_url: str) -> None:
    """As when a step takes longer than the visibility timeout: the client library puts unacknowledged messages back."""
    sent = len(here.lab.seen)
    for _ in range(3):
        here.lab.will(wait=True)
    running = [here.submit(calls(call("write", text=f"restored-{number}")), DONE) for number in range(3)]
    wait_until(lambda: len(here.lab.seen) >= sent + 3)
    restored = 0
    with redis_client(broker_url) as redis:
        for _ in range(3):
            waiting = redis.hlen("turnqueue:unacked")
            restore(broker_url)
            restored += waiting
            wait_until(lambda: redis.llen("turnqueue:writes") == 0)
    assert restored >= 3
    here.lab.released.set()
    for operation in running:
        view = here.ended(operation)
        assert (view.state, [(a.state, a.attempts) for a in view.actions]) == ("COMPLETED", [("SUCCEEDED", 1)])
    here.lab.released.clear()
    assert len(here.lab.seen) == sent + 3


def restore(broker_url: str) -> None:
    settings = Settings(broker_url=broker_url)
    impatient = transport_options(settings) | {"visibility_timeout": 0, "unacked_restore_throttle": 0}
    with Connection(broker_url, transport_options=impatient) as connection:
        channel: Any = connection.default_channel
        channel.qos.restore_visible(num=100)


# --- F23, F38: more sweepers than one, and fewer -------------------------------------------------------------------


def leaders(here: Floor) -> list[int]:
    """Backends that hold the sweepers' lock; the waiting ones ask for it again and again."""
    statement = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = :lock "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return [row["pid"] for row in here.sql(statement, lock=_LOCK)]


def test_one_of_three_sweepers_dies_in_the_middle_of_a_batch(here: Floor) -> None:
    """Another takes over; each row is repaired once, and two never sweep at once."""
    wait_until(lambda: len(leaders(here)) == 1)
    before, first = here.killed(), leaders(here)
    here.arm("sweeper.repaired", LOST // 2)
    lost = [abandoned(here) for _ in range(LOST)]
    counts: set[int] = set()

    def over() -> bool:
        counts.add(len(leaders(here)))
        return len(here.killed()) > len(before) and all(here.view(each).ended_at is not None for each in lost)

    wait_until(over)
    assert counts <= {0, 1}
    assert leaders(here) != first
    assert {here.view(operation).state for operation in lost} == {"COMPLETED"}
    assert {here.audited(operation, "turn.lost") for operation in lost} == {1}
    dead = here.killed()[-1]
    assert dead not in {here.stack.pid(name) for name in SWEEPERS}


def abandoned(here: Floor) -> str:
    """An operation whose turn was claimed by a worker that is no more."""
    operation = here.submit(DONE)
    with here.app.database.autocommit() as connection:
        claimed = operations.claim_turn(connection, operation, 0.0)
    return operation if claimed is not None else abandoned(here)


def test_without_a_sweeper_nothing_is_lost(here: Floor) -> None:
    """Hints alone carry what goes well; what was abandoned waits until one is there again."""
    for name in SWEEPERS:
        here.stack.kill(name, restart=False)
    assert here.ended(here.submit(calls(call("look", text="a"), call("write", text="b")), DONE)).state == "COMPLETED"
    operation = abandoned(here)
    assert here.ended(here.submit(DONE)).state == "COMPLETED"
    assert here.view(operation).state == "MODEL_REQUESTED"
    here.stack.restart("sweeper3")
    assert here.ended(operation).state == "COMPLETED"
