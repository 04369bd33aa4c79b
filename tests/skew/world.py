"""One installation that several releases share: database, broker, ledger and model, and a fleet for each release."""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from embedded.servers import Servers
from embedded.stack import CELERY_READY
from embedded.supervisor import Process, Supervisor
from examples.scripted_model.process import ScriptedModel
from store.tables import SCHEMA_VERSION
from tests.chaos.world import LEASE, QUICK, Ledger, wait_until
from tests.skew import tools
from tests.skew.release import Release

TENANTS = ("north", "south", "west")
WRITES = ("pay_keyed", "pay_both", "pay_lookup")
# Of the writes. What cannot be told from a late arrival (`late`, `silent`) costs waiting and is for tests.chaos.
FAULTS = {"before": 0.04, "after": 0.06, "status": 0.04, "hide": 0.04}
IN_FLIGHT = 16  # operations on their way by themselves while a deploy is prepared
GOING = ("READY", "MODEL_REQUESTED", "EXECUTING", "RESULTS_READY")
SLOW = 1.0  # seconds that a slow effect takes
# A count of each thing that a deploy can meet.
_CENSUS = """
    SELECT 'operation ' || state, count(*) FROM operations WHERE ended_at IS NULL GROUP BY 1
    UNION ALL SELECT 'action ' || state, count(*) FROM actions WHERE settled_at IS NULL GROUP BY 1
    UNION ALL SELECT 'call ' || state, count(*) FROM calls WHERE settled_at IS NULL GROUP BY 1
"""
# What is on its way by itself or waits for a person; an uncertain write that only an operator can settle does neither.
_LEFT = """
    SELECT (SELECT count(*) FROM operations WHERE ended_at IS NULL AND state <> 'RECONCILING' {which})
         + (SELECT count(*) FROM actions WHERE (state IN ('STARTED', 'PENDING') OR wake_at IS NOT NULL) {which})
         + (SELECT count(*) FROM calls WHERE (state = 'RUNNING' OR wake_at IS NOT NULL) {which})
         + (SELECT count(*) FROM attempts WHERE ended_at IS NULL {which})
"""
_OF_VERSION = "AND operation_id IN (SELECT operation_id FROM operations WHERE schema_version <= {version})"


def script(number: int) -> dict[str, Any]:
    """Reads and a write, then for most another write, an approval or a question; every call's `name` is unique."""
    chosen = random.Random(number)
    one, other = chosen.sample(WRITES, 2)
    last = chosen.choice([["pay_asked"], ["ask_user"], ["narrow", "pay_asked"], [other], []])
    turns: list[dict[str, Any]] = []
    for names in (["look", "narrow", one], last):
        calls = [
            {"name": name, "arguments": {"name": f"{number}-{len(turns)}-{at}"}}
            if name != "ask_user"
            else {"name": name, "arguments": {"question": "Which day?"}}
            for at, name in enumerate(names)
        ]
        delay = 1.0 if number % 4 == 0 and not turns else chosen.random() * 0.1
        turns += [{"calls": calls, "fault": {"delay": round(delay, 3)}}] if calls else []
    return {"id": f"skew-{number}", "turns": [*turns, {"text": "Done."}]}


