"""The ticket desk as a process against real workers, and what an attacker with access to the broker can send."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest
from celery import Celery
from sqlalchemy import text
from sqlalchemy.engine import make_url

from embedded.servers import Servers
from examples.enqueue_service.desk import Desk
from examples.support.scenario import SUBJECT, TENANT, seed
from examples.support.script import script
from orchestrator import commands
from orchestrator.enqueue import MAX_SEALED, TASK
from orchestrator.hints import SUBMIT_QUEUE, queue
from tests.brokers.access import put, waiting
from tests.enqueue.forge import ENVIRON, KEY, OTHER_KEY, SENDERS, content, request, sealed
from tests.system.scene import WORKERS, Scene, scene, wait_until

DESK = {"DESK_ENVELOPE_KEY": KEY, "DESK_TENANT": TENANT}


@pytest.fixture(scope="module")
def office(servers: Servers, database_url: str, broker_url: str) -> Iterator[Scene]:
    env = {**ENVIRON, "TURNQUEUE_SENDERS": json.dumps(SENDERS), "TURNQUEUE_LOG_LEVEL": "INFO"}
    with scene(servers, database_url, broker_url, env) as started:
        yield started


@pytest.fixture
def attacker(broker_url: str) -> Iterator[Celery]:
    """A Celery app on the same broker, with no key that counts."""
    desk = Desk({**DESK, "DESK_BROKER_URL": broker_url})
    yield desk.celery
    desk.close()


def send(app: Celery, *args: Any, **kwargs: Any) -> None:
    app.send_task(TASK, args=args, kwargs=kwargs, queue=queue(SUBMIT_QUEUE))


def operations(office: Scene) -> list[str]:
    with office.app.database.autocommit() as connection:
        return list(connection.execute(text("SELECT operation_id FROM operations ORDER BY 1")).scalars())


def events(office: Scene, name: str) -> list[dict[str, Any]]:
    """The orchestrator's log lines of one event since its last start."""
    lines = [line for line in office.stack.tail("orchestrator", 5000).splitlines() if line.startswith('{"')]
    return [line for line in map(json.loads, lines) if line["event"] == name]


def tickets(office: Scene, broker_url: str, *numbers: int) -> str:
    """Hand tickets to the desk, a process of its own; what it answered."""
    lines = []
    for number in numbers:
        order_id = f"ORD-{number:06}"
        seed(office.database_url, order_id=order_id)
        office.model.add(script(order_id) | {"id": order_id})
        note = f"[script:{order_id}] Please refund order {order_id}."
        lines.append(json.dumps({"number": number, "customer": SUBJECT, "text": note}))
    done = subprocess.run(
        [sys.executable, "-m", "examples.enqueue_service"],
        input="\n".join(lines), capture_output=True, text=True, check=True,
        env={**os.environ, **DESK, "DESK_BROKER_URL": broker_url},
    )  # fmt: skip
    return done.stdout


def test_each_ticket_becomes_one_operation(office: Scene, broker_url: str) -> None:
    before = operations(office)
    assert tickets(office, broker_url, 4100, 4200, 4100).split("\n") == ["sent 4100", "sent 4200", "sent 4100", ""]
    wait_until(lambda: len(events(office, "envelope.accepted")) == 3)
    assert tickets(office, broker_url, 4200) == "sent 4200\n"
    wait_until(lambda: len(events(office, "envelope.accepted")) == 4)
    new = [operation_id for operation_id in operations(office) if operation_id not in before]
    assert len(new) == 2
    assert {view.state for view in office.finish(*new)} == {"COMPLETED"}
    for order_id in ("ORD-004100", "ORD-004200"):
        assert [row.kind for row in office.ledger(order_id)].count("refund") == 1
    assert {line["sender"] for line in events(office, "envelope.accepted")} == {"desk"}
    view = office.view(new[0])
    assert (view.tenant, view.subject) == (TENANT, SUBJECT)


HOSTILE: dict[str, list[Callable[[Celery], None]]] = {
    "ENVELOPE_BARE": [
        lambda app: send(app, request()),
        lambda app: send(app, **request()),
        send,
        lambda app: send(app, sealed(content()), "more"),
        lambda app: send(app, [sealed(content())]),
    ],
    "ENVELOPE_FORGED": [
        lambda app: send(app, sealed(content(), key="a-key-of-nobody-0123456789abcdef")),
        lambda app: send(app, sealed(content(), key=OTHER_KEY)),
        lambda app: send(app, sealed(content())[:-2] + "AA"),
    ],
    "ENVELOPE_UNKNOWN_SENDER": [lambda app: send(app, sealed(content(), sender="root"))],
    "ENVELOPE_EXPIRED": [lambda app: send(app, sealed(content(), age=7200))],
    "ENVELOPE_FORBIDDEN": [
        lambda app: send(app, sealed(content(tenant="globex"))),
        lambda app: send(app, sealed(content(profile="other"))),
        lambda app: send(app, sealed(content(scopes=["refunds:approve"]))),
    ],
    "ENVELOPE_TOO_LARGE": [lambda app: send(app, "tq1.desk." + "x" * MAX_SEALED)],
    "BAD_FIELD": [lambda app: send(app, sealed(content(input="a\0b"))), lambda app: send(app, sealed(["list"]))],
}


@pytest.mark.parametrize("code", HOSTILE)
def test_what_is_not_a_good_envelope_creates_nothing(office: Scene, attacker: Celery, code: str) -> None:
    before = operations(office)
    seen = len(events(office, "envelope.refused"))
    for message in HOSTILE[code]:
        message(attacker)
    wait_until(lambda: len(events(office, "envelope.refused")) >= seen + len(HOSTILE[code]))
    assert [line["code"] for line in events(office, "envelope.refused")[seen:]] == [code] * len(HOSTILE[code])
    assert operations(office) == before


