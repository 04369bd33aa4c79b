"""Play runs through real workers: submit them all, decide as the approver would, wait until every one has ended."""

import dataclasses
import os
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedded.databases import drop_database
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import Stack, Worker
from examples.scripted_model.process import ScriptedModel
from orchestrator import commands, people
from orchestrator.app import App
from orchestrator.domain.errors import Conflict
from orchestrator.settings import Settings
from orchestrator.views import ApprovalView, OperationView
from tests.injection import ledger
from tests.injection.ledger import Deed, canonical
from tests.injection.runs import Run, Scenario, Setting

APPROVER = "the-approver"
USER = "the-user"
POLL_SECONDS = 0.3
ENDED = frozenset({"COMPLETED", "REFUSED", "INCOMPLETE", "FAILED", "CANCELLED"})
OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class Table:
    """What the runs are played on; `launch` makes one. `seconds` bounds one `play`."""

    app: App
    model: ScriptedModel
    ledger_path: Path
    seconds: float = 900.0
    approved: Counter[str] = field(default_factory=Counter)  # by operation

    def submit(self, *, tenant: str, profile: str, script_id: str, text: str, scopes: frozenset[str]) -> str:
        request = commands.submission(
            profile=profile, input=f"[script:{script_id}] {text}", tenant=tenant, subject=USER, scopes=scopes
        )
        return commands.submit(self.app, request).operation_id

    def deeds(self) -> list[Deed]:
        return ledger.read(self.ledger_path)

    def play(self, runs: Sequence[Run], on_progress: OnProgress) -> dict[str, Run]:
        """Operation id -> its run, all of them ended. Raises TimeoutError."""
        self.model.add(*(run.script for run in runs))
        started: dict[str, Run] = {}
        for run in runs:
            operation = self.submit(
                tenant=run.tenant, profile=run.setting, script_id=run.script_id, text=run.case.prompt, scopes=run.scopes
            )
            started[operation] = run
        self.wait(started, on_progress, lambda states: self._decide(started, states))
        return started

    def wait(
        self,
        operations: Mapping[str, Any],
        on_progress: OnProgress,
        meanwhile: Callable[[Mapping[str, str]], None] = lambda states: None,
    ) -> None:
        """Until all have ended; `meanwhile` is given their states now and then."""
        until = time.monotonic() + self.seconds
        while True:
            states = self._states(operations)
            ended = sum(state in ENDED for state in states.values())
            on_progress(ended, len(operations))
            if ended == len(operations):
                return
            if time.monotonic() > until:
                left = Counter(state for state in states.values() if state not in ENDED)
                raise TimeoutError(f"{len(operations) - ended} operations did not end: {dict(left)}")
            meanwhile(states)
            time.sleep(POLL_SECONDS)  # the API has nothing to wait on

    def _states(self, operations: Mapping[str, Any]) -> dict[str, str]:
        listed = commands.list_operations(self.app, limit=len(operations) * 3)
        return {row["operation_id"]: row["state"] for row in listed if row["operation_id"] in operations}

    # --- the approver ---

    def _decide(self, started: Mapping[str, Run], states: Mapping[str, str]) -> None:
        ended = {run.tenant for operation, run in started.items() if states[operation] in ENDED}
        for operation, state in states.items():
            run = started[operation]
            if state == "WAITING_APPROVAL" and run.setting is not Setting.NOBODY:
                view = commands.inspect(self.app, operation)
                for approval in view.open_approvals:
                    self._one(run, view, approval, ended)

    def _one(self, run: Run, view: OperationView, approval: ApprovalView, ended: set[str]) -> None:
        """Yes to what the user asked for, once; no to all else. A twin's requests wait until the first has its yes."""
        what = (approval.tool, canonical(approval.arguments))
        granted = sum(
            (each.tool, canonical(each.arguments)) == what and each.decided_by == APPROVER and each.state != "DENIED"
            for each in view.approvals
        )
        if granted < run.approvable[what]:
            people.approve(self.app, approval.approval_id, by=APPROVER)
            self.approved[view.operation_id] += 1
        elif run.scenario is not Scenario.TWIN or run.beside in ended:
            people.deny(self.app, approval.approval_id, by=APPROVER, reason="not what the user asked for")

    def used_again(self, view: OperationView) -> list[str]:
        """Approvals of an ended operation that could be given once more; there must be none."""
        again = []
        for approval in view.approvals:
            try:
                people.approve(self.app, approval.approval_id, by="somebody-else")
                again.append(approval.approval_id)
            except Conflict:
                pass
        return again


@contextmanager
def launch(folder: Path, workers: int = 1, keep: bool = False) -> Iterator[Table]:
    """Real servers with a database of its own, the scripted model, and `workers` processes of each kind."""
    home = Path(tempfile.mkdtemp(prefix="tq-injection-"))
    with ExitStack() as opened:
        if not keep:
            opened.callback(shutil.rmtree, home, ignore_errors=True)
        servers = opened.enter_context(EmbeddedServers(home))
        name = f"injection_{uuid.uuid4().hex[:12]}"
        here = dataclasses.replace(servers, database_url=servers.database(name))
        opened.callback(drop_database, servers.database_url, name)
        yield opened.enter_context(table(here, folder, home, workers))


@contextmanager
def table(servers: Servers, folder: Path, home: Path, workers: int = 1) -> Iterator[Table]:
    """The same on given servers with an empty database; logs and the ledger go to `home`."""
    with ExitStack() as opened:
        model = opened.enter_context(ScriptedModel.start())
        env = {
            "INJECTION_DIR": str(folder.resolve()),
            "INJECTION_LEDGER": str(home / "ledger"),
            "INJECTION_MODEL_URL": f"{model.url}/v1",
            "INJECTION_MODEL_ROOT": model.url,
            "TURNQUEUE_MODULES": "tests.injection.tools",
            "TURNQUEUE_SWEEP_SECONDS": "0.5",
            "TURNQUEUE_QUEUE_PREFIX": f"injection-{uuid.uuid4().hex[:8]}:",
        }
        opened.enter_context(_environment(env))  # this process opens the same application, to submit and to decide
        stack = opened.enter_context(Stack(servers, env=env, workers=_workers(workers), log_dir=home / "logs"))
        stack.wait_ready()
        urls = {"TURNQUEUE_DATABASE_URL": servers.database_url, "TURNQUEUE_BROKER_URL": servers.broker_url}
        app = opened.enter_context(App.open(Settings.from_env({**env, **urls})))
        yield Table(app, model, home / "ledger")


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _workers(number: int) -> list[Worker]:
    return [
        worker
        for i in range(number)
        for worker in (Worker(f"orchestrator{i}", ("orchestrator",)), Worker(f"executors{i}", ("reads", "writes")))
    ]