class Caller:
    """A client process with the code of one release; see `tests.skew.client`."""

    def __init__(self, release: Release, env: dict[str, str], folder: Path) -> None:
        self._log = (folder / f"client-{release.name}.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.skew.client"], env={**env, **release.env}, cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip

    def __call__(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self.heard()

    def heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # the rest is log
                return dict(json.loads(line))
        raise AssertionError(f"the client ended; see {self._log.name}")

    def close(self) -> None:
        self._process.communicate(timeout=30)
        self._log.close()


def fleet(release: Release, env: dict[str, str], folder: Path) -> Supervisor:
    """A worker for everything and a sweeper. The working directory must not be a checkout: Celery looks there first."""
    celery = (sys.executable, "-m", "celery", "--workdir", str(folder), "-A", "orchestrator.tasks", "worker")
    options = ("-P", "threads", "-c", "10", "-l", "INFO", "--without-gossip", "--without-mingle")
    queues = ("-Q", "orchestrator,submit,reads,writes", "-n", f"{release.name}@%h")
    processes = [
        Process("worker", (*celery, *queues, *options), ready=CELERY_READY),
        Process("sweeper", (sys.executable, "-m", "orchestrator.sweeper")),
    ]
    return Supervisor(processes, log_dir=folder / f"logs-{release.name}", env={**env, **release.env})


@dataclass
class Yard:
    database_url: str
    connection: psycopg.Connection[Any]
    ledger: Ledger
    model: ScriptedModel
    env: dict[str, str]
    folder: Path
    opened: ExitStack
    callers: dict[str, Caller] = field(default_factory=dict)
    submitted: int = 0

    # --- processes -------------------------------------------------------------------------------------------------

    def start(self, release: Release) -> Supervisor:
        """A fleet that is ready; what it runs is what it should."""
        running = fleet(release, self.env, self.folder)
        self.opened.callback(running.stop)
        running.start()
        running.wait_ready()
        pids = {running.pid(name) for name in ("worker", "sweeper")}
        assert wait_until(lambda: pids <= self.loaded().keys())
        assert {self.loaded()[pid] for pid in pids} == {str(release.site)}
        return running

    def loaded(self) -> dict[int, str]:
        """Where each process found our packages."""
        lines = map(json.loads, (self.folder / "loaded").read_text().splitlines())
        return {line["pid"]: str(Path(line["file"]).parents[1]) for line in lines}

    def caller(self, release: Release) -> Caller:
        if release.name not in self.callers:
            self.callers[release.name] = Caller(release, self.env, self.folder)
            assert self.callers[release.name].heard() == {}
        return self.callers[release.name]

    def dismiss(self, *releases: Release) -> None:
        """End the clients of these, or of all."""
        for name in [release.name for release in releases] or list(self.callers):
            self.callers.pop(name).close()

    def migrate(self, release: Release) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "store.migrate"]
        return subprocess.run(
            argv, env={**self.env, **release.env}, cwd=self.folder, capture_output=True, text=True, check=False
        )

    # --- operations ------------------------------------------------------------------------------------------------

    def submit(self, release: Release, count: int) -> None:
        numbers = range(self.submitted, self.submitted + count)
        self.submitted += count
        self.model.add(*(script(number) for number in numbers))
        for number in numbers:
            asked = {"tenant": TENANTS[number % 3], "input": f"[script:skew-{number}]", "key": f"k{number}"}
            answer = self.caller(release)(submit=asked)
            line = {"operation_id": answer["operation_id"], "number": number, "at": time.time(), **asked}
            with (self.folder / "accepted").open("a") as log:
                log.write(json.dumps(line) + "\n")

    def decide(self, release: Release) -> Counter[str]:
        """Approve and answer all that is asked now; how often which answer came."""
        heard = Counter[str]()
        for kind, table in (("approve", "approvals"), ("answer", "questions")):
            key = table[:-1] + "_id"
            for row_id, tenant in self.sql(f"SELECT {key}, tenant FROM {table} WHERE state = 'PENDING'"):
                heard[self.caller(release)(**{kind: row_id, "tenant": tenant}).get("error", "done")] += 1
        return heard

    def census(self) -> Counter[str]:
        return Counter(dict(self.sql(_CENSUS)))

    def begin(self, release: Release, count: int, *wanted: str) -> Counter[str]:
        """Submit so many, and more until all of these are there at one moment; what there was."""
        first, found = self.submitted, Counter[str]()

        def there() -> bool:
            nonlocal found
            found = self.census()
            going = sum(found[f"operation {state}"] for state in GOING)
            if going < IN_FLIGHT:
                self.ledger.control(next=["slow"])
                self.submit(release, 3)  # a few at a time, so that they are at different places
            return self.submitted - first >= count and all(found[each] for each in wanted)

        assert wait_until(there), self.story()
        return found

    def finish(self, releases: Iterable[Release], version: int | None = None) -> None:
        """People decide, each time with another release's command; until everything has ended, or all of a version."""
        takers = list(releases)
        which = "" if version is None else _OF_VERSION.format(version=version)
        rounds = 0

        def ended() -> bool:
            nonlocal rounds
            rounds += 1
            self.decide(takers[rounds % len(takers)])
            return bool(self.sql(_LEFT.format(which=which))[0][0] == 0)

        assert wait_until(ended), self.story()

    def sql(self, statement: Any, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, values).fetchall()

    def of_newer_version(self) -> list[list[tuple[Any, ...]]]:
        """All rows of operations that this release does not know."""
        newer = f"operation_id IN (SELECT operation_id FROM operations WHERE schema_version > {SCHEMA_VERSION})"
        tables = ("operations", "calls", "actions", "approvals", "questions", "attempts", "audit")
        return [self.sql(f"SELECT * FROM {table} WHERE {newer} ORDER BY 1") for table in tables]

    # --- what came of it -------------------------------------------------------------------------------------------

    def states(self) -> Counter[str]:
        return Counter(dict(self.sql("SELECT state, count(*) FROM operations GROUP BY 1")))

    def story(self) -> str:
        """For the message of a failed test: what is left, and the end of every log."""
        logs = [path for path in sorted(self.folder.rglob("*.log")) if path.stat().st_size]
        ends = [f"--- {path}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]) for path in logs]
        return "\n".join([repr(self.census()), *ends])

    def violations(self) -> list[Any]:
        argv = [sys.executable, "-m", "tests.chaos.verify", "--database", self.database_url.replace("+psycopg", "")]
        argv += ["--ledger", str(self.ledger.path), "--accepted", str(self.folder / "accepted")]
        argv += ["--limits", json.dumps(tools.LIMITS), "--attempts", str(tools.ATTEMPTS), "--lease", str(LEASE)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return list(json.loads(done.stdout)["violations"])


@contextmanager
def yard(servers: Servers, database_url: str, broker_url: str, environ: dict[str, str]) -> Iterator[Yard]:
    folder = Path(tempfile.mkdtemp(prefix="tq-skew-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        ledger = opened.enter_context(Ledger(folder / "ledger", 1))
        ledger.control(enforced=list(tools.ENFORCED), faults=FAULTS, late_s=SLOW, hide_s=0.5)
        model = opened.enter_context(ScriptedModel.start())
        env = {
            **environ,
            **QUICK,
            "TURNQUEUE_DATABASE_URL": database_url,
            "TURNQUEUE_BROKER_URL": broker_url,
            "TURNQUEUE_MODULES": "tests.skew.tools",
            "SKEW_LEDGER_URL": ledger.url,
            "SKEW_MODEL_URL": f"{model.url}/v1",
            "SKEW_LOADED": str(folder / "loaded"),
        }
        url = database_url.replace("+psycopg", "")
        connection = opened.enter_context(psycopg.connect(url, autocommit=True))
        connection.prepare_threshold = None  # migrations change the tables meanwhile
        here = Yard(database_url, connection, ledger, model, env, folder, opened)
        opened.callback(here.dismiss)
        yield here
