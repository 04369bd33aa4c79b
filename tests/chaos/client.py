"""The client of the chaos run, in a process of its own that may be killed too: submits, approves, keeps a log.

    python -m tests.chaos.client --seed N --folder PATH [--in-flight N]

Each operation has its own script for the model, put together from the seed and its number, and its own idempotency
key: a client that died between submit and log asks again and gets the same operation. `accepted` in the folder has a
line for each operation that the system accepted; the file `enough` there ends the submissions, approvals go on.
"""

import argparse
import json
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from orchestrator import commands
from orchestrator.app import App
from orchestrator.domain.errors import Conflict, TurnqueueError
from orchestrator.settings import Settings

TENANTS = ("north", "south", "west")
WRITES = ("pay_keyed", "pay_both", "pay_lookup")
_LIVE = "SELECT count(*) FROM operations WHERE ended_at IS NULL AND state NOT IN ('RECONCILING', 'WAITING_APPROVAL')"
_ASKED = "SELECT approval_id, tenant FROM approvals WHERE state = 'PENDING'"


def script(seed: int, number: int) -> dict[str, Any]:
    """Reads, then writes of every kind, in one turn or in several; every call's `name` is unique in the run."""
    chosen = random.Random(f"{seed}:{number}")
    turns: list[dict[str, Any]] = []
    wanted = [["look", "narrow", "look"], chosen.sample(WRITES, 2), [chosen.choice(WRITES)]]
    if chosen.random() < 0.3:
        wanted.append(["pay_asked", "narrow"])
    for names in wanted[chosen.randrange(2) :]:
        calls = [
            {"name": name, "arguments": {"name": f"{seed}-{number}-{len(turns)}-{at}"}} for at, name in enumerate(names)
        ]
        turns.append({"calls": calls, "fault": {"delay": round(chosen.random() * 0.3, 3)}})
    return {"id": f"chaos-{number}", "turns": [*turns, {"text": "Done."}]}


def submit(app: App, model: httpx.Client, seed: int, number: int) -> dict[str, Any]:
    """Accept operation `number`; what goes into the log."""
    model.post("/control/scripts", json=[script(seed, number)]).raise_for_status()
    tenant = TENANTS[number % len(TENANTS)]
    request = commands.Submission(
        profile="chaos",
        input=f"[script:chaos-{number}]",
        tenant=tenant,
        subject=f"{tenant}/client",
        idempotency_key=f"{seed}-{number}",
    )
    return accepted_line(app, request) | {"number": number}


def accepted_line(app: App, request: commands.Submission) -> dict[str, Any]:
    """Submit; the line of the log about it."""
    operation_id = commands.submit(app, request).operation_id
    return {"operation_id": operation_id, "tenant": request.tenant, "input": request.input, "at": time.time()}


def accepted(folder: Path) -> list[dict[str, Any]]:
    """The log; a line that a killed client left half-written was not accepted."""
    path = folder / "accepted"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _note(folder: Path, line: dict[str, Any]) -> None:
    with (folder / "accepted").open("a") as log:
        log.write("\n" + json.dumps(line) + "\n")  # a newline first: a half line before it stays a line of its own


def _step(app: App, model: httpx.Client, options: argparse.Namespace) -> None:
    with app.database.autocommit() as connection:
        asked = [(row.approval_id, row.tenant) for row in connection.execute(text(_ASKED))]
        live = connection.execute(text(_LIVE)).scalar_one()
    for approval_id, tenant in asked:
        with suppress(Conflict):  # the answer to an earlier one was lost
            commands.approve(app, approval_id, by=f"{tenant}/person", tenant=tenant)
    if (options.folder / "enough").exists():
        return
    known = {line["number"] for line in accepted(options.folder)}
    number = max(known, default=-1) + 1
    for _ in range(options.in_flight - live):
        _note(options.folder, submit(app, model, options.seed, number))
        number += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--in-flight", type=int, default=12)
    options = parser.parse_args()
    model = httpx.Client(base_url=os.environ["CHAOS_MODEL_URL"].removesuffix("/v1"), trust_env=False)
    with App.open(Settings.from_env()) as app:
        print("client ready", flush=True)
        while True:
            try:
                _step(app, model, options)
            except (TurnqueueError, httpx.HTTPError) as error:  # a server is away: again later
                print(type(error).__name__, str(error)[:200], flush=True)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
