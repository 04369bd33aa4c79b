"""Servers, ledger, scripted model and programs that a test starts, signals and sees end; nothing restarts them."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from embedded.servers import Servers
from embedded.stack import CELERY_READY, SWEEPER, Worker
from examples.scripted_model.process import ScriptedModel
from orchestrator import commands
from orchestrator.app import App
from orchestrator.settings import Settings
from orchestrator.views import OperationView
from store.migrate import migrate
from tests.chaos import tools
from tests.chaos.world import Ledger
from tests.system.scene import wait_until

PATIENCE = 120.0
MODULES = ("tests.chaos.tools", "tests.recovery.hazards")
QUICK = {"TURNQUEUE_LEASE_SECONDS": "2", "TURNQUEUE_SWEEP_SECONDS": "0.3"}
ORCHESTRATOR = Worker("orchestrator", ("orchestrator", "submit"), 4)
EXECUTORS = Worker("executors", ("reads", "writes"), 4)
DONE = {"text": "Done."}
_NAMES = count(1)


class Program:
    """One process in a session of its own."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                argv, env={**os.environ, "PYTHONUNBUFFERED": "1", **env}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def said(self, text: str) -> bool:
        """In its log since its start."""
        return text.encode() in self.log.read_bytes()[self._start :]

    def ready(self, text: str) -> "Program":
        wait_until(lambda: self.said(text) or self.process.poll() is not None, PATIENCE)
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return self

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Tell it and wait: its exit status."""
        self.tell(number)
        return self.process.wait(PATIENCE)


@dataclass
class Stage:
    app: App
    model: ScriptedModel
    ledger: Ledger
    folder: Path
    env: dict[str, str]
    started: list[Program] = field(default_factory=list)

    def worker(self, worker: Worker, **env: str) -> Program:
        return self._start(worker.process().argv, worker.name, CELERY_READY, env)

    def sweeper(self, **env: str) -> Program:
        return self._start(SWEEPER, "sweeper", "sweeper.ready", env)

    def _start(self, argv: Sequence[str], name: str, ready: str, env: Mapping[str, str]) -> Program:
        program = Program(argv, {**self.env, **env}, self.folder / f"{name}.log")
        self.started.append(program)
        return program.ready(ready)

    def submit(self, *turns: Mapping[str, Any], **fault: Any) -> str:
        """An operation whose model says `turns`; `fault` is what goes wrong in the first of them."""
        name = f"recovery-{next(_NAMES)}"
        first, *rest = turns
        self.model.add({"id": name, "turns": [{**first, "fault": fault} if fault else first, *rest]})
        request = commands.Submission(
            profile="recovery", input=f"[script:{name}]", tenant="north", subject="client", idempotency_key=name
        )
        return commands.submit(self.app, request).operation_id

    def view(self, operation_id: str) -> OperationView:
        return commands.inspect(self.app, operation_id)

    def finish(self, *operation_ids: str, seconds: float = PATIENCE) -> list[OperationView]:
        wait_until(lambda: all(self.view(each).ended_at is not None for each in operation_ids), seconds)
        return [self.view(each) for each in operation_ids]

    def sql(self, statement: Any, *values: Any) -> list[tuple[Any, ...]]:
        url = make_url(self.app.settings.require_database()).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def leased(self) -> int:
        """Rows that somebody holds."""
        tables = " + ".join(
            f"(SELECT count(*) FROM {table} WHERE lease_until IS NOT NULL)"
            for table in ("operations", "calls", "actions")
        )
        return int(self.sql(f"SELECT {tables}")[0][0])

    def arrived(self) -> int:
        """Requests that the downstream has received."""
        return len(self.ledger.lines("arrived"))

    def effects(self) -> Counter[str]:
        """By idempotency key."""
        return Counter(line["key"] for line in self.ledger.lines("effect"))


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": {"name": arguments}}


def calls(*names: str) -> dict[str, Any]:
    """One turn that calls each of these tools with arguments that nobody else uses."""
    return {"calls": [call(name, f"{name}-{next(_NAMES)}") for name in names]}


@contextmanager
def stage(
    servers: Servers, database_url: str, broker_url: str, env: Mapping[str, str] | None = None
) -> Iterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="tq-rec-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        ledger = opened.enter_context(Ledger(folder / "ledger", 0))
        ledger.control(enforced=list(tools.ENFORCED))
        model = opened.enter_context(ScriptedModel.start())
        where = {"CHAOS_LEDGER_URL": ledger.url, "CHAOS_MODEL_URL": f"{model.url}/v1", "CHAOS_TIMEOUT": "60"}
        shared = {
            **where, "TURNQUEUE_DATABASE_URL": database_url, "TURNQUEUE_BROKER_URL": broker_url,
            "TURNQUEUE_MODULES": ",".join(MODULES), **(env or {}),
        }  # fmt: skip
        settings = Settings(database_url=database_url, broker_url=broker_url, modules=MODULES)
        app = opened.enter_context(App.open(settings))
        migrate(app.database)
        ready = Stage(app, model, ledger, folder, shared)
        try:
            yield ready
        finally:
            for program in ready.started:
                if program.process.poll() is None:
                    program.kill()
