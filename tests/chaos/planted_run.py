"""One run of one scenario, with the bug that `planted_hook` has planted before this is imported, or none.

Started by `planted` through a lane of `planted_hook`, with the environment of a worker: the database has the schema and
no rows, the broker's database is this run's alone, and so is the folder of the failpoints. This process opens none of
the system's own connections; it forks workers, sweepers and people (`planted_child`) and replaces them as they die. Its
output is one line of JSON: {"violations", "inconclusive", "counts", "done", "seconds"}.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import psycopg
import redis
from psycopg import sql

from orchestrator import tasks
from orchestrator.hints import HintPublisher
from orchestrator.settings import Settings
from tests.chaos import tools
from tests.chaos.evidence import Evidence, Row, lines, violation
from tests.chaos.planted_child import QUEUES, Desk, People, begin, live_among_people, sweep, work
from tests.chaos.planted_scenarios import SCENARIOS, Scenario
from tests.chaos.proxy import Proxy, target, through
from tests.chaos.verify import always, check, counts
from tests.chaos.world import Ledger

POLL = 0.03
QUIET = 0.3  # seconds of it until a run has come to rest, with a whole round of the people, who may be between two acts
STUCK = 500  # polls in which nothing changes although something is due; the longest wait for a slot is 8 s
BROKEN = 25  # times that the network breaks something; then it is well again
PATIENCE = 8.0  # seconds for a crowd to gather; the system itself waits 10 s for a lock
MOST = 30  # faults of a kind that comes again and again
LOOK = 0.5  # seconds between two looks for what must hold at every moment
# Due, leased, or waiting for somebody who will do something about it.
_RESTLESS = """
    SELECT (SELECT count(*) FROM operations WHERE wake_at IS NOT NULL OR state = 'MODEL_REQUESTED')
         + (SELECT count(*) FROM actions WHERE wake_at IS NOT NULL OR state = 'STARTED')
         + (SELECT count(*) FROM calls WHERE wake_at IS NOT NULL OR state = 'RUNNING')
         + (SELECT count(*) FROM approvals WHERE state = 'PENDING')
"""
# Whether somebody else is at work on what the stopped worker had; whether it had anything; whether anybody is at work
# on what was given up before.
_TAKEN_OVER = """
    WITH mine AS (SELECT * FROM attempts WHERE split_part(worker, ':', 2) = %s),
         again AS (SELECT * FROM attempts WHERE state = 'STARTED' AND number > 1
                   AND started_at < clock_timestamp() - interval '0.1 s')
    SELECT EXISTS (SELECT 1 FROM again JOIN mine ON again.number > mine.number
                   AND (again.action_id = mine.action_id OR again.call_key = mine.call_key)),
           EXISTS (SELECT 1 FROM mine), EXISTS (SELECT 1 FROM again)
"""
_MARK = """
    SELECT (SELECT sum(fence) FROM operations), (SELECT count(*) FROM audit), (SELECT count(*) FROM attempts)
"""
_ROWS = """
    SELECT 'orchestrator', 'turnqueue.advance', operation_id FROM operations
    UNION ALL SELECT queue, 'tool.' || tool, call_key FROM calls WHERE queue IS NOT NULL
    UNION ALL SELECT queue, 'tool.' || tool, action_id FROM actions
