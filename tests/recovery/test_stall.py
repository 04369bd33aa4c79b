"""A worker that is connected and is given no work leaves, and its supervisor starts another; nobody else does."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from embedded.keeper import first_line_number, live_postgres
from embedded.layout import prepare
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import CELERY_READY, Stack, Worker
from embedded.supervisor import CrashLimit
from orchestrator.watchdog import EXIT_NOT_CONSUMING, RECONNECT_SECONDS, Seen, Stall
from tests.recovery.stage import DONE, EXECUTORS, ORCHESTRATOR, QUICK, Stage, calls, stage
from tests.system.scene import wait_until

STALL = 3.0
IDLE = Seen(received=7, connected=True, room=True, queues=("reads",))

# --- the decision --------------------------------------------------------------------------------------------------


def leaves(seen: Callable[[float], Seen], work: Callable[[float], bool], until: float) -> float | None:
    """When the worker leaves, looking every second; None: it stays."""
    stall = Stall(30.0)
    for now in range(int(until)):
        if stall.observe(now, seen(now), lambda now=now: work(now)):  # type: ignore[misc]
            return float(now)
    return None


def always(_: float) -> bool:
    return True


def test_it_leaves_when_work_waits_and_none_is_given() -> None:
    assert leaves(lambda now: IDLE, always, 100) == 31.0


def test_it_stays_without_work() -> None:
    assert leaves(lambda now: IDLE, lambda now: False, 1000) is None


def test_work_that_others_take_in_time_is_no_stall() -> None:
    assert leaves(lambda now: IDLE, lambda now: now % 20 != 0, 1000) is None


def test_it_stays_while_its_places_are_taken() -> None:
    assert leaves(lambda now: Seen(7, connected=True, room=False, queues=()), always, 1000) is None


def test_every_message_begins_the_time_anew() -> None:
    assert leaves(lambda now: Seen(int(now) // 29, connected=True, room=True, queues=()), always, 1000) is None
    assert leaves(lambda now: Seen(int(min(now, 58)) // 29, connected=True, room=True, queues=()), always, 100) == 89.0


def test_one_that_is_not_connected_has_the_time_of_a_reconnect_besides() -> None:
    away = Seen(7, connected=False, room=True, queues=())
    assert leaves(lambda now: away, always, 200) == 31.0 + RECONNECT_SECONDS


# --- real workers --------------------------------------------------------------------------------------------------


@pytest.fixture
def own() -> Iterator[tuple[EmbeddedServers, Servers]]:
    """Servers that may be stopped and killed."""
    home = Path(tempfile.mkdtemp(prefix="tq-"))
    embedded = EmbeddedServers(home, {})
    with embedded as servers:
        yield embedded, servers
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def acted(own: tuple[EmbeddedServers, Servers], tmp_path: Path) -> Iterator[Stage]:
    env = {
        **QUICK, "TURNQUEUE_STALL_SECONDS": str(STALL), "HAZARD_DEAF": str(tmp_path),
        "TURNQUEUE_HEARTBEAT_FILE": str(tmp_path / "heart"),
    }  # fmt: skip
    servers = own[1]
    with stage(servers, servers.database_url, servers.broker_url, env) as ready:
        yield ready


def go_deaf(acted: Stage, worker: str, how: str) -> None:
    file = Path(acted.env["HAZARD_DEAF"]) / worker
    file.with_suffix(".new").write_text(how)
    file.with_suffix(".new").rename(file)
    wait_until(lambda: not file.exists())


@pytest.mark.parametrize("how", ["cancel", pytest.param("hang", marks=pytest.mark.campaign)])
def test_a_worker_that_goes_deaf_is_replaced_and_the_work_ends(
    own: tuple[EmbeddedServers, Servers], acted: Stage, how: str
) -> None:
    """`cancel`: subscribed to nothing, while its connection is well and its heart beats; `hang`: its loop stands still.
    The supervisor is that of `turnqueue up`."""
    log = acted.folder / "orchestrator.log"
    with ExitStack() as opened:
        stack = Stack(
            own[1], env=acted.env, log_dir=acted.folder, workers=[ORCHESTRATOR, EXECUTORS], migrate=None,
            crash_limit=CrashLimit(6, 20.0),
        )  # fmt: skip
        opened.enter_context(stack)
        stack.wait_ready()
        first = stack.pid("orchestrator")
        assert acted.finish(acted.submit(calls("look"), DONE))[0].state == "COMPLETED"
        go_deaf(acted, "orchestrator", how)
        operations = [acted.submit(calls("look"), DONE) for _ in range(8)]
        assert {view.state for view in acted.finish(*operations)} == {"COMPLETED"}
        assert stack.pid("orchestrator") != first
        stack.check()
    said = log.read_text()
    assert '"code": "NOT_CONSUMING"' in said
    assert said.count(CELERY_READY) == 2


def test_its_exit_status_and_that_it_lets_its_steps_end(acted: Stage) -> None:
    """What it has in hand is recorded before it goes."""
    acted.ledger.control(faults={"late": 1.0}, late_s=4 * STALL)
    acted.worker(ORCHESTRATOR)
    executors = acted.worker(EXECUTORS)
    write = acted.submit(calls("pay_lookup"), DONE)
    wait_until(lambda: acted.arrived() == 1)
    acted.ledger.control(faults={})
    go_deaf(acted, "executors", "cancel")
    acted.sweeper()
    acted.submit(calls("look"), DONE)
    wait_until(lambda: executors.process.poll() is not None)
    assert executors.process.returncode == EXIT_NOT_CONSUMING
    [action] = acted.view(write).actions
    assert (action.state, action.attempts) == ("SUCCEEDED", 1)
    assert [each.state for each in acted.view(write).attempts] == ["SUCCEEDED"]


def windows(acted: Stage, number: int = 3) -> None:
    """Wait for so many times the time after which a worker would leave: its heart beats every 2 s."""
    heart = Path(acted.env["TURNQUEUE_HEARTBEAT_FILE"])
    for _ in range(int(number * STALL / 2) + 1):
        os.utime(heart, (0, 0))
        wait_until(lambda: heart.stat().st_mtime > 0)


def test_idle_and_busy_workers_stay(acted: Stage) -> None:
    worker = acted.worker(Worker("all", ("orchestrator", "reads", "writes"), 2))
    acted.sweeper()
    windows(acted)  # nothing to do
    assert worker.process.poll() is None
    acted.ledger.control(faults={"late": 1.0}, late_s=5 * STALL)
    operations = [acted.submit(calls("look", "look", "look"), DONE) for _ in range(2)]
    wait_until(lambda: acted.arrived() == 2)
    windows(acted)  # both places taken, hints and due rows wait
    assert worker.process.poll() is None
    acted.ledger.control(faults={})
    assert {view.state for view in acted.finish(*operations)} == {"COMPLETED"}
    assert not worker.said("NOT_CONSUMING")


def test_a_database_that_is_paused_and_a_broker_that_is_away_are_no_stall(
    own: tuple[EmbeddedServers, Servers], acted: Stage
) -> None:
    embedded, servers = own
    layout = prepare(servers.data_dir)
    worker = acted.worker(Worker("all", ("orchestrator", "reads", "writes"), 8))
    acted.sweeper()
    assert acted.finish(acted.submit(calls("look"), DONE))[0].state == "COMPLETED"
    operations = [acted.submit(DONE, delay=1.0) for _ in range(4)]
    postmaster = live_postgres(layout.cluster)
    assert postmaster is not None
    backends = [postmaster, *_children(postmaster)]
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        windows(acted)
    finally:
        for pid in backends:
            os.kill(pid, signal.SIGCONT)
    assert worker.process.poll() is None
    assert {view.state for view in acted.finish(*operations)} == {"COMPLETED"}

    broker = first_line_number(layout.files.valkey_pid)
    assert broker is not None
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: worker.said("Connection to broker lost"))
    more = [acted.submit(calls("look"), DONE) for _ in range(2)]
    windows(acted)
    assert worker.process.poll() is None
    embedded.ensure()
    assert {view.state for view in acted.finish(*more)} == {"COMPLETED"}
    assert worker.process.poll() is None
    assert not worker.said("NOT_CONSUMING")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
