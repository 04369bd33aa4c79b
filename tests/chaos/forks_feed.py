"""What the parents of the fork harness are fed with: messages, numbers to submit, approvals to decide; and the waking
of zombies. All of it from outside, over connections of its own.
"""

import base64
import json
import os
import random
import signal
import time
import zlib
from contextlib import suppress
from typing import Any

import psycopg
import redis

from tests.chaos.client import accepted
from tests.chaos.forks_script import WARMING, script
from tests.chaos.world import World

KINDS = ("turns", "reads", "starts", "checks")
QUEUES = ("orchestrator", "reads", "writes")
AS_IT_COMES = 4  # every so-manieth message is delivered whether or not its row is due
_LIVE = "SELECT count(*) FROM operations WHERE ended_at IS NULL AND state <> 'RECONCILING'"
_ASKED = "SELECT approval_id FROM approvals WHERE state = 'PENDING' ORDER BY expires_at LIMIT 200"
# Of a limited tool's rows not more than it has free slots.
_PLACE = "row_number() OVER (PARTITION BY tool ORDER BY wake_at)"
_FREE = (
    "(NOT limited OR place <= (SELECT count(*) FROM slots s WHERE s.tool = c.tool "
    "AND coalesce(s.lease_until < now(), true)))"
)
_DUE = f"""
    (SELECT 'turns', 'turnqueue.advance', operation_id FROM operations WHERE wake_at <= now() LIMIT 150)
    UNION ALL (SELECT 'reads', 'tool.' || tool, call_key
               FROM (SELECT *, {_PLACE} AS place FROM calls WHERE state = 'READY' AND wake_at <= now()) c
               WHERE {_FREE} LIMIT 150)
    UNION ALL (SELECT 'starts', 'tool.' || tool, action_id
               FROM (SELECT *, {_PLACE} AS place FROM actions WHERE state = 'READY' AND wake_at <= now()) c
               WHERE {_FREE} LIMIT 150)
    UNION ALL (SELECT 'checks', 'tool.' || tool, action_id FROM actions
               WHERE state IN ('UNKNOWN', 'PENDING') AND wake_at <= now()
                 AND coalesce(lease_until < now(), true) LIMIT 150)
"""
# What became of a stopped worker's attempt that was given up: is its action done with?
_FATE = """
    SELECT t.worker, t.attempt_id, a.state IN ('SUCCEEDED', 'FAILED') OR a.review
    FROM attempts t JOIN actions a USING (action_id) WHERE t.worker = ANY(%s) AND t.state = 'LOST'
"""
# After some deaths a row waits for a minute until it is tried again. A check is not brought forward: what it may
# conclude depends on the time that has passed.
_HURRY = """
    WITH o AS (UPDATE operations SET wake_at = now() WHERE operation_id IN (
        SELECT operation_id FROM operations WHERE wake_at > now() + interval '1 s' LIMIT 100 FOR UPDATE SKIP LOCKED)),
    c AS (UPDATE calls SET wake_at = now() WHERE call_key IN (
        SELECT call_key FROM calls WHERE state = 'READY' AND wake_at > now() + interval '1 s' LIMIT 100
        FOR UPDATE SKIP LOCKED))
    UPDATE actions SET wake_at = now() WHERE action_id IN (
        SELECT action_id FROM actions WHERE state = 'READY' AND wake_at > now() + interval '1 s' LIMIT 100
        FOR UPDATE SKIP LOCKED) RETURNING action_id
"""
COUNT = 0.5  # seconds between two counts of what is in flight
HURRY = 1.0  # seconds between two
OFFER = 1.5  # seconds until an approval is offered again
ASLEEP = 3.0  # seconds at most between a zombie's being given up and its waking; its slot is still its own then


