"""What RabbitMQ does that Redis does not: alarms, acknowledgement timeouts, returned messages, quorum queues, a disk.

`TQ_TEST_BROKER=amqp` runs the other tests on it.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import amqp
import pytest

from embedded.servers import Servers
from examples.enqueue_service.desk import Desk, Ticket
from examples.support.scenario import SUBJECT, TENANT
from orchestrator.hints import CORE_QUEUES, SUBMIT_QUEUE
from tests.brokers.access import put, waiting
from tests.brokers.rabbitmq import USER, RabbitMQ, channel
from tests.cli.conftest import Shell
from tests.cli.test_demo import check
from tests.embedded.conftest import assert_stopped
from tests.system.scene import WORKERS, Scene, scene, wait_until

ACKNOWLEDGED_WITHIN = 3.0  # seconds, on this server; 30 minutes by default
ORDERS = count(700000, 10)
QUORUM = "quorum"


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMQ]:
    folder = Path(tempfile.mkdtemp(prefix="tq-rabbit-"))
    # The second term says how often the first is looked at.
    impatient = {"consumer_timeout": str(int(ACKNOWLEDGED_WITHIN * 1000)), "channel_tick_interval": "500"}
    try:
        with RabbitMQ(folder, impatient) as running:
            yield running
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def here(servers: Servers, database_url: str, rabbit: RabbitMQ) -> Iterator[Scene]:
    with scene(servers, database_url, rabbit.url(1)) as running:
        yield running


def order() -> str:
    return f"ORD-{next(ORDERS):06}"


def pids(here: Scene) -> list[int]:
    return [here.stack.pid(worker.name) for worker in WORKERS]


def completed(here: Scene, operation_id: str) -> bool:
    [view] = here.finish(operation_id)
    assert view.state == "COMPLETED", (view.state, view.reason)
    return True


# --- acknowledgements ----------------------------------------------------------------------------------------------


def test_a_message_that_is_not_acknowledged_in_time_is_delivered_again_and_does_nothing(here: Scene) -> None:
    """The model takes longer than RabbitMQ waits: it closes the channel and delivers the hint again (F8)."""
    order_id, before = order(), pids(here)
    operation_id = here.submit(order_id, delay=ACKNOWLEDGED_WITHIN * 2.5)
    wait_until(lambda: here.view(operation_id).turns > 1)
    assert completed(here, operation_id)
    first = [each for each in here.model.requests(order_id) if each["turn"] == 0]
    assert len(first) == 1, "its lease was held all the time"
    assert sorted(row.kind for row in here.ledger(order_id)) == ["refund", "refund_draft"]
    assert pids(here) == before, "no worker died of it"
    assert "delivery acknowledgement on channel" in here.stack.tail("orchestrator", 5000)


def test_workers_hold_no_more_than_they_can_do(here: Scene, rabbit: RabbitMQ) -> None:
    """With late acknowledgement, and counted per consumer: what a worker has not begun is still in the queue."""
    operations = [here.submit(order(), delay=3.0) for _ in range(8)]
    wait_until(lambda: sum(here.view(each).state == "MODEL_REQUESTED" for each in operations) == 4)
    listed = rabbit.control("list_queues", "-q", "-p", "tq1", "name", "messages_unacknowledged")
    held = dict(line.split("\t") for line in listed.splitlines()[1:])
    assert int(held["orchestrator"]) <= 4
    assert {view.state for view in here.finish(*operations)} == {"COMPLETED"}


# --- a broker in trouble -------------------------------------------------------------------------------------------


def test_an_alarm_of_the_broker_holds_up_no_submission(here: Scene, rabbit: RabbitMQ) -> None:
    """Short of memory RabbitMQ takes no message, and does not say no either. What is committed goes on afterwards."""
    operations = [here.submit(order())]
    rabbit.control("set_vm_memory_high_watermark", "0")
    try:
        began = time.monotonic()
        operations += [here.submit(order()) for _ in range(10)]
        assert time.monotonic() - began < 30, "the first one waits for the broker, the others do not"
        assert here.app.hints.failed > 0
    finally:
        rabbit.control("set_vm_memory_high_watermark", "0.6")
    assert {view.state for view in here.finish(*operations)} == {"COMPLETED"}


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_broker_in_mid_run(how: str, here: Scene, rabbit: RabbitMQ) -> None:
    """SIGKILL and a start with what was on its disk; or it hangs for longer than anybody waits for it."""
    before = pids(here)
    operations = [here.submit(order(), delay=0.5) for _ in range(6)]
    wait_until(lambda: any(here.view(each).turns >= 1 for each in operations))
    if how == "killed":
        rabbit.kill()
        operations.append(here.submit(order()))
        rabbit.start()
    else:
        os.kill(rabbit.pid, signal.SIGSTOP)
        failed = here.app.hints.failed
        operations.append(here.submit(order()))
        assert here.app.hints.failed > failed
        os.kill(rabbit.pid, signal.SIGCONT)
    assert {view.state for view in here.finish(*operations)} == {"COMPLETED"}
    assert pids(here) == before


# --- whoever sends -------------------------------------------------------------------------------------------------


TICKET = Ticket(number=1, customer=SUBJECT, text="Hello")


@contextmanager
def desk_at(url: str) -> Iterator[Desk]:
    opened = Desk({"DESK_BROKER_URL": url, "DESK_ENVELOPE_KEY": "k" * 40, "DESK_TENANT": TENANT})
    yield opened
    opened.close()


def test_an_envelope_that_was_taken_is_on_disk(rabbit: RabbitMQ) -> None:
    with desk_at(rabbit.url(2)) as desk:
        desk.hand_on(TICKET)
    rabbit.kill()
    rabbit.start()
    assert waiting(rabbit.url(2), SUBMIT_QUEUE) == 1


def test_the_sender_hears_that_a_queue_has_gone(rabbit: RabbitMQ) -> None:
    """RabbitMQ confirms, and drops, what no queue takes, unless it is told to hand it back."""
    with desk_at(rabbit.url(3)) as desk:
        desk.hand_on(TICKET)
        with channel(rabbit.url(3)) as opened:
            opened.queue_delete(SUBMIT_QUEUE)
        with pytest.raises(amqp.ChannelError, match="NO_ROUTE"):
            desk.hand_on(TICKET)
        desk.hand_on(TICKET)
        assert waiting(rabbit.url(3), SUBMIT_QUEUE) == 1


# --- quorum queues -------------------------------------------------------------------------------------------------


@contextmanager
def quorum(rabbit: RabbitMQ) -> Iterator[str]:
    """A virtual host that makes quorum queues where nothing else is said, as RabbitMQ recommends."""
    rabbit.control("add_vhost", QUORUM, "--default-queue-type", QUORUM)
    rabbit.control("set_permissions", "-p", QUORUM, USER, ".*", ".*", ".*")
    yield f"{rabbit.url().rpartition('/')[0]}/{QUORUM}"
    rabbit.control("delete_vhost", QUORUM)


def test_quorum_queues(servers: Servers, rabbit: RabbitMQ) -> None:
    with quorum(rabbit) as url, scene(servers, servers.database("quorum"), url) as here:
        listed = rabbit.control("list_queues", "-q", "-p", QUORUM, "name", "type")
        types = dict(line.split("\t") for line in listed.splitlines()[1:])
        assert types == dict.fromkeys(CORE_QUEUES, QUORUM)
        operations = [here.submit(order()) for _ in range(3)]
        here.stack.kill("executors")
        assert {view.state for view in here.finish(*operations)} == {"COMPLETED"}
        put(url, "reads", b"no message of ours")
        wait_until(lambda: waiting(url, "reads") == 0)
        assert completed(here, here.submit(order()))


def test_no_process_of_it_outlives_it() -> None:
    folder = Path(tempfile.mkdtemp(prefix="tq-rabbit-"))
    with RabbitMQ(folder):
        assert len(of(folder)) >= 2, "the server and epmd"
    wait_until(lambda: not of(folder))
    shutil.rmtree(folder)


def of(folder: Path) -> list[str]:
    """Processes that were told to keep their files there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            if str(folder) in path.read_text(errors="replace"):
                found.append(path.parent.name)
    return found


# --- the whole of it -----------------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_the_demo(rabbit: RabbitMQ) -> None:
    """As on one machine, with somebody else's broker."""
    home = Path(tempfile.mkdtemp(prefix="tq-"))
    done = Shell(home, {"TURNQUEUE_BROKER_URL": rabbit.url(4)})("demo", "--yes", "--json")
    check(done)
    assert_stopped(home)
    shutil.rmtree(home)
