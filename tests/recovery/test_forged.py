"""G16: whoever can write to the broker gets nothing written to the database and no worker down. Real workers."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import text

from embedded.servers import Servers
from tests.conftest import redis_client
from tests.recovery.forgery import DROPPED, message
from tests.system.scene import WORKERS, Scene, scene, wait_until

FORGED = 5000
HEAVY = 2  # of those that are megabytes
KEY = "turnqueue:{}"
QUEUES = ("orchestrator", "submit", "reads", "writes")


@pytest.fixture(scope="module")
def attacked(servers: Servers, database_url: str, broker_url: str) -> Iterator[Scene]:
    with scene(servers, database_url, broker_url) as started:
        yield started


def contents(played: Scene) -> dict[str, str]:
    """Every row of every table, as a digest per table."""
    found = {}
    with played.app.database.snapshot() as connection:
        names = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars()
        for name in list(names):
            rows = connection.execute(text(f'SELECT t::text FROM "{name}" t ORDER BY 1')).scalars()
            found[name] = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    return found


def dropped(played: Scene) -> Counter[str]:
    found: Counter[str] = Counter()
    for worker in WORKERS:
        for line in (played.failpoints / f"{worker.name}.log").read_bytes().splitlines():
            if line.startswith(b'{"') and b'"message.dropped"' in line:
                found[json.loads(line)["code"]] += 1
    return found


def replays(played: Scene, operation_id: str) -> list[bytes]:
    """Good hints: of rows that do not exist, and of those that do and are not due."""
    view = played.view(operation_id)
    rows = [operation_id, *(action.action_id for action in view.actions), "op_nobody", "act_nobody", "call_nobody"]
    tasks = ["turnqueue.advance", "tool.get_order", "tool.draft_refund", "tool.submit_refund"]
    return [message(task, [row]) for task in tasks for row in rows]


def drained(broker: "redis.Redis") -> bool:
    lengths = [broker.llen(KEY.format(name)) for name in QUEUES]
    return not any(lengths) and not broker.hlen(KEY.format("unacked"))


def test_forged_messages_write_nothing_and_stop_nobody(attacked: Scene, broker_url: str) -> None:
    waiting = attacked.submit("ORD-600010")
    wait_until(lambda: attacked.view(waiting).state == "WAITING_APPROVAL")
    with redis_client(broker_url) as broker:
        wait_until(lambda: drained(broker))
        before, pids = contents(attacked), [attacked.stack.pid(worker.name) for worker in WORKERS]
        forged: list[bytes] = []
        expected: Counter[str] = Counter()
        kinds = [(code, make) for code, each in DROPPED.items() for make in each]
        times = FORGED // (len(kinds) + 4)
        for code, make in kinds:
            number = HEAVY if len(make()) > 100_000 else times
            forged += [make() for _ in range(number)]
            expected[code] += number
        again = replays(attacked, waiting)
        forged += [random.choice(again) for _ in range(FORGED - len(forged))]
        random.shuffle(forged)
        # What is held for a worker that died can be forged, too: it comes back when its time is over.
        for number in range(20):
            tag = f"forged-{number}"
            broker.hset(KEY.format("unacked"), tag, random.choice(["nonsense", "[1]", "{}"]))
            broker.zadd(KEY.format("unacked_index"), {tag: 1.0})
        for start in range(0, FORGED, 100):
            with broker.pipeline(transaction=False) as pipe:
                for raw in forged[start : start + 100]:
                    pipe.lpush(KEY.format(random.choice(QUEUES)), raw)
                pipe.execute()
        assert len(forged) == FORGED
        wait_until(lambda: drained(broker))
    wait_until(lambda: sum(dropped(attacked).values()) >= sum(expected.values()) + 20)
    expected["MESSAGE_UNREADABLE"] += 20
    assert dropped(attacked) == expected
    assert contents(attacked) == before
    assert [attacked.stack.pid(worker.name) for worker in WORKERS] == pids
    [view] = attacked.finish(waiting)
    assert view.state == "COMPLETED"
    assert attacked.finish(attacked.submit("ORD-600020"))[0].state == "COMPLETED"
