"""Each fault of the proxy does what it says, to real servers."""

import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.chaos.proxy import Proxy, target, through
from tests.chaos.world import Ledger, wait_until

SECONDS = 30.0  # far more than an answer takes
MOMENT = 0.5  # after which an answer that was not to come has not come


@pytest.fixture(scope="module")
def url(database_url: str) -> str:
    plain = database_url.replace("+psycopg", "")
    with psycopg.connect(plain) as direct:
        direct.execute("CREATE TABLE numbers (n int PRIMARY KEY, other int REFERENCES numbers DEFERRABLE)")
    return plain


@pytest.fixture
def postgres(url: str) -> Iterator[Proxy]:
    with Proxy(target(url), seed=1, postgres=True) as proxy:
        yield proxy


@pytest.fixture
def broker(broker_url: str) -> Iterator[Proxy]:
    with Proxy(target(broker_url), seed=1) as proxy:
        yield proxy


def numbers(url: str, start: int, stop: int) -> int:
    """How many rows of the range are there, asked directly."""
    with psycopg.connect(url) as direct:
        row = direct.execute("SELECT count(*) FROM numbers WHERE n >= %s AND n < %s", (start, stop)).fetchone()
    assert row is not None
    return int(row[0])


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


def test_a_commit_is_cut_after_it_is_durable(url: str, postgres: Proxy) -> None:
    postgres.control(faults={"commit": 1.0})
    for n in range(200):
        with pytest.raises(psycopg.OperationalError), psycopg.connect(through(url, postgres.address)) as connection:
            connection.execute("INSERT INTO numbers VALUES (%s)", (n,))
    assert postgres.counts()["commit"] == 200
    assert numbers(url, 0, 200) == 200


def test_a_commit_that_does_not_arrive(url: str, postgres: Proxy) -> None:
    postgres.control(faults={"uncommitted": 1.0})
    for n in range(5000, 5020):
        with pytest.raises(psycopg.OperationalError), psycopg.connect(through(url, postgres.address)) as connection:
            connection.execute("INSERT INTO numbers VALUES (%s)", (n,))
    assert postgres.counts()["uncommitted"] == 20
    assert numbers(url, 5000, 5020) == 0


def test_a_commit_of_the_extended_protocol_too(url: str, postgres: Proxy) -> None:
    postgres.control(faults={"commit": 1.0})
    with closing(psycopg.connect(through(url, postgres.address))) as connection:
        with connection.pipeline():
            connection.execute("INSERT INTO numbers VALUES (1000)")
        with pytest.raises(psycopg.OperationalError), connection.pipeline():
            connection.commit()
    assert postgres.counts()["commit"] == 1
    assert numbers(url, 1000, 1001) == 1


def test_the_answer_of_a_statement_outside_of_a_transaction(url: str, postgres: Proxy) -> None:
    """New to the server, or prepared before."""
    statement = "WITH new AS (INSERT INTO numbers VALUES (%s) RETURNING n) SELECT n FROM new"
    for n in range(2000, 2100, 2):
        with psycopg.connect(through(url, postgres.address), autocommit=True) as connection:
            prepared = n >= 2050
            if prepared:
                connection.execute(statement, (n,), prepare=True)
            postgres.control(faults={"answer": 1.0})
            with pytest.raises(psycopg.OperationalError):
                connection.execute(statement, (n + 1,), prepare=prepared)
            postgres.control(faults={})
    assert postgres.counts()["answer"] == 50
    assert numbers(url, 2000, 2100) == 50 + 25


def test_what_changes_nothing_is_not_cut(url: str, postgres: Proxy) -> None:
    postgres.control(faults={"commit": 1.0, "answer": 1.0})
    with psycopg.connect(through(url, postgres.address)) as connection:
        connection.execute("SELECT n FROM numbers FOR UPDATE")
        connection.commit()
        connection.execute("INSERT INTO numbers VALUES (3000)")
        connection.rollback()
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        connection.execute("INSERT INTO numbers VALUES (3001, -1)")
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.commit()
        connection.rollback()
        connection.autocommit = True
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("INSERT INTO numbers VALUES (1 / 0)")
        connection.execute("SELECT 1")
    counts = postgres.counts()
    assert (counts["commit"], counts["answer"], counts["connections"]) == (0, 0, 1)
    assert numbers(url, 3000, 4000) == 0


