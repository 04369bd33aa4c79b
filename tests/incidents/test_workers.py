"""Reports about workers and brokers that stop and start again: real processes, and a broker of this module's own."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from embedded.databases import create_database
from embedded.servers import EmbeddedServers
from orchestrator.domain.errors import Unavailable
from tests.conftest import redis_client
from tests.embedded.conftest import valkey_pid
from tests.system.scene import Scene, scene, wait_until

pytestmark = pytest.mark.timeout(290)
_ORDERS = count(700_000, 7)


@dataclass
class Plant:
    """A running installation whose broker can be killed."""

    scene: Scene
    held: EmbeddedServers
    home: Path
    broker_url: str

    def restart_broker(self) -> None:
        """SIGKILL: nothing is saved. Then an empty one takes its place."""
        pid = valkey_pid(self.home)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: valkey_pid(self.home) is None)
        self.held.ensure()

    def slow(self, endpoint: str, *, seconds: float, times: int) -> None:
        """The shop works as usual, and takes its time."""
        fault = {"endpoint": endpoint, "kind": "delay", "seconds": seconds, "times": times}
        headers = {"Authorization": f"Bearer {self.scene.shop.token}"}
        self.scene.app.tool_http.post(
            f"{self.scene.shop.url}/control/faults", json=fault, headers=headers
        ).raise_for_status()

    def submit(self, many: int) -> dict[str, str]:
        """Operations by their orders."""
        orders = [f"ORD-{next(_ORDERS):06}" for _ in range(many)]
        return {order: self.scene.submit(order) for order in orders}

    def under_way(self, operations: dict[str, str], turns: int) -> None:
        wait_until(lambda: any(self.scene.view(each).turns >= turns for each in operations.values()))

    def all_end_once(self, operations: dict[str, str]) -> None:
        """Every run completes, and the shop's ledger has each effect once."""
        views = self.scene.finish(*operations.values())
        assert {view.state for view in views} == {"COMPLETED"}
        for order in operations:
            assert sorted(row.kind for row in self.scene.ledger(order)) == ["refund", "refund_draft"]


@pytest.fixture(scope="module")
def plant() -> Iterator[Plant]:
    # Not tmp_path: as root the servers run as another user, who cannot enter pytest's private directory.
    home = Path(tempfile.mkdtemp(prefix="tq-"))
    held = EmbeddedServers(home, environ={})
    try:
        servers = held.start()
        database_url = create_database(servers.database_url, "incidents")
        with scene(servers, database_url, servers.broker_url) as running:
            yield Plant(running, held, home, servers.broker_url)
    finally:
        held.stop()
        shutil.rmtree(home, ignore_errors=True)


def test_inc_05_the_broker_restarts_between_a_write_and_its_acknowledgement(plant: Plant) -> None:
    """Its message is acknowledged when the write is recorded; until then the broker dies and forgets it."""
    plant.slow("POST /refund-drafts", seconds=2.0, times=4)
    operations = plant.submit(4)

    def writing() -> bool:
        states = [action.state for each in operations.values() for action in plant.scene.view(each).actions]
        return "STARTED" in states

    wait_until(writing)
    plant.restart_broker()
    plant.all_end_once(operations)


def test_inc_08_sigterm_under_load(plant: Plant) -> None:
    operations = plant.submit(10)
    for turn in range(4):
        plant.under_way(operations, min(turn, 2))
        plant.scene.stack.restart(("orchestrator", "executors")[turn % 2])
    plant.all_end_once(operations)


def test_inc_09_flushall_in_the_middle_of_a_hundred_runs(plant: Plant) -> None:
    operations = plant.submit(100)
    with redis_client(plant.broker_url) as broker:
        for turns in (1, 2, 3):
            wait_until(
                lambda turns=turns: any(
                    plant.scene.view(each).turns >= turns for each in list(operations.values())[::9]
                )
            )
            broker.flushall()
        plant.all_end_once(operations)


def test_inc_10_the_broker_restarts_while_workers_idle(plant: Plant) -> None:
    plant.restart_broker()
    canary = plant.submit(1)
    plant.all_end_once(canary)


def test_inc_60_every_worker_is_killed_and_new_ones_start(plant: Plant) -> None:
    operations = plant.submit(10)
    for turns in (1, 2):
        plant.under_way(operations, turns)
        for name in ("orchestrator", "executors", "sweeper"):
            try:
                plant.scene.stack.kill(name)
            except Unavailable:  # it was just being started again, which is as dead
                continue
    plant.all_end_once(operations)
