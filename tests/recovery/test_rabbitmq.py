"""Forged messages and a worker that goes deaf, on a real RabbitMQ: there a message that nobody can use comes back."""

import base64
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest

from embedded.servers import Servers
from orchestrator.watchdog import EXIT_NOT_CONSUMING
from tests.brokers.rabbitmq import RabbitMQ, channel
from tests.recovery.forgery import DROPPED
from tests.recovery.stage import DONE, EXECUTORS, ORCHESTRATOR, QUICK, Stage, calls, stage
from tests.recovery.test_stall import STALL, go_deaf
from tests.system.scene import wait_until

TIMES = 20
QUEUES = ("orchestrator", "submit", "reads", "writes")


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMQ]:
    folder = Path(tempfile.mkdtemp(prefix="tq-rabbit-"))
    try:
        with RabbitMQ(folder) as running:
            yield running
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def acted(servers: Servers, database_url: str, rabbit: RabbitMQ, tmp_path: Path) -> Iterator[Stage]:
    env = {**QUICK, "TURNQUEUE_STALL_SECONDS": str(STALL), "HAZARD_DEAF": str(tmp_path)}
    with stage(servers, database_url, rabbit.url(1), env) as ready:
        yield ready


def as_amqp(raw: bytes) -> amqp.Message | None:
    """The same message for RabbitMQ; None where AMQP has no way to say it."""
    whole: dict[str, Any] = json.loads(raw)
    if not isinstance(whole["content-type"], str) or not isinstance(whole["content-encoding"], str):
        return None
    return amqp.Message(
        base64.b64decode(whole["body"]), content_type=whole["content-type"],
        content_encoding=whole["content-encoding"], application_headers=whole["headers"],
    )  # fmt: skip


def dropped(acted: Stage) -> Counter[str]:
    lines = b"".join(path.read_bytes() for path in acted.folder.glob("*.log")).splitlines()
    return Counter(
        json.loads(line)["code"] for line in lines if line.startswith(b'{"') and b'"message.dropped"' in line
    )


def test_forged_messages_are_dropped_and_stop_nobody(acted: Stage, rabbit: RabbitMQ) -> None:
    workers = [acted.worker(ORCHESTRATOR), acted.worker(EXECUTORS)]
    acted.sweeper()
    made = [(code, make()) for code, kinds in DROPPED.items() if code != "MESSAGE_UNREADABLE" for make in kinds]
    forged = [(code, message) for code, raw in made if (message := as_amqp(raw)) is not None]
    expected: Counter[str] = Counter()
    with channel(rabbit.url(1)) as opened:
        for code, message in forged:
            for number in range(TIMES if len(message.body) < 100_000 else 1):
                opened.basic_publish(message, exchange="", routing_key=QUEUES[number % 4], mandatory=True)
                expected[code] += 1
        for number in range(TIMES):
            opened.basic_publish(amqp.Message(b"bare"), exchange="", routing_key=QUEUES[number % 4], mandatory=True)
            expected["MESSAGE_MALFORMED"] += 1
    wait_until(lambda: dropped(acted) == expected)
    assert [worker.process.poll() for worker in workers] == [None, None]
    assert acted.finish(acted.submit(calls("look"), DONE))[0].state == "COMPLETED"
    with channel(rabbit.url(1)) as opened:
        assert [opened.queue_declare(name, passive=True).message_count for name in QUEUES] == [0] * 4  # type: ignore[union-attr]
    assert expected.total() > 600


@pytest.mark.campaign
def test_a_worker_that_goes_deaf_leaves(acted: Stage) -> None:
    acted.worker(EXECUTORS)
    orchestrator = acted.worker(ORCHESTRATOR)
    acted.sweeper()
    go_deaf(acted, "orchestrator", "cancel")
    operation = acted.submit(calls("look"), DONE)
    wait_until(lambda: orchestrator.process.poll() is not None)
    assert orchestrator.process.returncode == EXIT_NOT_CONSUMING
    acted.worker(ORCHESTRATOR)
    assert acted.finish(operation)[0].state == "COMPLETED"