def test_on_a_unix_socket(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        listen = f"unix:{folder}/.s.PGSQL.5432"
        with Proxy(target(url), listen=listen, postgres=True) as proxy:
            assert proxy.address == listen
            there = psycopg.conninfo.make_conninfo(url, host=folder, port=5432)
            proxy.control(faults={"commit": 1.0})
            with pytest.raises(psycopg.OperationalError), psycopg.connect(there) as connection:
                connection.execute("INSERT INTO numbers VALUES (4000)")
            assert proxy.counts()["commit"] == 1
    assert numbers(url, 4000, 4001) == 1


# --- any server ----------------------------------------------------------------------------------------------------


def connected(to: str) -> socket.socket:
    """To a proxy, or straight to the server."""
    if to.startswith("unix:"):
        client = socket.socket(socket.AF_UNIX)
        client.connect(to.removeprefix("unix:"))
    else:
        host, _, port = to.rpartition(":")
        client = socket.create_connection((host, int(port)))
    client.settimeout(SECONDS)
    return client


def asked(proxy: Proxy, request: bytes = b"PING\r\n") -> tuple[bytes, str]:
    """What came back of one request on a connection of its own, and how it ended: "ok", "closed" or "reset"."""
    got = b""
    with closing(connected(proxy.address)) as client:
        try:
            client.sendall(request)
            while not got.endswith(b"\r\n"):
                if not (more := client.recv(100)):
                    return got, "closed"
                got += more
        except ConnectionError:
            return got, "reset"
    return got, "ok"


PONG = b"+PONG\r\n"


def test_without_an_order_nothing_goes_wrong(broker: Proxy) -> None:
    assert [asked(broker) for _ in range(20)] == [(PONG, "ok")] * 20
    assert not broker.counts().keys() - {"connections", "open"}


def test_drop(broker: Proxy) -> None:
    broker.control(faults={"drop": 1.0})
    got, end = asked(broker)
    assert got == b""
    assert end in ("closed", "reset")
    assert broker.counts()["drop"] == 1


def test_reset(broker: Proxy) -> None:
    broker.control(faults={"reset": 1.0})
    assert asked(broker) == (b"", "reset")
    assert broker.counts()["reset"] == 1


def test_half_of_a_chunk_and_then_a_reset(broker: Proxy) -> None:
    """Of the request, of the answer, or of neither."""
    broker.control(faults={"half": 0.5})
    outcomes = {asked(broker) for _ in range(40)}
    assert outcomes == {(b"", "reset"), (PONG[:3], "reset"), (PONG, "ok")}


def test_half_of_a_request_has_no_effect(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", 1) as ledger, Proxy(target(ledger.url), seed=1) as proxy:
        proxy.control(faults={"half": 1.0})
        headers = {"Idempotency-Key": "k", "Attempt-Id": "a"}
        with httpx.Client(trust_env=False) as client, pytest.raises(httpx.TransportError):
            client.post(f"{through(ledger.url, proxy.address)}/effects/pay", json={"name": "x" * 50}, headers=headers)
        assert wait_until(lambda: proxy.counts()["open"] == 0)
        assert ledger.lines("effect") == []


def test_delay_keeps_everything_and_its_order(broker: Proxy) -> None:
    broker.control(faults={"delay": 0.5}, delay_s=0.01)
    with closing(connected(broker.address)) as client:
        got = b""
        for n in range(100):
            client.sendall(b"ECHO %d\r\n" % (n + 100))
            if n % 10 == 9:
                while got.count(b"\r\n") < 2 * (n + 1):
                    got += client.recv(1000)
    assert got == b"".join(b"$3\r\n%d\r\n" % (n + 100) for n in range(100))
    assert broker.counts()["delay"] > 5


def test_swallow_is_one_direction_and_blackhole_both(broker: Proxy, broker_url: str) -> None:
    with closing(connected(target(broker_url))) as direct:
        for kind, heard in (("swallow", True), ("blackhole", False)):
            with closing(connected(broker.address)) as client:
                client.sendall(b"SUBSCRIBE news\r\n")
                while not client.recv(1000).endswith(b":1\r\n"):
                    pass
                broker.control(faults={kind: 1.0})
                client.sendall(b"PING\r\n")
                assert wait_until(lambda kind=kind: broker.counts()[kind] == 1)  # type: ignore[misc]
                broker.control(faults={})
                direct.sendall(b"PUBLISH news today\r\n")
                client.settimeout(SECONDS if heard else MOMENT)
                if heard:
                    assert b"today" in client.recv(1000)
                    client.settimeout(MOMENT)
                with pytest.raises(TimeoutError):
                    client.recv(1000)
                broker.heal()
                client.settimeout(SECONDS)
                with pytest.raises(ConnectionResetError):
                    client.recv(1000)


def test_refuse(broker: Proxy) -> None:
    broker.control(refuse=True)
    with pytest.raises(ConnectionRefusedError):
        connected(broker.address)
    broker.control(refuse=False)
    assert asked(broker) == (PONG, "ok")


def test_the_seed_draws_the_same_again(broker_url: str) -> None:
    def played(seed: int) -> list[tuple[bytes, str]]:
        with Proxy(target(broker_url), seed) as proxy:
            proxy.control(faults={"half": 0.2, "reset": 0.3})
            return [asked(proxy) for _ in range(30)]

    assert played(5) == played(5) != played(6)


def test_an_unknown_fault_is_refused(broker: Proxy) -> None:
    with pytest.raises(ValueError, match="unknown faults"):
        broker.control(faults={"rain": 1.0})


def test_nothing_there(tmp_path: Path) -> None:
    with Proxy(f"unix:{tmp_path}/nobody") as proxy:
        assert asked(proxy) == (b"", "reset")
        assert proxy.counts()["unreachable"] == 1


def test_it_ends_with_whoever_controls_it(broker: Proxy) -> None:
    with closing(socket.create_connection(broker._socket.getpeername())) as control:
        control.sendall(b"{}\n")
        assert json.loads(control.makefile().readline()) == {"open": 0}
        assert broker._process.poll() is None
    assert wait_until(lambda: broker._process.poll() is not None)


@pytest.mark.parametrize(
    ("url", "to", "proxied"),
    [
        ("postgresql+psycopg://u:p@db:6432/x?a=b", "db:6432", "postgresql+psycopg://u:p@127.0.0.1:1/x?a=b"),
        ("postgresql://u@/x?host=/run/pg", "unix:/run/pg/.s.PGSQL.5432", "postgresql://u@127.0.0.1:1/x"),
        ("redis+socket:///run/v%20k?virtual_host=3", "unix:/run/v k", "redis://127.0.0.1:1/3"),
        ("amqp://u:p@mq//", "mq:5672", "amqp://u:p@127.0.0.1:1//"),
        ("http://ledger:80/a", "ledger:80", "http://127.0.0.1:1/a"),
    ],
)
def test_addresses(url: str, to: str, proxied: str) -> None:
    assert target(url) == to
    assert through(url, "127.0.0.1:1") == proxied
