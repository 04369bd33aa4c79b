"""Real processes over one database and broker: workers, sweepers, the scripted model, a downstream of the test's."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import text

from embedded.servers import Servers
from embedded.stack import SWEEPER, Stack, Worker
from embedded.supervisor import CrashLimit, Process
from examples.scripted_model.process import ScriptedModel
from orchestrator import commands
from orchestrator.app import App
from orchestrator.failpoints import hits
from orchestrator.settings import Settings
from orchestrator.views import OperationView
from tests.executors.downstream import Downstream, downstream
from tests.faults import tools
from tests.system.scene import PATIENCE, wait_until

LEASE = 2.0
QUICK = {
    "TURNQUEUE_LEASE_SECONDS": str(LEASE), "TURNQUEUE_SWEEP_SECONDS": "0.3", "TURNQUEUE_LOG_LEVEL": "INFO",
}  # fmt: skip
ORCHESTRATOR = Worker("orchestrator", ("orchestrator", "submit"), 4)
EXECUTORS = Worker("executors", ("reads", "writes"), 4)
_NAMES = count(1)


def sweeper(name: str = "sweeper", **env: str) -> Process:
    return Process(name, SWEEPER, env=env, ready="sweeper.ready")


def worker(of: Worker, **env: str) -> Process:
    return replace(of.process(), env=env)


@dataclass
class Floor:
    app: App
    stack: Stack
    model: ScriptedModel
    lab: Downstream
    folder: Path

    def submit(self, *turns: Mapping[str, Any], tenant: str = "acme") -> str:
        name = f"floor{next(_NAMES)}"
        self.model.add({"id": name, "turns": list(turns)})
        request = commands.submission(profile="floor", input=f"[script:{name}]", tenant=tenant, subject="alice")
        return commands.submit(self.app, request).operation_id

    def view(self, operation: str) -> OperationView:
        return commands.inspect(self.app, operation)

    def ended(self, operation: str) -> OperationView:
        """Once it has."""
        wait_until(lambda: self.view(operation).ended_at is not None)
        return self.view(operation)

    def sql(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        with self.app.database.autocommit() as connection:
            result = connection.execute(text(statement), values)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def audited(self, operation: str, kind: str) -> int:
        rows = self.sql("SELECT 1 FROM audit WHERE operation_id = :o AND kind = :k", o=operation, k=kind)
        return len(rows)

    def arm(self, point: str, nth: int) -> None:
        """Kill whoever passes this failpoint for the nth time from now on."""
        new = self.folder / "armed.new"
        new.write_text(f"{point}:{hits(point, self.folder) + nth}")
        new.rename(self.folder / "armed")

    def killed(self) -> list[int]:
        """Process ids of those who died at a failpoint."""
        fired = self.folder / "fired"
        return [int(line.split()[2]) for line in fired.read_text().splitlines()] if fired.exists() else []


@contextmanager
def floor(
    servers: Servers, database_url: str, broker_url: str, processes: Sequence[Process], env: Mapping[str, str] = {}
) -> Iterator[Floor]:
    """`env` of the processes, beside what the tools need."""
    folder = Path(tempfile.mkdtemp(prefix="tq-floor-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        model = opened.enter_context(ScriptedModel.start())
        lab = opened.enter_context(downstream())
        ours = {"LAB_URL": lab.url, "LAB_MODEL_URL": f"{model.url}/v1", "TURNQUEUE_FAILPOINT_DIR": str(folder)}
        stack = opened.enter_context(
            Stack(
                Servers(database_url, broker_url, servers.data_dir), modules=[tools.__name__],
                env={**QUICK, **ours, **env}, workers=(), sweeper=None, extra=processes, log_dir=folder,
                crash_limit=CrashLimit(deaths=1000),
            )
        )  # fmt: skip
        stack.wait_ready(PATIENCE)
        settings = Settings(database_url=database_url, broker_url=broker_url, modules=(tools.__name__,))
        app = opened.enter_context(App.open(settings))
        yield Floor(app, stack, model, lab, folder)
