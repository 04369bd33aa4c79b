"""What the forked children of `planted_world` do: workers on the broker's messages, sweepers, and the people.

All of it is the system's own code, with whatever bug is planted in it: the bodies of the Celery tasks, the sweeper's
rounds and the public verbs. A child lives until it is killed.
"""

import base64
import ctypes
import hashlib
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import redis

from orchestrator import commands, sweeper, tasks
from orchestrator.app import App
from orchestrator.domain.errors import TurnqueueError
from orchestrator.logs import configure
from tests.chaos.client import accepted
from tests.chaos.ledger import canonical
from tests.chaos.planted_scenarios import Scenario

QUEUES = ("turnqueue:writes", "turnqueue:reads", "turnqueue:orchestrator")


class Desk:
    """Shared by all processes of a run: who is at work, one byte each, and how many rounds the people have made."""

    def __init__(self, places: int) -> None:
        self._bytes = mmap.mmap(-1, places + 1)
        self._places = places

    @property
    def rounds(self) -> int:
        """Modulo 256."""
        return self._bytes[self._places]

    def end_round(self) -> None:
        self._bytes[self._places] = (self.rounds + 1) % 256

    def mark(self, place: int, *, busy: bool) -> None:
        self._bytes[place] = int(busy)

    def busy(self) -> int:
        return sum(self._bytes[: self._places])


def opened(raw: bytes) -> tuple[str, str]:
    """Task name and row id of a message, as kombu wrote it."""
    message = json.loads(raw)
    return message["headers"]["task"], json.loads(base64.b64decode(message["body"]))[0][0]


def work(broker: redis.Redis, busy: Callable[[bool], None]) -> None:
    """A worker: takes a message, runs its task. A message whose worker dies is lost, as any may be."""
    tasks.process_app()
    while True:
        taken: Any = broker.brpop(list(QUEUES), timeout=1)
        if taken is None:
            continue
        busy(True)
        name, row_id = opened(taken[1])
        with suppress(tasks.TaskFailed):  # its cause is in the log
            tasks.app.tasks[name](row_id)
        busy(False)


def sweep(pause: float) -> None:
    """Rounds of the sweeper without its lock: each repair must hold whoever else repairs.

    Nobody asks whether it is at work: what it has still to do is due, and so the run is not at rest.
    """
    root = tasks.process_app()
    while True:
        try:
            sweeper.run_once(root)
        except TurnqueueError as error:
            print(error.code, file=sys.stderr)
        except Exception:  # noqa: BLE001 - said in the log, and everything goes on
            _crashed()
        time.sleep(pause)


def _crashed() -> None:
    print(json.dumps({"level": "error", "event": traceback.format_exc()}), file=sys.stderr, flush=True)


