"""The shared fixtures give real, separate servers."""

import psycopg
from kombu import Connection
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from embedded.servers import Servers
from tests.conftest import redis_client


def test_database_is_empty_and_its_own(servers: Servers, database_url: str) -> None:
    assert make_url(database_url).database != make_url(servers.database_url).database
    engine = create_engine(database_url)
    with engine.connect() as connection:
        tables = connection.scalar(text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"))
        assert tables == 0
        assert connection.scalar(text("SHOW fsync")) == "on"
        assert connection.scalar(text("SHOW synchronous_commit")) == "on"
        assert connection.scalar(text("SHOW listen_addresses")) == ""
        assert connection.scalar(text("SHOW max_connections")) == "200"
    engine.dispose()


def test_broker_carries_a_message_in_its_own_database(servers: Servers, broker_url: str) -> None:
    assert broker_url != servers.broker_url
    with Connection(broker_url) as connection:
        queue = connection.SimpleQueue("fixture")
        queue.put({"id": "1"})
        with redis_client(broker_url) as mine, redis_client(servers.broker_url) as other:
            assert mine.llen("fixture") == 1
            assert other.llen("fixture") == 0
            assert mine.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert mine.config_get("save") == {"save": ""}
        message = queue.get(timeout=5)
        assert message.payload == {"id": "1"}
        message.ack()
        queue.close()


def test_server_has_no_tcp_port(database_url: str) -> None:
    with psycopg.connect(make_url(database_url).set(drivername="postgresql").render_as_string()) as connection:
        assert connection.info.host.startswith("/")