"""
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'slots'::regclass"
_AT_WORK = "SELECT split_part(worker, ':', 2) FROM attempts WHERE state = 'STARTED'"


@dataclass
class Child:
    name: str
    place: int
    start: Callable[[], None]
    pid: int = 0
    stopped_at: float = 0.0  # 0: it runs
    sleep: float = 0.0


@dataclass
class Run:
    scenario: Scenario
    seed: int
    folder: Path
    random: random.Random
    broker: redis.Redis
    database: psycopg.Connection[Any]
    ledger: Ledger
    network: Proxy | None
    before_ledger: Proxy | None
    desk: Desk
    blocker: psycopg.Connection[Any] | None = None
    children: list[Child] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    due: dict[str, float] = field(default_factory=dict)

    def sql(self, statement: Any, *values: Any) -> list[tuple[Any, ...]]:
        return self.database.execute(statement, values).fetchall()

    # --- children --------------------------------------------------------------------------------------------------

    def hire(self, database: str) -> None:
        """`database`: for the people, who are not behind the bad network."""
        starts: list[tuple[str, Callable[[Callable[[bool], None]], None]]] = []
        starts += [("worker", lambda busy: work(self.broker, busy))] * self.scenario.workers
        starts += [("sweeper", lambda _busy: sweep(self.scenario.sweep))] * self.scenario.sweepers
        starts += [("people", lambda busy: self._people(database, busy))]
        for place, (name, start) in enumerate(starts):
            self.children.append(Child(f"{name}{place}", place, self._job(start, place)))
        self.desk.mark(len(starts) - 1, busy=True)  # the people have something to do
        for child in self.children:
            if not self._is_awaited(child):
                self._fork(child)

    def _is_awaited(self, child: Child) -> bool:
        """A sweeper that is to come when the leases of those who died have run out."""
        if not child.name.startswith("sweeper") or not self.scenario.sweep_after:
            return False
        return self.done["killed"] < self.scenario.sweep_after or time.monotonic() < self.due["sweep"]

    def _job(self, start: Callable[[Callable[[bool], None]], None], place: int) -> Callable[[], None]:
        return lambda: start(lambda busy: self.desk.mark(place, busy=busy))

    def _people(self, database: str, busy: Callable[[bool], None]) -> None:
        os.environ["TURNQUEUE_DATABASE_URL"] = database
        root = tasks.process_app()
        root.sync_slots()
        live_among_people(People(root, self.scenario, self.seed, self.folder, dsn(database)), self.desk, busy)

    def _fork(self, child: Child) -> None:
        parent = os.getpid()
        child.pid, child.stopped_at = os.fork(), 0.0
        if child.pid == 0:
            try:
                begin(self.folder / "log", parent)
                child.start()
            except BaseException:  # noqa: BLE001 - it must not unwind into the parent's own business
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(70)

    def reap(self) -> None:
        """Whoever died is replaced, whoever stopped will be woken."""
        for child in self.children:
            if child.pid == 0 and not self._is_awaited(child):
                self._fork(child)
            pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED) if child.pid else (0, 0)
            if pid == 0:
                continue
            if os.WIFSTOPPED(status):
                child.stopped_at, child.sleep = time.monotonic(), self.random.uniform(*self.scenario.sleep)
                continue
            self.done["killed" if os.WIFSIGNALED(status) else "ended"] += 1
            self.due["sweep"] = time.monotonic() + 1.2 * self.scenario.lease
            self.desk.mark(child.place, busy=child is self.children[-1])  # the people may not have been ready
            self._fork(child)

    # --- faults ----------------------------------------------------------------------------------------------------

    def disturb(self) -> None:
        self._wake()
        for kind, pause in (("flush", self.scenario.flush), ("dup", self.scenario.dup)):
            if pause and self.done[kind] < MOST and time.monotonic() > self.due.get(kind, 0.0):
                self.due[kind] = time.monotonic() + pause
                self.done[kind] += 1
                getattr(self, f"_{kind}")()
        if self.done["shot"] < self.scenario.shots:
            self._shoot()
        if self.scenario.crowd and not self.done["crowd"]:
            self._gather()
        if self.network is not None and self.done["broken"] < BROKEN:
            told = self.network.counts()
            self.done["broken"] = sum(told[kind] for kind in self.scenario.network)
            if self.done["broken"] >= BROKEN:
                self.network.control(faults={})
        enough = self.scenario.refuse_after or 0
        if self.before_ledger is not None and not self.done["refused"] and len(self.ledger.lines("arrived")) >= enough:
            self.before_ledger.control(refuse=True)
            self.done["refused"] += 1

    def _wake(self) -> None:
        asleep = [child for child in self.children if child.stopped_at]
        if self.scenario.together and self.done["woken"] + len(asleep) < len(self.scenario.points):
            return
        for child in asleep:
            slept = time.monotonic() - child.stopped_at
            missed = self.scenario.cruel and slept > self.scenario.lease and self._is_missed(child)
            if self.scenario.together or missed or slept >= child.sleep:
                os.kill(child.pid, signal.SIGCONT)
                child.stopped_at = 0.0
                self.done["woken"] += 1

    def _is_missed(self, child: Child) -> bool:
        [[taken, had_any, anybody]] = self.sql(_TAKEN_OVER, str(child.pid))
        return bool(taken or (not had_any and anybody))

    def _flush(self) -> None:
        self.broker.flushdb()

    def _dup(self) -> None:
        """Every hint there could be, three times, shuffled: whether due or not."""
        hints = [(str(a), str(b), str(c)) for a, b, c in self.sql(_ROWS)]
        self.random.shuffle(hints)
        publisher = HintPublisher(Settings.from_env())
        publisher.publish(hints[:12] * 3)
        publisher.close()

    def _gather(self) -> None:
        """As a command of maintenance would; whoever has waited for it comes at the same moment."""
        if self.blocker is None:
            if lines(self.folder / "accepted"):
                self.blocker = psycopg.connect(self.database.info.dsn)
                self.blocker.execute("LOCK TABLE slots IN EXCLUSIVE MODE")
                self.due["crowd"] = time.monotonic() + PATIENCE
        elif time.monotonic() > self.due["crowd"] or self.sql(_WAITING)[0][0] >= self.scenario.crowd:
            self.blocker.close()
            self.done["crowd"] += 1

    def _shoot(self) -> None:
        """A worker whose request the downstream is working on."""
        if time.monotonic() < self.due.get("shot", 0.0):
            return
        at_work = [pid for (pid,) in self.sql(_AT_WORK)]
        busy = [child for child in self.children if str(child.pid) in at_work]
        if busy and len(self.ledger.lines("arrived")) > self.done["shot"]:
            os.kill(self.random.choice(busy).pid, signal.SIGKILL)
            self.done["shot"] += 1
            self.due["shot"] = time.monotonic() + 0.1

    # --- rest ------------------------------------------------------------------------------------------------------

    def go(self) -> list[Row]:
        """Until something is wrong, or it has come to rest; what is wrong then."""
        until = time.monotonic() + self.scenario.rest
        quiet: tuple[float, int] | None = None
        mark: Any = None
        looked, unchanged = time.monotonic(), 0
        while True:
            time.sleep(POLL)
            self.reap()
            self.disturb()
            trouble = self.trouble()
            if trouble:
                return [violation("crash", trouble), *self.wrong_now()]
            now = time.monotonic()
            still, restless = self._is_still(), int(self.sql(_RESTLESS)[0][0])
            if not still or (restless and (self.scenario.sweepers or self._has_hints())):
                quiet = None
            elif quiet is None:
                quiet = now, self.desk.rounds
            elif now - quiet[0] > QUIET and (self.desk.rounds - quiet[1]) % 256 > 1:
                return [*self.wrong_at_rest(), *_stuck("nobody will ever do what is due" if restless else "")]
            if now - looked > LOOK:
                looked = now
                if wrong := self.wrong_now():
                    return wrong
                mark, before = self.sql(_MARK), mark
                unchanged = unchanged if mark == before else 0
            unchanged += 1
            if now > until or unchanged > STUCK:
                return [*_stuck("it does not come to rest"), *self.wrong_now()]

    def wrong_now(self) -> list[Row]:
        return always(self.evidence(), tools.LIMITS, tools.PATIENT, self.scenario.lease)

    def wrong_at_rest(self) -> list[Row]:
        return check(self.evidence(), tools.LIMITS, tools.PATIENT, self.scenario.lease)

    def _is_still(self) -> bool:
        """Nobody is at work or asleep, all workers wait for a message, and the downstream does nothing either."""
        if self.desk.busy() or any(child.stopped_at for child in self.children):
            return False
        clients: Any = self.broker.client_list()
        mine = str(self.broker.get_connection_kwargs()["db"])
        if sum(each["db"] == mine and "b" in each["flags"] for each in clients) != self.scenario.workers:
            return False
        return len(self.ledger.lines("arrived")) == len(self.ledger.lines("left"))

    def _has_hints(self) -> bool:
        return any(self.broker.llen(queue) for queue in QUEUES)

    def trouble(self) -> str:
        """An error in the log: everything that goes wrong in these runs is expected, or a warning."""
        for line in self.log().splitlines():
            if '"level": "error"' in line:
                return f"error: {line[:400]}"
            if line.startswith("Traceback"):
                return "a child ended with an exception"
        return ""

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def evidence(self) -> Evidence:
        return Evidence(
            self.database.info.dsn, self.ledger.path, self.folder / "accepted",
            fired=self.folder / "fired", seen=self.folder / "seen",
        )  # fmt: skip

    def end(self) -> None:
        for child in self.children:
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so nobody else has its number
                os.waitpid(child.pid, 0)


def _stuck(what: str) -> list[Row]:
    return [violation("rest", what)] if what else []


def _slow_down(connection: psycopg.Connection[Any], milliseconds: int) -> None:
    """For the sessions that will be opened: what PostgreSQL has for waiting for company before it flushes."""
    name = sql.Identifier(connection.info.dbname)
    for setting, value in (("commit_siblings", 0), ("commit_delay", milliseconds * 1000)):
        change = sql.SQL("ALTER DATABASE {} SET {} = {}")
        connection.execute(change.format(name, sql.Identifier(setting), sql.Literal(value)))


def dsn(url: str) -> str:
    return url.replace("+psycopg", "")


def broker_client(url: str) -> redis.Redis:
    parts = urlsplit(url)
    number = int(parse_qs(parts.query).get("virtual_host", ["0"])[0])
    return redis.Redis(unix_socket_path=unquote(parts.path), db=number)


def play(scenario: Scenario, seed: int) -> dict[str, Any]:
    """Begin, go on until rest, look at what is left."""
    since = time.monotonic()
    folder, database = Path(os.environ["TURNQUEUE_FAILPOINT_DIR"]), os.environ["TURNQUEUE_DATABASE_URL"]
    (folder / "armed").write_text(",".join(scenario.points))
    scripts = scenario.scripts(folder.name)
    model = os.environ["CHAOS_MODEL_URL"].removesuffix("/v1")
    httpx.post(f"{model}/control/scripts", json=scripts, trust_env=False).raise_for_status()
    with ExitStack() as opened:
        ledger = opened.enter_context(Ledger(folder / "ledger", seed))
        os.environ["CHAOS_LEDGER_URL"] = ledger.url
        network = before_ledger = None
        if scenario.refuse_after is not None:
            before_ledger = opened.enter_context(Proxy(target(ledger.url), seed))
            os.environ["CHAOS_LEDGER_URL"] = through(ledger.url, before_ledger.address)
        ledger.control(enforced=list(tools.ENFORCED), next=scenario.drawn(seed), **scenario.ledger)
        if scenario.network:
            network = opened.enter_context(Proxy(target(database), seed, postgres=True))
            network.control(faults=dict(scenario.network))
            os.environ["TURNQUEUE_DATABASE_URL"] = through(database, network.address)
        connection = opened.enter_context(psycopg.connect(dsn(database), autocommit=True))
        _slow_down(connection, scenario.disk)
        broker = broker_client(os.environ["TURNQUEUE_BROKER_URL"])
        desk = Desk(scenario.workers + scenario.sweepers + 1)
        run = Run(scenario, seed, folder, random.Random(seed), broker, connection, ledger, network, before_ledger, desk)
        run.hire(database)
        try:
            found = run.go()
        finally:
            run.end()
        seen = counts(run.evidence())
        inconclusive = not scenario.sweepers and "hint.publish_failed" in run.log()
    return {
        "violations": [] if inconclusive else found[:20],
        "inconclusive": inconclusive,  # the machine was too slow for hints, and there was no sweeper to make up for it
        "counts": seen,
        "done": run.done,
        "seconds": round(time.monotonic() - since, 2),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    report = play(SCENARIOS[options.scenario], options.seed)
    print(json.dumps(report, default=str))
    return 1 if report["violations"] else 0
