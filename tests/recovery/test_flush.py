"""G6: the broker forgets everything while 1,000 operations are queued; default lease (15 s) and sweep (5 s)."""

import os
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from embedded.servers import Servers
from embedded.stack import Worker
from tests.recovery.flush import measure
from tests.recovery.stage import Stage, stage
from tests.recovery.test_dead_workers import report

QUEUED = int(os.environ.get("RECOVERY_QUEUED", "1000"))
SECONDS = 15.0 * max(1.0, QUEUED / 1000 * 0.4)  # 10,000 have 60 s
PUBLISHES = 1.2  # per operation, each of which has one turn
POOL = 8
CAP = 3 * (POOL + 1)  # two workers and the sweeper: each process has its pool, and one connection for its leases
WORKERS = tuple(Worker(f"orchestrator{number}", ("orchestrator",), 16) for number in (1, 2))


@pytest.fixture
def acted(servers: Servers, database_url: str, broker_url: str) -> Iterator[Stage]:
    with stage(servers, database_url, broker_url, {"TURNQUEUE_POOL_SIZE": str(POOL)}) as ready:
        yield ready


@pytest.mark.timeout(900)
def test_queued_operations_are_dispatched_again(acted: Stage, broker_url: str) -> None:
    workers = [acted.worker(worker) for worker in WORKERS]
    acted.sweeper()
    found = measure(acted, broker_url, workers, QUEUED)
    report(f"FLUSHALL: {asdict(found)} (cap of connections {CAP})")
    assert found.claimed_s <= SECONDS
    assert found.publishes_until_ended <= PUBLISHES
    assert found.connections <= CAP
    assert acted.sql("SELECT state, fence, count(*) FROM operations GROUP BY 1, 2") == [("COMPLETED", 1, QUEUED)]
