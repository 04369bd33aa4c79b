"""A broker that hangs, vanishes or says nothing holds nobody up for long: what was asked for is saved, and the sweeper
publishes it once the broker is back.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from embedded.keeper import first_line_number
from embedded.layout import prepare
from embedded.servers import Servers
from orchestrator import commands, hints, sweeper
from orchestrator.app import App
from orchestrator.enqueue import Enqueuer
from orchestrator.hints import HintPublisher, publisher_options
from orchestrator.settings import Settings
from store.db import Database
from store.migrate import migrate
from tests.brokers.access import forget
from tests.brokers.rabbitmq import RabbitMQ, need_rabbitmq
from tests.chaos.proxy import Proxy, target, through
from tests.chaos.world import wait_until

MODULE = "tests.chaos.tools"
# The bound is one wait for an answer, or one for a connection; the rest is for a loaded machine.
BOUND = hints.PUBLISH_SECONDS + 5.0
HUNG: dict[str, dict[str, Any]] = {
    "takes all and says nothing": {"faults": {"blackhole": 1.0}},
    "hears nothing": {"faults": {"swallow": 1.0}},
    "takes connections and ends them": {"faults": {"drop": 1.0}, "reset_all": True},
    "resets": {"faults": {"reset": 1.0}},
    "is not there": {"refuse": True, "reset_all": True},
    "takes connections and says nothing": {"faults": {"blackhole": 1.0}, "reset_all": True},
}


@pytest.fixture(scope="module")
def migrated(database_url: str) -> str:
    database = Database(database_url, 2)
    migrate(database)
    database.close()
    return database_url


@dataclass(frozen=True)
class Broker:
    url: str
    pid: int


@pytest.fixture(scope="module", params=["valkey", "rabbitmq"])
def broker(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Broker]:
    """The session's Valkey, and a RabbitMQ of this module's own."""
    if request.param == "rabbitmq":
        need_rabbitmq()
        with tempfile.TemporaryDirectory(prefix="tq-") as folder, RabbitMQ(Path(folder) / "rabbitmq") as rabbit:
            yield Broker(rabbit.url(1), rabbit.pid)
        return
    if servers.broker_url.startswith("amqp"):
        pytest.skip("the session has no Valkey")
    pid = first_line_number(prepare(servers.data_dir).files.valkey_pid)
    assert pid is not None
    yield Broker(request.getfixturevalue("broker_url"), pid)


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    forget(broker.url)
    with Proxy(target(broker.url), seed=1) as running:
        yield running


@pytest.fixture
def settings(migrated: str, broker: Broker, proxy: Proxy) -> Settings:
    return Settings(
        database_url=migrated, broker_url=through(broker.url, proxy.address), modules=(MODULE,), hint_limit=100_000
    )


@pytest.fixture
def app(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """Its publisher is connected already."""
    monkeypatch.setenv("CHAOS_MODEL_URL", "http://127.0.0.1:1")
    with App.open(settings) as opened:
        submit(opened)
        assert opened.hints.sent == 1
        yield opened


def submit(app: App) -> str:
    return commands.submit(app, commands.submission(profile="chaos", input="x")).operation_id


def timed(work: Callable[[], Any]) -> float:
    before = time.monotonic()
    work()
    return time.monotonic() - before


def saved(app: App, operations: list[str]) -> bool:
    return {commands.inspect(app, operation).state for operation in operations} == {"READY"}


def published_by_the_sweeper(settings: Settings, operations: list[str]) -> bool:
    """As soon as the broker is back, by a sweeper with a publisher of its own."""
    publisher = HintPublisher(settings)
    with App.open(settings) as app:
        sweeper.run_once(app)
        waiting = publisher.waiting("orchestrator")
        publisher.close()
        return app.hints.sent >= len(operations) and waiting >= len(operations)


@pytest.mark.parametrize("how", HUNG)
def test_submit_while_the_broker(how: str, app: App, settings: Settings, proxy: Proxy) -> None:
    operations: list[str] = []
    proxy.control(**HUNG[how])
    began = time.monotonic()
    assert timed(lambda: operations.append(submit(app))) < BOUND
    for _ in range(10):
        assert timed(lambda: operations.append(submit(app))) < BOUND
    # Whoever comes within the rest after a failure does not wait for the broker at all.
    assert app.hints.failed <= 1 + (time.monotonic() - began) / hints.REST_SECONDS
    assert app.hints.sent == 1
    assert saved(app, operations)
    proxy.heal()
    assert published_by_the_sweeper(settings, operations)


def test_many_at_once(app: App, proxy: Proxy) -> None:
    """They wait for one try together and not for one after the other."""
    proxy.control(faults={"blackhole": 1.0})
    with ThreadPoolExecutor(8) as pool:
        seconds = list(pool.map(timed, [lambda: submit(app)] * 16))
    assert max(seconds) < BOUND
    assert app.hints.failed <= 2


def test_what_the_command_line_does(settings: Settings, proxy: Proxy) -> None:
    environ = {
        "TURNQUEUE_DATABASE_URL": settings.database_url or "", "TURNQUEUE_BROKER_URL": settings.broker_url or "",
        "TURNQUEUE_MODULES": MODULE, "CHAOS_MODEL_URL": "http://127.0.0.1:1",
    }  # fmt: skip
    command = [sys.executable, "-m", "orchestrator.cli", "submit", "--profile", "chaos", "--input", "x", "--json"]
    proxy.control(faults={"blackhole": 1.0})
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["created"]) == (0, True)
    assert "the broker does not answer; the change is saved" in done.stderr


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process hangs within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_submit_while_the_broker_is_stopped(app: App, settings: Settings, broker: Broker) -> None:
    operations: list[str] = []
    with stopped(broker.pid):
        for _ in range(5):
            assert timed(lambda: operations.append(submit(app))) < BOUND
        assert app.hints.failed >= 1
        assert saved(app, operations)
    assert published_by_the_sweeper(settings, operations)


def test_a_sender_of_envelopes_is_told(settings: Settings, proxy: Proxy) -> None:
    """It has no database: its message is all there is, so it must hear that it was not taken, and send it again."""
    sender = Celery("desk", broker=settings.broker_url, set_as_current=False)
    sender.conf.broker_transport_options = publisher_options(settings)
    sender.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    enqueuer = Enqueuer(sender, sender="desk", key="k" * 48)

    def send() -> None:
        enqueuer.submit(profile="chaos", input="x", tenant="acme", subject="alice", idempotency_key="1")

    send()
    proxy.control(faults={"blackhole": 1.0})
    before = time.monotonic()
    with pytest.raises(OperationalError):
        send()
    assert time.monotonic() - before < 4 * BOUND
    proxy.heal()
    assert wait_until(lambda: _sent(send))
    sender.close()


def _sent(send: Callable[[], None]) -> bool:
    try:
        send()
    except OperationalError:
        return False
    return True
