"""Many operations are queued, the broker forgets everything: how long until each is dispatched again, at what cost.

Dispatched again means claimed: a worker has taken the operation's turn. Publishes are what the broker counts (LPUSH),
whoever sent them; connections are those that PostgreSQL counts, looked at every 50 ms.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.conftest import redis_client
from tests.recovery.stage import DONE, Program, Stage, calls
from tests.system.scene import wait_until

_LOOK = """
    SELECT clock_timestamp(), count(*) FILTER (WHERE fence > 0), count(*) FILTER (WHERE ended_at IS NOT NULL),
           (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())
    FROM operations
"""


@dataclass(frozen=True)
class Figures:
    """Seconds from the flush on the database's clock; publishes per operation."""

    queued: int
    claimed_s: float
    ended_s: float
    publishes_until_claimed: float
    publishes_until_ended: float
    connections: int


def freeze(workers: Sequence[Program], broker_url: str) -> None:
    """Stopped while connected; none of them is in the middle of taking a message."""
    for worker in workers:
        os.killpg(worker.process.pid, signal.SIGSTOP)
    with redis_client(broker_url) as broker:
        wait_until(lambda: broker.info("clients")["blocked_clients"] == 0)


def pushed(broker_url: str) -> int:
    with redis_client(broker_url) as broker:
        return int(broker.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"])


def measure(acted: Stage, broker_url: str, workers: Sequence[Program], queued: int, *, read: bool = False) -> Figures:
    """`workers` and a sweeper run, and nothing else is in the database; with `read` each operation reads once first."""
    freeze(workers, broker_url)
    for _ in range(queued):
        acted.submit(*([calls("look")] if read else []), DONE)
    acted.app.close()  # the connections that are counted are those of the installation
    assert acted.sql(_LOOK)[0][1] == 0

    before = pushed(broker_url)
    with redis_client(broker_url) as broker:
        broker.flushall()
    [(flushed,)] = acted.sql("SELECT clock_timestamp()")
    for worker in workers:
        os.killpg(worker.process.pid, signal.SIGCONT)
    connections, first = 0, (0.0, 0)
    while True:
        at, claimed, ended, held = acted.sql(_LOOK)[0]
        seconds = (at - flushed).total_seconds()
        connections = max(connections, held)
        if claimed == queued and not first[0]:
            first = seconds, pushed(broker_url) - before
        if ended == queued:
            break
        assert seconds < 60 + queued, (claimed, ended)
        time.sleep(0.05)
    all_pushed = (pushed(broker_url) - before) / queued
    return Figures(queued, first[0], seconds, first[1] / queued, all_pushed, connections)
