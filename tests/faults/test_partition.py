"""F37: an executor that reaches its broker and not the database, or the database and not its broker. Everybody else
reaches everything.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from embedded.servers import Servers
from tests.chaos.proxy import Proxy, target, through
from tests.conftest import redis_client
from tests.faults.floor import EXECUTORS, ORCHESTRATOR, Floor, floor, sweeper, worker
from tests.orchestrator.desk import DONE, call, calls
from tests.system.scene import wait_until


@dataclass
class Island:
    floor: Floor
    to_database: Proxy
    to_broker: Proxy


@pytest.fixture(scope="module")
def island(servers: Servers, database_url: str, broker_url: str) -> Iterator[Island]:
    with Proxy(target(database_url)) as to_database, Proxy(target(broker_url)) as to_broker:
        env = {
            "TURNQUEUE_DATABASE_URL": through(database_url, to_database.address),
            "TURNQUEUE_BROKER_URL": through(broker_url, to_broker.address),
        }
        processes = [worker(ORCHESTRATOR), worker(EXECUTORS, **env), sweeper()]
        with floor(servers, database_url, broker_url, processes) as running:
            yield Island(running, to_database, to_broker)


@contextmanager
def cut(way: Proxy) -> Iterator[None]:
    """What is open is reset, what is new is refused."""
    way.control(refuse=True, reset_all=True)
    try:
        yield
    finally:
        way.heal()


def started(here: Floor, operation: str) -> bool:
    return any(action.state == "STARTED" for action in here.view(operation).actions)


@pytest.mark.parametrize(("tool", "state"), [("checked", "SUCCEEDED"), ("write", "UNKNOWN")])
def test_no_effect_without_the_database(island: Island, broker_url: str, tool: str, state: str) -> None:
    """One write is under way when the way to the database is cut, another becomes due while it is."""
    here, before = island.floor, len(island.floor.lab.seen)
    here.lab.released.clear()
    here.lab.will(wait=True)
    under_way = here.submit(calls(call(tool, text=f"first-{tool}")), DONE)
    wait_until(lambda: len(here.lab.seen) > before and started(here, under_way))
    with cut(island.to_database), redis_client(broker_url) as redis:
        here.lab.released.set()  # the answer comes; nobody can record it, and its lease runs out
        wait_until(lambda: here.view(under_way).actions[0].state == "UNKNOWN")
        waiting = here.submit(calls(call(tool, text=f"second-{tool}")), DONE)
        wait_until(lambda: bool(here.view(waiting).actions))
        wait_until(lambda: redis.llen("turnqueue:writes") == 0)  # its message is taken, by a worker that cannot look
        assert [seen.path for seen in here.lab.seen[before:]] == [f"/notes/first-{tool}"]
        assert here.view(waiting).actions[0].state == "READY"
    assert here.ended(waiting).state == "COMPLETED"
    if tool == "checked":
        assert here.ended(under_way).state == "COMPLETED", "the downstream was asked"
    else:
        wait_until(lambda: here.view(under_way).actions[0].review)
    assert here.view(under_way).actions[0].state == state
    sent = [seen.path for seen in here.lab.effects if seen.path.endswith(f"-{tool}")]
    assert sent == [f"/notes/first-{tool}", f"/notes/second-{tool}"]


def test_without_the_broker_what_is_under_way_is_recorded(island: Island) -> None:
    """And what is due waits in the database; the sweeper's messages find the worker when it is back."""
    here, before = island.floor, len(island.floor.lab.seen)
    here.lab.released.clear()
    here.lab.will(wait=True)
    under_way = here.submit(calls(call("write", text="third")), DONE)
    wait_until(lambda: len(here.lab.seen) > before and started(here, under_way))
    with cut(island.to_broker):
        here.lab.released.set()
        assert here.ended(under_way).state == "COMPLETED"
        waiting = here.submit(calls(call("look", text="fourth"), call("write", text="fifth")), DONE)
        wait_until(lambda: len(here.view(waiting).calls) == 2)
        refused = island.to_broker.counts()["connections"]
    assert here.ended(waiting).state == "COMPLETED"
    assert {(attempt.number, attempt.state) for attempt in here.view(waiting).attempts} == {(1, "SUCCEEDED")}
    assert [seen.path for seen in here.lab.effects[-2:]] == ["/notes/third", "/notes/fifth"]
    assert island.to_broker.counts()["connections"] > refused, "it has connected again"
