"""Run the workload through Turnqueue: real servers, real workers, real HTTP; N operations, K in flight."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import redis
from sqlalchemy import text

from embedded.servers import EmbeddedServers, Servers
from embedded.stack import Stack, Worker
from orchestrator import commands
from orchestrator.app import App
from orchestrator.settings import Settings

SHARED = Path(__file__).resolve().parents[2] / "shared"
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Result:
    """Rates are per second of wall time; latencies run from the insert to the end, on the database clock."""

    peer: str
    n: int
    inflight: int
    ok: int
    ops_s: float
    p50_ms: float
    p99_ms: float
    commits_per_op: float
    messages_per_op: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def model_server(delay: float = 0.0) -> Iterator[str]:
    """The shared scripted model of the benchmark; its base URL in the OpenAI form."""
    script = SHARED / "bench" / "peers" / "model_server.py"
    if not script.exists():
        raise SystemExit(f"{script} is missing: the benchmark needs the shared reference material")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(script), str(port), str(delay)])
    try:
        url = f"http://127.0.0.1:{port}/v1"
        while process.poll() is None:
            try:
                httpx.post(f"{url}/responses", json={"model": "m", "input": []}, trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def run(
    n: int, inflight: int, workers: tuple[Worker, ...], delay: float = 0.0, *, log_level: str = "WARNING"
) -> Result:
    home = Path(tempfile.mkdtemp(prefix="tq-bench-"))
    with EmbeddedServers(home) as servers, model_server(delay) as url:
        env = {"BENCH_MODEL_URL": url, "TURNQUEUE_LOG_LEVEL": log_level, "TURNQUEUE_POOL_SIZE": "8"}
        os.environ |= env
        with Stack(servers, modules=["bench.workload"], env=env, workers=workers) as stack:
            stack.wait_ready(60)
            settings = Settings(
                database_url=servers.database_url, broker_url=servers.broker_url, modules=("bench.workload",)
            )
            with App.open(settings) as app:
                _measure(app, servers, 2 * inflight, inflight)  # warm: pools, prepared statements
                return _measure(app, servers, n, inflight)


def _measure(app: App, servers: Servers, n: int, inflight: int) -> Result:
    commits, messages = _commits(app), _messages(servers)
    polls = 0
    sent: list[str] = []
    started = time.monotonic()
    ended = 0
    while ended < n:
        while len(sent) < n and len(sent) - ended < inflight:
            request = commands.Submission(profile="bench", input=f"order {len(sent)}")
            sent.append(commands.submit(app, request).operation_id)
        polls += 1
        ended = _ended(app, sent[0])
        if ended < n:
            time.sleep(POLL_SECONDS)
        if time.monotonic() - started > 60 + n:
            break
    wall = time.monotonic() - started
    ok, latencies = _latencies(app, sent)
    return Result(
        peer="turnqueue",
        n=n,
        inflight=inflight,
        ok=ok,
        ops_s=round(n / wall, 1),
        p50_ms=round(latencies[len(latencies) // 2] * 1e3, 1),
        p99_ms=round(latencies[int(len(latencies) * 0.99)] * 1e3, 1),
        commits_per_op=round((_commits(app) - commits - polls) / n, 1),
        messages_per_op=round((_messages(servers) - messages) / n, 1),
    )


def _ended(app: App, first: str) -> int:
    with app.database.autocommit() as connection:
        statement = text("SELECT count(*) FROM operations WHERE operation_id >= :first AND ended_at IS NOT NULL")
        return int(connection.execute(statement, {"first": first}).scalar_one())


def _latencies(app: App, sent: list[str]) -> tuple[int, list[float]]:
    statement = text(
        "SELECT state, EXTRACT(epoch FROM ended_at - created_at) AS seconds FROM operations "
        "WHERE operation_id = ANY(:ids) AND ended_at IS NOT NULL"
    )
    with app.database.autocommit() as connection:
        rows = connection.execute(statement, {"ids": sent}).all()
    return sum(row.state == "COMPLETED" for row in rows), sorted(float(row.seconds) for row in rows)


def _commits(app: App) -> int:
    with app.database.autocommit() as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        statement = text("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return int(connection.execute(statement).scalar_one())


def _messages(servers: Servers) -> int:
    """LPUSH calls so far: one per message."""
    path = urlsplit(servers.broker_url)
    client = (
        redis.Redis(unix_socket_path=path.path) if "socket" in path.scheme else redis.Redis.from_url(servers.broker_url)
    )
    with client if hasattr(client, "__enter__") else nullcontext(client):
        stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
        return int(stats.get("cmdstat_lpush", {}).get("calls", 0))