class Feed:
    def __init__(self, here: World, seed: int, in_flight: int) -> None:
        self.submitted = 0
        self._here = here
        self._seed = seed
        self._in_flight = in_flight
        self._broker: redis.Redis | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._counted = self._hurried = 0.0
        self._offered: dict[str, float] = {}  # approval: when it was
        self._stopped: dict[str, int] = {}  # worker: process id
        self._wake_at: dict[str, float] = {}  # worker
        self._woken: dict[str, float] = {}  # attempt of a zombie: when it was woken, seconds since 1970
        self._random = random.Random(seed)

    def _sql(self, statement: Any, *values: Any) -> list[Any]:
        """Nothing while the server is away."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._here.dsn, autocommit=True)
            return self._connection.execute(statement, values).fetchall()
        except psycopg.OperationalError:
            self._connection = None
            return []

    def messages(self, parents: int) -> list[dict[str, list[list[str]]]]:
        """For each parent, by kind, task and row id of work that is due; none of it for two at once.

        All messages are taken from the broker. What their rows are like decides: due ones are delivered, those whose
        message was lost or not sent too, as the sweeper would; of messages that come to nothing a part.
        """
        taken = self._taken()
        given: list[dict[str, list[list[str]]]] = [{kind: [] for kind in KINDS} for _ in range(parents)]
        rows = self._sql(_DUE)
        self._random.shuffle(rows)
        for kind, task, row in rows:
            given[zlib.crc32(row.encode()) % parents][kind].append([task, row])
        for task, row in taken[::AS_IT_COMES]:
            kind = {"op": "turns", "call": "reads"}.get(row.partition("_")[0], "starts")
            given[self._random.randrange(parents)][kind].append([task, row])
        return given

    def hurry(self) -> None:
        """Nothing waits for longer than it must because of earlier deaths."""
        if time.monotonic() - self._hurried >= HURRY:
            self._hurried = time.monotonic()
            self._sql(_HURRY)

    def _taken(self) -> list[list[str]]:
        found: list[list[str]] = []
        with suppress(redis.RedisError):
            broker = self._broker = self._broker or self._here.broker()
            for queue in QUEUES:
                taken: Any = broker.rpop(f"turnqueue:{queue}", 100)
                found += [message for raw in taken or () if (message := _opened(raw)) is not None]
        return found

    def numbers(self, parents: int, left: float, more: int) -> list[list[int]]:
        """For each parent, operations to submit so that there are enough in flight for that share of the run, or `more`
        at least.
        """
        given: list[list[int]] = [[] for _ in range(parents)]
        if left <= 0 or time.monotonic() - self._counted < COUNT:
            return given
        self._counted = time.monotonic()
        if not (live := self._sql(_LIVE)):
            return given
        enough = self._in_flight * min(1.0, 0.15 + left)
        wanted = int(enough) - live[0][0] - (self.submitted - self._known())
        for _ in range(max(more, wanted)):
            given[self.submitted % parents].append(self.submitted)
            self.submitted += 1
        scripts = [script(self._seed, number) for numbers in given for number in numbers]
        if scripts:
            self._here.model.add(*scripts)
        return given

    def _known(self) -> int:
        return len({line["number"] for line in accepted(self._here.folder) if line["number"] < WARMING})

    def approvals(self, parents: int) -> list[list[str]]:
        now = time.monotonic()
        given: list[list[str]] = [[] for _ in range(parents)]
        for (name,) in self._sql(_ASKED):
            if now - self._offered.get(name, -OFFER) >= OFFER:
                self._offered[name] = now
                given[self._random.randrange(parents)].append(name)
        return given

    # --- zombies ---------------------------------------------------------------------------------------------------

    def stopped(self, worker: str, pid: int) -> None:
        self._stopped[worker] = pid

    @property
    def asleep(self) -> int:
        return len(self._stopped)

    def wake(self) -> None:
        """Each once the sweeper has given its attempt up: at once, later, or when its action is done with."""
        now = time.monotonic()
        for worker, attempt, settled in self._sql(_FATE, list(self._stopped)):
            at = self._wake_at.setdefault(worker, now + self._random.choice((0.0, ASLEEP / 2, ASLEEP)))
            if worker in self._stopped and (settled or now >= at):
                self._woken[attempt] = time.time()
                with suppress(ProcessLookupError):
                    os.kill(self._stopped.pop(worker), signal.SIGCONT)

    def late(self, lines: list[dict[str, Any]]) -> int:
        """How many of these lines of the ledger are of zombies after their waking."""
        return sum(line["at"] >= self._woken.get(line["attempt"], float("inf")) for line in lines)


def _opened(raw: bytes) -> list[str] | None:
    """Task name and row id of a message, as kombu wrote it."""
    message = json.loads(raw)
    arguments = json.loads(base64.b64decode(message["body"]))[0]
    return [message["headers"]["task"], arguments[0]] if arguments else None
