"""Real servers for every test: one PostgreSQL and one Valkey per session, a database of its own per module.

`TURNQUEUE_DATABASE_URL` and `TURNQUEUE_BROKER_URL` point the tests at other servers. `TQ_TEST_BROKER=amqp` starts a
RabbitMQ instead of Valkey, from Debian's packages.
"""

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import redis
from hypothesis import HealthCheck, settings
from sqlalchemy.engine import make_url

from embedded.databases import create_database, drop_database
from embedded.servers import EmbeddedServers, Servers
from tests.brokers.rabbitmq import VHOSTS, RabbitMQ, clean

_BROKER_DATABASES = count()

# Started in the background of a script, we and all that we start would ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is no reason to fail: what a test must not take longer than is nobody's promise here.
settings.register_profile("turnqueue", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("turnqueue")


# The longest first, so that no test process is left alone with them at the end.
LONG = (
    "skew",
    "brokers",
    "cli",
    "simulator",
    "models",
    "incidents",
    "system",
    "chaos",
    "deploy",
    "replay",
    "people",
    "acceptance",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("TQ_CAMPAIGN"):  # CI has not the minutes for them: docs/reliability.md
        left_out = [item for item in items if item.get_closest_marker("campaign")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    folder = {item: item.path.relative_to(Path(__file__).parent).parts[0] for item in items}
    items.sort(key=lambda item: LONG.index(folder[item]) if folder[item] in LONG else len(LONG))


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The session's PostgreSQL and broker."""
    # Not tmp_path: as root the servers run as another user, who cannot enter pytest's private directory.
    home = Path(tempfile.mkdtemp(prefix="tq-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, home, ignore_errors=True)
        environ = dict(os.environ)
        if environ.get("TQ_TEST_BROKER") == "amqp" and not environ.get("TURNQUEUE_BROKER_URL"):
            environ["TURNQUEUE_BROKER_URL"] = opened.enter_context(RabbitMQ(home / "rabbitmq")).url()
        yield opened.enter_context(EmbeddedServers(home, environ))


@pytest.fixture(scope="module")
def database_url(servers: Servers) -> Iterator[str]:
    """A fresh, empty database for this test module (no tables); dropped afterwards."""
    name = f"test_{os.getpid()}_{uuid.uuid4().hex[:12]}"
    yield create_database(servers.database_url, name)
    drop_database(servers.database_url, name)


@pytest.fixture(scope="module")
def broker_url(servers: Servers) -> Iterator[str]:
    """An empty numbered database (or virtual host) of the broker for this test module."""
    if servers.broker_url.startswith("amqp"):
        url = f"{servers.broker_url.rpartition('/')[0]}/tq{next(_BROKER_DATABASES) % (VHOSTS - 1) + 1}"
        clean(url)
        yield url
        clean(url)
        return
    if not servers.broker_url.startswith(("redis://", "redis+socket://")):
        yield servers.broker_url
        return
    # 1..15: what a Redis with default settings has, without the one that other programs use.
    url = with_broker_database(servers.broker_url, next(_BROKER_DATABASES) % 15 + 1)
    with redis_client(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


def with_broker_database(url: str, number: int) -> str:
    """The same Redis server, another numbered database."""
    if url.startswith("redis+socket://"):
        return f"{url.split('?', 1)[0]}?virtual_host={number}"
    return make_url(url).set(database=str(number)).render_as_string(hide_password=False)


def redis_client(url: str) -> redis.Redis:
    """A redis-py client for a kombu URL (`redis://` or `redis+socket://`)."""
    if not url.startswith("redis+socket://"):
        return redis.Redis.from_url(url)
    parts = urlsplit(url)
    number = int(dict(parse_qsl(parts.query)).get("virtual_host", "0"))
    return redis.Redis(unix_socket_path=unquote(parts.path), db=number)
