"""Servers, ledger, scripted model, workers, sweeper and client of one run; all of it ends with the `with` block."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import amqp
import httpx
import psycopg
import redis

from embedded.keeper import first_line_number, live_postgres
from embedded.layout import Layout, prepare
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import CELERY_READY, MIGRATE, Stack
from embedded.supervisor import CrashLimit, Process
from examples.scripted_model.process import ScriptedModel
from orchestrator.failpoints import hits
from orchestrator.settings import Settings
from tests.brokers.rabbitmq import RabbitMQ, clean
from tests.chaos import tools
from tests.chaos.proxy import Proxy, target, through

PATIENCE = 120.0  # seconds a condition may take on a loaded machine
LEASE = 2.0
QUICK = {
    "TURNQUEUE_LEASE_SECONDS": str(LEASE),
    "TURNQUEUE_SWEEP_SECONDS": "0.3",
    "TURNQUEUE_LOG_LEVEL": "WARNING",
    "TURNQUEUE_LOST_LIMIT": "100000",  # deaths are what this is about
    "TURNQUEUE_CHECK_LIMIT": "5",
    "TURNQUEUE_ASK_LIMIT": "1000",  # and a model that is away for seconds
    "TURNQUEUE_ANCHOR_SECONDS": "0.5",
    "TURNQUEUE_ANCHOR_KEY_ENV": "CHAOS_ANCHOR_KEY",
    "CHAOS_ANCHOR_KEY": "a key that is no secret in a test run",
}
# What is still on its way; 0 when the run has come to rest.
_RESTLESS = """
    SELECT (SELECT count(*) FROM operations WHERE ended_at IS NULL AND state <> 'RECONCILING')
         + (SELECT count(*) FROM actions WHERE state IN ('STARTED', 'PENDING') OR wake_at IS NOT NULL)
         + (SELECT count(*) FROM calls WHERE state = 'RUNNING' OR wake_at IS NOT NULL)
         + (SELECT count(*) FROM attempts WHERE ended_at IS NULL)
         + (SELECT count(*) FROM slots WHERE lease_until > clock_timestamp())
