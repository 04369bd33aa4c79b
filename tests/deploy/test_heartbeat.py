"""The worker's heartbeat outlives a broker's outage: the loop that beats is rebuilt with each connection."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.keeper import live_valkey
from embedded.layout import socket_dir
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import Stack, Worker
from tests.system.scene import PATIENCE, wait_until


@pytest.fixture
def own_broker(database_url: str) -> Iterator[tuple[EmbeddedServers, Servers]]:
    """A broker that may be killed; the database is the session's."""
    home = Path(tempfile.mkdtemp(prefix="tq-hb-"))
    embedded = EmbeddedServers(home, {"TURNQUEUE_DATABASE_URL": database_url})
    with embedded as servers:
        yield embedded, servers
    shutil.rmtree(home, ignore_errors=True)


def test_it_beats_before_during_and_after_an_outage(
    own_broker: tuple[EmbeddedServers, Servers], tmp_path: Path
) -> None:
    embedded, servers = own_broker
    heart = tmp_path / "heartbeat"
    worker = Worker("reads", ("reads",), 2)
    stack = Stack(
        servers, env={"TURNQUEUE_HEARTBEAT_FILE": str(heart)}, workers=[worker], sweeper=None, log_dir=tmp_path
    )

    def beats() -> None:
        os.utime(heart, (0, 0))
        wait_until(lambda: heart.stat().st_mtime > 0)

    with stack:
        stack.wait_ready(PATIENCE)
        first = stack.pid("reads")
        beats()
        pid = live_valkey(socket_dir(servers.data_dir) / "valkey.sock", servers.data_dir / "servers" / "valkey.pid")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "Connection to broker lost" in stack.tail("reads", 200))
        beats()
        embedded.ensure()
        wait_until(lambda: stack.tail("reads", 200).count("Connected to redis") == 2)
        beats()
        beats()  # not the one beat of the start, but those of the new loop's timer
        assert stack.pid("reads") == first