class People:
    """The callers and deciders: TENANT/client submits, TENANT/anna and TENANT/bert decide, each by their habits."""

    def __init__(self, app: App, scenario: Scenario, seed: int, folder: Path, dsn: str) -> None:
        self._app, self._scenario, self._seed, self._folder = app, scenario, seed, folder
        self.pace = scenario.pace
        self._random = random.Random(seed)
        self._database = psycopg.connect(dsn, autocommit=True)

    def step(self) -> bool:
        """One round; False when there was nothing left to do."""
        known = {(line["tenant"], line["number"]) for line in accepted(self._folder)}
        wanted = [(tenant, n) for n in range(self._scenario.operations) for tenant in self._scenario.tenants]
        missing = [each for each in wanted if each not in known]
        for tenant, number in missing:
            self._submit(tenant, number)
        done = [getattr(self, f"_{habit}")() for habit in self._scenario.people]
        return bool(missing) or any(done)

    def _rows(self, statement: Any, *values: Any) -> list[tuple[Any, ...]]:
        return self._database.execute(statement, values).fetchall()

    def _note(self, name: str, **line: Any) -> None:
        with (self._folder / name).open("a") as log:
            log.write("\n" + json.dumps(line) + "\n")

    def _try(self, verb: Callable[..., Any], *given: Any, **named: Any) -> bool:
        try:
            verb(self._app, *given, **named)
        except TurnqueueError:
            return False
        return True

    # --- submitting ------------------------------------------------------------------------------------------------

    def _submit(self, tenant: str, number: int, text: str | None = None) -> None:
        """The same key for every tenant: it is each tenant's own."""
        request = commands.Submission(
            profile="chaos",
            input=text or self._scenario.text(self._folder.name, tenant, number),
            tenant=tenant,
            subject="client",
            idempotency_key=f"{self._seed}-{number}",
        )
        operation_id = commands.submit(self._app, request).operation_id
        self._note("accepted", operation_id=operation_id, tenant=tenant, number=number, input=request.input)

    def _conflicts(self) -> bool:
        """Somebody uses a key again for another request, which must be refused."""
        for tenant in self._scenario.tenants:
            try:
                self._submit(tenant, 0, "Something else. [script:none]")
            except TurnqueueError:
                continue
        return False

    # --- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Everybody looks at what is theirs, and tries what is not."""
        for tenant in self._scenario.tenants:
            for row in commands.list_operations(self._app, tenant=tenant):
                self._note("seen", tenant=tenant, operation_id=row["operation_id"])
        for operation_id, owner in self._rows("SELECT operation_id, tenant FROM operations"):
            stranger = self._stranger(owner)
            if self._try(commands.inspect, operation_id, tenant=stranger):
                self._note("seen", tenant=stranger, operation_id=operation_id)
        return False

    def _intrude(self) -> bool:
        """A person of another tenant tries to decide, to correct and to cancel."""
        for approval_id, owner in self._rows("SELECT approval_id, tenant FROM approvals WHERE state = 'PENDING'"):
            stranger = self._stranger(owner)
            self._try(commands.approve, approval_id, by=f"{stranger}/anna", tenant=stranger)
        for operation_id, owner in self._rows("SELECT operation_id, tenant FROM operations WHERE ended_at IS NULL"):
            stranger = self._stranger(owner)
            self._try(commands.amend, operation_id, "Otherwise.", by=f"{stranger}/client", tenant=stranger)
            self._try(commands.cancel, operation_id, by=f"{stranger}/client", tenant=stranger)
        return False

    def _stranger(self, owner: str) -> str:
        return next(tenant for tenant in (*self._scenario.tenants, "nobody") if tenant != owner)

    # --- deciding --------------------------------------------------------------------------------------------------

    def _pending(self) -> list[tuple[Any, ...]]:
        return self._rows("SELECT approval_id, tenant, requester FROM approvals WHERE state = 'PENDING'")

    def _approve(self) -> bool:
        """Two people, one after the other: with one needed the second is too late."""
        found = self._pending()
        for approval_id, tenant, _ in found:
            for name in ("anna", "bert"):
                self._try(commands.approve, approval_id, by=f"{tenant}/{name}", tenant=tenant)
        return bool(found)

    def _hasten(self) -> bool:
        """Whoever asked for it approves it, and one other person; then that person once more."""
        found = self._pending()
        for approval_id, tenant, requester in found:
            for by in (requester, f"{tenant}/anna", f"{tenant}/anna"):
                self._try(commands.approve, approval_id, by=by, tenant=tenant)
        return False

    def _waver(self) -> bool:
        """Half are denied, and approved right after; the others approved, and denied right after. One at a time."""
        found = self._pending()
        for approval_id, tenant, _ in self._random.sample(found, min(len(found), 1)):
            verbs = [commands.approve, commands.deny]
            self._random.shuffle(verbs)
            for verb, name in zip(verbs, ("anna", "bert"), strict=True):
                self._try(verb, approval_id, by=f"{tenant}/{name}", tenant=tenant)
        return bool(found)

    def _alter(self) -> bool:
        """Whoever can write to the database changes what waits for a decision."""
        found = self._rows("SELECT action_id FROM actions WHERE state = 'WAITING_APPROVAL'")
        for (action_id,) in found:
            arguments = json.dumps({"name": f"altered-{action_id}"}).encode()
            digest = hashlib.sha256(b"arguments-v1\0" + canonical(arguments)).hexdigest()
            statement = "UPDATE actions SET arguments = %s, arguments_sha256 = %s WHERE action_id = %s"
            self._database.execute(statement, (arguments.decode(), digest, action_id))
        return bool(found)

    # --- changing one's mind ---------------------------------------------------------------------------------------

    def _cancel(self) -> bool:
        """Whatever has a write that was not started yet, or waits to be sent again."""
        return self._change(commands.cancel)

    def _amend(self) -> bool:
        return self._change(commands.amend, "Something else, please.")

    def _change(self, verb: Callable[..., Any], *given: Any) -> bool:
        statement = """
            SELECT DISTINCT o.operation_id, o.tenant FROM operations o JOIN actions a USING (operation_id)
            WHERE o.ended_at IS NULL AND o.revision = 1 AND a.state = 'READY' AND a.attempts >= %s
        """
        found = self._rows(statement, self._scenario.patience)
        for operation_id, tenant in found:
            self._try(verb, operation_id, *given, by=f"{tenant}/client", tenant=tenant)
        return bool(found)


def live_among_people(people: People, desk: Desk, busy: Callable[[bool], None]) -> None:
    while True:
        try:
            busy(people.step())
        except TurnqueueError as error:
            print(error.code, file=sys.stderr)
        except Exception:  # noqa: BLE001 - said in the log, and everything goes on
            _crashed()
        desk.end_round()
        time.sleep(people.pace)


def begin(log: Path, parent: int) -> None:
    """In the child: a log of its own, no handlers of the parent's, and no life without it."""

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    threading.excepthook = lambda given: _crashed()
    configure()