"""


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Poll; False when it did not come true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


class Ledger:
    """The downstream's process; see `ledger`."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        argv = [sys.executable, "-m", "tests.chaos.ledger", "--file", str(path), "--seed", str(seed)]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip().removeprefix("listening on ")
        self._client = httpx.Client(base_url=self.url, trust_env=False)

    def control(self, **order: Any) -> None:
        self._client.post("/control", json=order).raise_for_status()

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = map(json.loads, self.path.read_text().splitlines() if self.path.exists() else ())
        return [line for line in found if line["event"] == event]

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass
class World:
    embedded: EmbeddedServers
    servers: Servers
    layout: Layout
    ledger: Ledger
    model: ScriptedModel
    stack: Stack
    folder: Path
    settings: Settings
    names: tuple[str, ...]
    proxies: dict[str, Proxy]  # by what is behind them
    environ: dict[str, str]  # of a process of the run, beside this one's
    rabbit: RabbitMQ | None = None  # the broker, where it is not Valkey
    arms: dict[str, str] = field(default_factory=dict)  # point -> what stands in the file `armed`

    def arm(self, point: str, nth: int = 1, action: str = "kill") -> None:
        """Kill or stop whoever passes this point for the nth time from now on, beside what is armed already."""
        self.arms[point] = f"{point}:{hits(point, self.folder) + nth}:{action}"
        self._write_arms()

    def disarm(self, *points: str) -> None:
        """These, or all."""
        for point in points or tuple(self.arms):
            self.arms.pop(point, None)
        self._write_arms()

    def _write_arms(self) -> None:
        new = self.folder / "armed.new"
        new.write_text(",".join(self.arms.values()))
        new.rename(self.folder / "armed")

    def fired(self) -> list[tuple[str, int, int, str]]:
        """(point, hit, process id, action), oldest first."""
        path = self.folder / "fired"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(point, int(hit), int(pid), action) for point, hit, pid, action in rows]

    def pid(self, name: str) -> int | None:
        """Of the fork that runs now."""
        try:
            return int((self.folder / f"{name}.pid").read_text())
        except FileNotFoundError:
            return None

    def kill(self, name: str) -> bool:
        """SIGKILL to the fork, which the nursery replaces."""
        pid = self.pid(name)
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def sql(self, statement: Any, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(statement, values).fetchall()

    @property
    def dsn(self) -> str:
        return self.servers.database_url.replace("+psycopg", "")

    def broker(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.layout.valkey_socket))

    def flush_broker(self) -> None:
        """All that the broker holds is gone: messages, queues, consumers."""
        if self.rabbit is None:
            with self.broker() as broker:
                broker.flushall()
        else:
            with suppress(OSError, amqp.AMQPError):  # it may be about to be killed or hung
                clean(self.servers.broker_url)

    def broker_pid(self) -> int:
        if self.rabbit is not None:
            return self.rabbit.pid
        pid = first_line_number(self.layout.files.valkey_pid)
        assert pid is not None
        return pid

    def kill_postgres(self) -> None:
        """SIGKILL to the postmaster, then start the server again, which recovers from its log."""
        pid = live_postgres(self.layout.cluster)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.embedded.ensure()

    def kill_broker(self) -> None:
        """SIGKILL and a start: Valkey is empty then, RabbitMQ has what was on its disk."""
        if self.rabbit is not None:
            self.rabbit.kill()
            self.rabbit.start()
            return
        os.kill(self.broker_pid(), signal.SIGKILL)
        self.embedded.ensure()

    def rest(self, seconds: float = PATIENCE) -> bool:
        """Wait until nothing moves by itself any more; False when that took too long."""

        def at_rest() -> bool:
            with suppress(psycopg.OperationalError):
                if self.sql(_RESTLESS)[0][0] == 0:
                    return len(self.ledger.lines("arrived")) == len(self.ledger.lines("left"))
            return False

        return wait_until(at_rest, seconds)

    def tamper(self, statement: Any) -> None:
        """Change what no trigger would let through."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET LOCAL session_replication_role = 'replica'")
            connection.execute(statement)

    def verify(self, *, ledger: Path | None = None, accepted: Path | None = None) -> dict[str, Any]:
        """What the verifier prints."""
        argv = [sys.executable, "-m", "tests.chaos.verify", "--database", self.dsn]
        argv += ["--ledger", str(ledger or self.ledger.path), "--accepted", str(accepted or self.folder / "accepted")]
        argv += ["--limits", json.dumps(tools.LIMITS)]
        argv += ["--attempts", str(tools.PATIENT), "--lease", str(self.settings.lease_seconds)]
        argv += ["--fired", str(self.folder / "fired")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout))


def _nursery(folder: Path, name: str, kind: str, *arguments: str) -> Process:
    argv = (sys.executable, "-m", "tests.chaos.nursery", str(folder / f"{name}.pid"), kind, *arguments)
    return Process(name, argv, ready=CELERY_READY if kind == "worker" else None)


def _workers(folder: Path, count: int) -> list[Process]:
    kinds = {"orchestrator": "orchestrator,submit", "executors": "reads,writes"}
    options = ("-P", "threads", "-c", "4", "-l", "INFO", "--without-gossip", "--without-mingle")
    return [
        _nursery(folder, f"{kind}{n}", "worker", "-Q", queues, "-n", f"{kind}{n}@%h", *options)
        for kind, queues in kinds.items()
        for n in range(1, count + 1)
    ]


def _killed_migration(env: Mapping[str, str], folder: Path) -> None:
    """K22: a migration dies before its commit; the stack's own one finds a database to start from."""
    armed = {"TURNQUEUE_FAILPOINTS": "migration.uncommitted:1", "TURNQUEUE_FAILPOINT_DIR": str(folder)}
    died = subprocess.run(MIGRATE, env={**os.environ, **env, **armed}, check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr


PROXIED = ("postgres", "broker", "model", "ledger")


@contextmanager
def world(
    seed: int = 0,
    *,
    workers: int = 2,
    client: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    proxied: Collection[str] = (),
) -> Iterator[World]:
    """`client`: the arguments of the client beside seed and folder; None for no client. Without workers no sweeper.

    The run's processes reach what is `proxied` (of PROXIED) through a proxy; `World` itself goes straight to it.
    `TQ_TEST_BROKER=amqp` in the environment: the broker is a RabbitMQ.
    """
    # Not a private directory: as root the servers run as another user.
    home, folder = Path(tempfile.mkdtemp(prefix="tq-")), Path(tempfile.mkdtemp(prefix="tq-chaos-"))
    with ExitStack() as opened:
        for path in (home, folder):
            opened.callback(shutil.rmtree, path, ignore_errors=True)
        amqp_wanted = os.environ.get("TQ_TEST_BROKER") == "amqp"
        rabbit = opened.enter_context(RabbitMQ(folder / "rabbitmq")) if amqp_wanted else None
        embedded = EmbeddedServers(home, {"TURNQUEUE_BROKER_URL": rabbit.url()} if rabbit else {})
        servers = opened.enter_context(embedded)
        ledger = opened.enter_context(Ledger(folder / "ledger", seed))
        model = opened.enter_context(ScriptedModel.start())
        urls = {
            "postgres": servers.database_url, "broker": servers.broker_url, "model": model.url, "ledger": ledger.url,
        }  # fmt: skip
        proxies = {name: Proxy(target(urls[name]), seed, postgres=name == "postgres") for name in proxied}
        for name, proxy in proxies.items():
            opened.enter_context(proxy)
            urls[name] = through(urls[name], proxy.address)
        ours = {
            **QUICK,
            "CHAOS_LEDGER_URL": urls["ledger"],
            "CHAOS_MODEL_URL": f"{urls['model']}/v1",
            "TURNQUEUE_FAILPOINT_DIR": str(folder),
            "TURNQUEUE_ANCHOR_FILE": str(folder / "anchors"),
            **(env or {}),
        }
        modules = "tests.chaos.tools"
        _killed_migration({"TURNQUEUE_DATABASE_URL": servers.database_url}, folder)
        processes = [*_workers(folder, workers), _nursery(folder, "sweeper", "sweeper")] if workers else []
        if client is not None:
            arguments = ("--seed", str(seed), "--folder", str(folder), *client)
            processes.append(_nursery(folder, "client", "client", *arguments))
        seen = Servers(urls["postgres"], urls["broker"], servers.data_dir)
        stack = opened.enter_context(
            Stack(
                seen, modules=[modules], env=ours, workers=(), sweeper=None, extra=processes, log_dir=folder,
                crash_limit=CrashLimit(deaths=100000),
            )
        )  # fmt: skip
        stack.wait_ready(PATIENCE)
        ledger.control(enforced=list(tools.ENFORCED))
        settings = Settings(
            database_url=servers.database_url, broker_url=servers.broker_url, modules=(modules,), hint_limit=100000,
            lease_seconds=float(ours["TURNQUEUE_LEASE_SECONDS"]),
        )  # fmt: skip
        names = tuple(process.name for process in processes)
        ours |= {
            "TURNQUEUE_DATABASE_URL": urls["postgres"], "TURNQUEUE_BROKER_URL": urls["broker"],
            "TURNQUEUE_MODULES": modules,
        }  # fmt: skip
        yield World(
            embedded, servers, prepare(home), ledger, model, stack, folder, settings, names, proxies, ours, rabbit
        )  # fmt: skip
