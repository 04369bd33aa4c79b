"""The support scenario on real processes: servers, shop, scripted model, workers and sweeper, as a test sees it."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from embedded.servers import Servers
from embedded.stack import Stack, Worker
from embedded.supervisor import CrashLimit
from examples.scripted_model.process import ScriptedModel
from examples.support.scenario import SCOPES, SUBJECT, TENANT, LedgerRow, RunningShop, ledger, seed, shop_process
from examples.support.script import script
from orchestrator import commands
from orchestrator.app import App
from orchestrator.failpoints import hits
from orchestrator.settings import Settings
from orchestrator.views import OperationView

PATIENCE = 90.0  # seconds a condition may take on a loaded machine
QUICK = {"TURNQUEUE_LEASE_SECONDS": "2", "TURNQUEUE_SWEEP_SECONDS": "0.3", "TURNQUEUE_LOG_LEVEL": "WARNING"}
WORKERS = (
    Worker("orchestrator", ("orchestrator", "submit"), 4),
    Worker("executors", ("reads", "writes"), 4),
)


@dataclass(slots=True)
class Scene:
    app: App
    stack: Stack
    model: ScriptedModel
    shop: RunningShop
    database_url: str
    failpoints: Path
    orders: list[str] = field(default_factory=list)

    def arm(self, point: str, nth: int = 1) -> None:
        """Kill the worker that passes this point for the nth time from now on."""
        armed = self.failpoints / "armed"
        armed.with_suffix(".new").write_text(f"{point}:{hits(point, self.failpoints) + nth}")
        armed.with_suffix(".new").rename(armed)

    def fired(self) -> bool:
        """Whether the armed point has been reached."""
        point, _, hit = (self.failpoints / "armed").read_text().partition(":")
        return hits(point, self.failpoints) >= int(hit)

    def submit(self, order_id: str, **fault: object) -> str:
        """One refund of its own order; `fault` is what goes wrong in the first turn (see the scripted model)."""
        seed(self.database_url, order_id=order_id)
        played = script(order_id) | {"id": order_id}
        played["turns"][0] |= {"fault": fault} if fault else {}
        self.model.add(played)
        request = commands.Submission(
            profile="support",
            input=f"[script:{order_id}] Please refund order {order_id}.",
            tenant=TENANT,
            subject=SUBJECT,
            scopes=SCOPES,
        )
        self.orders.append(order_id)
        return commands.submit(self.app, request).operation_id

    def view(self, operation_id: str) -> OperationView:
        return commands.inspect(self.app, operation_id)

    def finish(self, *operation_ids: str) -> list[OperationView]:
        """Approve what is asked until every operation has ended."""

        def ended() -> bool:
            views = [self.view(operation_id) for operation_id in operation_ids]
            for view in views:
                for approval in view.open_approvals:
                    commands.approve(self.app, approval.approval_id, by="tester")
            return all(view.ended_at is not None for view in views)

        wait_until(ended)
        return [self.view(operation_id) for operation_id in operation_ids]

    def ledger(self, order_id: str) -> list[LedgerRow]:
        return [row for row in ledger(self.shop.url, TENANT, self.shop.token) if row.order_id == order_id]


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Poll a condition; fails the test when it does not come true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.05)


@contextmanager
def scene(
    servers: Servers,
    database_url: str,
    broker_url: str,
    env: Mapping[str, str] | None = None,
    workers: Sequence[Worker] = WORKERS,
) -> Iterator[Scene]:
    logs = Path(tempfile.mkdtemp(prefix="tq-logs-"))
    here = Servers(database_url, broker_url, servers.data_dir)
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, logs, ignore_errors=True)
        model = opened.enter_context(ScriptedModel.start())
        seed(database_url)
        shop = opened.enter_context(shop_process(database_url, faults=True))
        shared = {**QUICK, **shop.env, "SUPPORT_MODEL_URL": f"{model.url}/v1", "TURNQUEUE_FAILPOINT_DIR": str(logs)}
        stack = opened.enter_context(
            Stack(
                here,
                modules=["examples.support"],
                env={**shared, **(env or {})},
                workers=workers,
                log_dir=logs,
                crash_limit=CrashLimit(deaths=1000),
            )
        )
        stack.wait_ready(PATIENCE)
        settings = Settings(database_url=database_url, broker_url=broker_url, modules=("examples.support",))
        app = opened.enter_context(App.open(settings))
        yield Scene(app, stack, model, shop, database_url, logs)