def test_the_same_envelope_again_creates_nothing_and_is_no_alarm(office: Scene, attacker: Celery) -> None:
    before, refused = operations(office), len(events(office, "envelope.refused"))
    whole = sealed(content(input="[script:ORD-004100] Once."))
    for _ in range(20):  # at the same time, on several threads
        send(attacker, whole)
    wait_until(lambda: len(events(office, "envelope.repeated")) == 19)
    new = set(operations(office)) - set(before)
    assert len(new) == 1
    for line in events(office, "envelope.repeated"):
        assert (line["level"], line["code"], line["operation_id"]) == ("info", "ENVELOPE_REPLAYED", *new)
    assert len(events(office, "envelope.refused")) == refused


def test_a_nonce_is_good_for_one_request_only(office: Scene, attacker: Celery) -> None:
    first = content(input="[script:ORD-004100] First.")
    send(attacker, sealed(first))
    before = operations(office)
    wait_until(lambda: len(operations(office)) > len(before) - 1 and _consumed(office, first["nonce"]))
    before = operations(office)
    send(attacker, sealed({**content(input="[script:ORD-004100] Second."), "nonce": first["nonce"]}))
    wait_until(lambda: events(office, "envelope.refused")[-1]["code"] == "ENVELOPE_NONCE_REUSED")
    assert operations(office) == before


def _consumed(office: Scene, nonce: str) -> bool:
    with office.app.database.autocommit() as connection:
        found = connection.execute(text("SELECT 1 FROM envelopes WHERE nonce = :nonce"), {"nonce": nonce})
        return found.first() is not None


ORDERS = count(5000, 10)  # each refund of an order of its own
GARBAGE = [
    b"\xff\xfe not json",
    b"{}",
    b"[]",
    json.dumps({"body": "e30=", "headers": {}, "properties": {}}).encode(),
    json.dumps({"body": "%%%", "content-type": "application/x-python-serialize", "content-encoding": "binary",
                "headers": {"task": TASK, "id": "x"}, "properties": {"delivery_tag": "t", "body_encoding": "base64",
                "delivery_info": {"exchange": "", "routing_key": "submit"}}}).encode(),
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda raw: repr(raw)[:30])
@pytest.mark.parametrize("name", ["orchestrator", "reads"])
def test_garbage_in_a_queue_stops_nobody(office: Scene, broker_url: str, name: str, garbage: bytes) -> None:
    before = operations(office)
    pids = [office.stack.pid(worker.name) for worker in WORKERS]
    put(broker_url, name, garbage)
    wait_until(lambda: waiting(broker_url, name) == 0)
    operation_id = office.submit(f"ORD-{next(ORDERS):06}")
    assert office.finish(operation_id)[0].state == "COMPLETED"
    assert operations(office) == sorted([*before, operation_id])
    assert [office.stack.pid(worker.name) for worker in WORKERS] == pids


def test_tasks_that_do_not_exist_or_are_not_for_them(office: Scene, attacker: Celery) -> None:
    """Names that no worker has, hints with rows that do not exist or cannot exist, a tool's task on a wrong queue."""
    before = operations(office)
    attacker.send_task("os.system", args=["true"], queue=queue("orchestrator"))
    attacker.send_task("turnqueue.advance", args=["op_nobody"], queue=queue("orchestrator"))
    attacker.send_task("turnqueue.advance", args=["op_\0"], queue=queue("orchestrator"))
    attacker.send_task("turnqueue.advance", args=[], kwargs={"x": {}}, queue=queue("orchestrator"))
    attacker.send_task("tool.submit_refund", args=["act_nobody"], queue=queue("writes"))
    attacker.send_task("tool.submit_refund", args=[{"order_id": "ORD-004100"}], queue=queue("reads"))
    wait_until(lambda: len(_dropped_by(office)) >= 3)
    assert _dropped_by(office)[-3:] == ["MESSAGE_UNKNOWN_TASK", "MESSAGE_ARGUMENTS", "MESSAGE_ARGUMENTS"]
    operation_id = office.submit(f"ORD-{next(ORDERS):06}")
    assert office.finish(operation_id)[0].state == "COMPLETED"
    assert operations(office) == sorted([*before, operation_id])
    assert commands.inspect(office.app, operation_id).tenant == TENANT


def _dropped_by(office: Scene) -> list[str]:
    """By the task's name or its arguments, which garbage does not have."""
    codes = [str(line["code"]) for line in events(office, "message.dropped")]
    return [code for code in codes if code in ("MESSAGE_UNKNOWN_TASK", "MESSAGE_ARGUMENTS")]


@contextmanager
def unreachable(database_url: str) -> Iterator[None]:
    """The database refuses everybody, and those who are connected are thrown out."""
    url = make_url(database_url)
    name = url.database
    admin = url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_an_envelope_is_not_lost_while_the_database_is_away(office: Scene, attacker: Celery, database_url: str) -> None:
    """Unlike a hint it is nowhere else: no sweeper could bring it back."""
    before = operations(office)
    deferred, accepted = len(events(office, "envelope.deferred")), len(events(office, "envelope.accepted"))
    with unreachable(database_url):
        send(attacker, sealed(content(input="[script:ORD-004100] Later.")))
        wait_until(lambda: len(events(office, "envelope.deferred")) >= deferred + 2)
    wait_until(lambda: len(events(office, "envelope.accepted")) == accepted + 1)
    office.app.database.engine.dispose()  # this test's own connections were thrown out too
    assert len(operations(office)) == len(before) + 1
