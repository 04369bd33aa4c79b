"""What a forked child of the fork harness does: one piece of the system's real work, then it is gone.

The parent has imported and warmed everything and holds nothing open; the child opens its own connections to PostgreSQL,
the broker, the ledger and the model. What it runs is what a worker runs: the bodies of the Celery tasks with the row
id of a message, `commands.submit`, `commands.approve` and `deny`, `sweeper.run` with its lock and its anchoring, and
`store.migrate.migrate` on a database of its own.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import redis.utils

from executors.http import shared_client
from orchestrator import commands, dispatch, sweeper, tasks, turn
from orchestrator.app import App
from orchestrator.domain.errors import Conflict, TurnqueueError
from orchestrator.failpoints import arm_here
from orchestrator.leases import LeaseKeeper
from orchestrator.logs import configure
from orchestrator.provider import model_client
from store import migrate
from store.db import Database
from tests.chaos.client import TENANTS

PR_SET_PDEATHSIG = 1
AGAIN = 1  # exit status of a child whose server is away
LONG = 1.0  # seconds for which others work
PATIENCE = 20.0  # seconds for the warming
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Job:
    """`kind`: turns, reads, starts, checks (`given`: task name and row id), submit (numbers), decide (approval ids),
    sweep, migrate (the database's URL). `point` "" for a child that is not armed.
    """

    kind: str
    given: tuple[Any, ...] = ()
    point: str = ""
    nth: int = 1
    action: str = "kill"


def prepared(numbers: list[int], seed: int, folder: Path) -> App:
    """The parent's composition root after some real work, so that what is compiled once is; nothing is left open."""
    configure()
    _cache_versions()
    tasks.app.finalize()
    root = tasks.process_app()
    root.sync_slots()
    _submit(root, numbers, seed, folder)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and turn.advance(root, None):
        while dispatch.run_one(root, "reads", None) or dispatch.run_one(root, "writes", None):
            pass
    migrate.migrate(root.database)  # there already: reads the scripts
    root.leases.close()
    _close(root)
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.02)
    if threading.active_count() > 1:
        raise RuntimeError(f"threads are left: {threading.enumerate()}")
    root.__dict__["model_http"], root.__dict__["tool_http"] = model_client(), shared_client()
    return root


def _cache_versions() -> None:
    """redis-py looks its own version up on the disk for each connection: half of what a child's first hint costs."""
    vars(redis.utils)["get_lib_version"] = cache(redis.utils.get_lib_version)


def _close(root: App) -> None:
    for name in ("model_http", "tool_http", "hints"):
        if name in root.__dict__:
            root.__dict__.pop(name).close()
    root.database.close()


def live(root: App, job: Job, worker: str, parent: int, seed: int, folder: Path) -> None:
    """In the child, to its end. Raises what the work raises: nothing may."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    root.worker = worker
    root.leases = LeaseKeeper(root.database, root.settings.lease_seconds)
    # One step is enough for a child that dies in it; if its row was not due any more, it need not find another.
    seconds = 0.0 if job.point and job.nth == 1 else LONG
    root.settings = root.settings.model_copy(update={"slice_seconds": seconds})
    arm_here(job.point, job.nth, job.action)
    try:
        _work(root, job, seed, folder)
    except TurnqueueError as error:  # a server is away
        print(f"{job.kind} {job.given}: {error.code}", file=sys.stderr, flush=True)
        os._exit(AGAIN)


def _work(root: App, job: Job, seed: int, folder: Path) -> None:
    match job.kind:
        case "submit":
            _submit(root, list(job.given), seed, folder)
        case "decide":
            _decide(root, list(job.given))
        case "sweep":
            sweeper.run(root, threading.Event())
        case "migrate":
            migrate.migrate(Database(job.given[0], pool_size=2))
        case _:
            name, row_id = job.given
            tasks.app.tasks[name](row_id)


def _submit(root: App, numbers: list[int], seed: int, folder: Path) -> None:
    """Whoever died between submit and log asks again and gets the same operation."""
    for number in numbers:
        request = commands.Submission(
            profile="chaos", input=f"[script:forks-{number}]", tenant=TENANTS[number % len(TENANTS)],
            subject="client", idempotency_key=f"{seed}-{number}",
        )  # fmt: skip
        operation_id = commands.submit(root, request).operation_id
        line = {"operation_id": operation_id, "number": number, "at": time.time()}
        note(folder / "accepted", line)


def _decide(root: App, approval_ids: list[str]) -> None:
    """One in eight is denied, always the same ones."""
    for approval_id in approval_ids:
        decide = commands.deny if zlib.crc32(approval_id.encode()) % 8 == 0 else commands.approve
        try:
            decide(root, approval_id, by="person")
        except Conflict:
            continue  # somebody was first


def note(path: Path, line: dict[str, Any]) -> None:
    """A newline first: a half line before it stays a line of its own."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, b"\n" + json.dumps(line).encode() + b"\n")
    os.close(descriptor)
