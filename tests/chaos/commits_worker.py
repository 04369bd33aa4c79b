"""What works in a run of `tests.chaos.commits`: `python -m tests.chaos.commits_worker --index N --of N --seed N ...`.

Threads that do what workers, sweeper and client do, each in a loop: model turns, rows of both queues, sweeps,
submissions and approvals. Even numbers are submitted with an idempotency key and again after any error; odd ones
without one, once. In the folder: `accepted` has what was answered with an operation, `unsure-N` what was answered with
"perhaps" and its operation, `refused-N` what was answered with "no"; `codes-N` counts the errors at the end. Whatever
is no TurnqueueError is a finding and ends the process with its traceback.
"""

import argparse
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg

from orchestrator import commands, dispatch, sweeper, turn
from orchestrator.app import App
from orchestrator.domain.errors import CommitUnknown, Conflict, TurnqueueError
from orchestrator.logs import configure
from orchestrator.settings import Settings
from tests.chaos.client import TENANTS, script

_ASKED = "SELECT approval_id, tenant FROM approvals WHERE state = 'PENDING'"
_LIVE = "SELECT count(*) FROM operations WHERE ended_at IS NULL AND state NOT IN ('RECONCILING', 'WAITING_APPROVAL')"


def note(path: Path, line: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


class Client:
    """Submits and approves."""

    def __init__(self, app: App, options: argparse.Namespace) -> None:
        self._app = app
        self._options = options
        self._model = httpx.Client(base_url=os.environ["CHAOS_MODEL_URL"].removesuffix("/v1"), trust_env=False)
        # Straight to the server: what the run watches itself by is not part of it.
        self._direct = psycopg.connect(options.direct, autocommit=True)
        self._number = options.index
        self._again: list[int] = []

    def step(self) -> bool:
        self._approve()
        if (self._options.folder / "enough").exists():
            self._submit(self._again)
            return False
        [live] = self._direct.execute(_LIVE).fetchone() or (0,)
        room = self._options.in_flight - live
        fresh = [self._number + n * self._options.of for n in range(max(0, room))]
        self._number += len(fresh) * self._options.of
        self._submit(self._again + fresh)
        return False

    def _approve(self) -> None:
        for approval_id, tenant in self._direct.execute(_ASKED).fetchall():
            try:
                commands.approve(self._app, approval_id, by=f"{tenant}/person", tenant=tenant)
            except Conflict:
                continue  # the other process was first, or what could not be looked up had been saved

    def _submit(self, numbers: list[int]) -> None:
        self._again = []
        for number in numbers:
            self._model.post("/control/scripts", json=[self._script(number)]).raise_for_status()
            tenant = TENANTS[number % len(TENANTS)]
            request = commands.submission(
                profile="chaos", input=f"[script:chaos-{number}]", tenant=tenant, subject=f"{tenant}/client",
                idempotency_key=f"{self._options.seed}-{number}" if number % 2 == 0 else None,
            )  # fmt: skip
            self._one(number, request)

    def _script(self, number: int) -> dict[str, Any]:
        """The chaos run's, from a model that answers at once."""
        said = script(self._options.seed, number)
        return said | {"turns": [{k: v for k, v in turn.items() if k != "fault"} for turn in said["turns"]]}

    def _one(self, number: int, request: commands.Submission) -> None:
        folder, index = self._options.folder, self._options.index
        line: dict[str, Any] = {"number": number, "tenant": request.tenant, "input": request.input, "at": time.time()}
        try:
            done = commands.submit(self._app, request)
        except TurnqueueError as error:
            if isinstance(error, CommitUnknown):
                note(folder / f"unsure-{index}", line | {"operation_id": error.operation_id})
            else:
                note(folder / f"refused-{index}", line | {"code": error.code, "key": request.idempotency_key})
            if request.idempotency_key is not None:
                self._again.append(number)
            return
        note(folder / "accepted", line | {"operation_id": done.operation_id})


class Loops:
    """One thread per kind of work, until the file `over` is there."""

    def __init__(self, folder: Path) -> None:
        self.codes: Counter[str] = Counter()
        self._over = folder / "over"

    def start(self, name: str, step: Callable[[], bool], pause: float) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(name, step, pause), daemon=True)
        thread.start()
        return thread

    def _run(self, name: str, step: Callable[[], bool], pause: float) -> None:
        while not self._over.exists():
            try:
                worked = step()
            except TurnqueueError as error:
                self.codes[f"{name}:{error.code}"] += 1
                worked = False
            except BaseException:  # noqa: BLE001 - a finding, whatever it is
                traceback.print_exc()
                os._exit(3)
            if not worked:
                time.sleep(pause)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--of", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--direct", required=True, help="the database's URL without a proxy")
    parser.add_argument("--in-flight", type=int, default=40)
    options = parser.parse_args()
    configure()
    with App.open(Settings.from_env()) as app:
        app.sync_slots()
        loops, client = Loops(options.folder), Client(app, options)
        works: list[tuple[str, Callable[[], bool], float]] = [
            *[("turn", lambda: turn.advance(app, None), 0.03)] * 2,
            *[("read", lambda: dispatch.run_one(app, "reads", None), 0.03)] * 2,
            *[("write", lambda: dispatch.run_one(app, "writes", None), 0.03)] * 2,
            ("sweep", lambda: bool(sweeper.run_once(app)) and False, 0.3),
            ("client", client.step, 0.1),
        ]
        threads = [loops.start(name, step, pause) for name, step, pause in works]
        print("ready", flush=True)
        for thread in threads:
            thread.join()
    note(options.folder / f"codes-{options.index}", dict(loops.codes))
    sys.exit(0)


if __name__ == "__main__":
    main()
