"""Plants one bug after the other in the real code; the harness must find each.

    python -m tests.chaos.planted [NAME...] [--json] [--seconds N] [--lanes N] [--seed N] [--control] [--keep FOLDER]

For each bug a line: {"name", "caught", "by": kinds of violation, "seconds", "seed", "what": the first violation}. A run
without a finding is repeated with the next seed until the seconds are used up; exit status 1 when a bug was missed or
found later than after 60 s.
`--control` plays the scenarios without a bug instead: there, one that is "caught" is the failure.
"""

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from embedded.databases import database_url, drop_database
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import MIGRATE
from examples.scripted_model.process import ScriptedModel
from tests.chaos.planted_bugs import BUGS
from tests.chaos.planted_hook import VARIABLE
from tests.chaos.planted_scenarios import BASE, SCENARIOS

SECONDS = 60.0  # in which each bug must be found
LANES = 3  # runs at once; each is some ten processes
_TEMPLATE = "planted_template"
_BROKER_DATABASES = 15  # those of a Redis with default settings, but for the one that others use


class Lane:
    """A process that has imported what the system needs, and does one run after the other in forks."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "tests.chaos.planted_hook"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> dict[str, Any]:
        """What `planted_run` prints, or why it printed nothing."""
        output, errors = folder / "output", folder / "errors"
        order = {"argv": argv, "environ": dict(environ), "output": str(output), "errors": str(errors)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline().strip()
        said = output.read_text() if output.exists() else ""
        if not said:  # the system could not even be imported
            what = f"exit status {status}: {errors.read_text()[-2000:] if errors.exists() else ''}"
            return {"violations": [{"invariant": "start", "what": what}], "done": {}, "counts": {}}
        return dict(json.loads(said))

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(30)


@dataclass
class Ground:
    """Servers that all runs share: each has a database of its own in both."""

    servers: Servers
    model: ScriptedModel
    lanes: queue.Queue[Lane]
    keep: Path | None = None
    _numbers: Iterator[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, bug: str, scenario: str, seed: int) -> dict[str, Any]:
        """One run, as soon as a lane is free; what `planted_run` prints."""
        with self._lock:
            number = next(self._numbers)
        name = f"planted_{os.getpid()}_{number}"
        folder = Path(tempfile.mkdtemp(prefix="tq-planted-"))
        lane = self.lanes.get()
        try:
            self._create(name)
            environ = self._environ(scenario, name, number, folder) | {VARIABLE: bug}
            return lane.run([scenario, "--seed", str(seed)], environ, folder)
        finally:
            self.lanes.put(lane)
            drop_database(self.servers.database_url, name)
            if self.keep is not None:
                shutil.copytree(folder, self.keep / f"{bug or 'control'}-{scenario}-{seed}", dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def _create(self, name: str) -> None:
        """With the schema, and without having to migrate."""
        with self._lock, psycopg.connect(self.servers.database_url.replace("+psycopg", ""), autocommit=True) as server:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            server.execute(statement.format(sql.Identifier(name), sql.Identifier(_TEMPLATE)))

    def _environ(self, scenario: str, name: str, number: int, folder: Path) -> dict[str, str]:
        broker = f"{self.servers.broker_url.split('?', 1)[0]}?virtual_host={number % _BROKER_DATABASES + 1}"
        return {
            **os.environ, **BASE, **SCENARIOS[scenario].env,
            "TURNQUEUE_DATABASE_URL": database_url(self.servers.database_url, name),
            "TURNQUEUE_BROKER_URL": broker,
            "TURNQUEUE_MODULES": "tests.chaos.tools",
            "TURNQUEUE_FAILPOINT_DIR": str(folder),
            "CHAOS_MODEL_URL": f"{self.model.url}/v1",
        }  # fmt: skip


@contextmanager
def ground(lanes: int = LANES, keep: Path | None = None) -> Iterator[Ground]:
    # Not a private directory: as root the servers run as another user.
    home = Path(tempfile.mkdtemp(prefix="tq-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, home, ignore_errors=True)
        servers = opened.enter_context(EmbeddedServers(home, {}))
        template = servers.database(_TEMPLATE)
        subprocess.run(MIGRATE, env={**os.environ, "TURNQUEUE_DATABASE_URL": template}, check=True, capture_output=True)
        model = opened.enter_context(ScriptedModel.start())
        ready: queue.Queue[Lane] = queue.Queue()
        for _ in range(lanes):
            lane = Lane()
            opened.callback(lane.close)
            ready.put(lane)
        yield Ground(servers, model, ready, keep)


def hunt(here: Ground, bug: str, scenario: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run after run until something is found or the time is used up. The seconds are those of the runs themselves."""
    spent, runs = 0.0, 0
    report: dict[str, Any] = {"violations": []}
    while not report["violations"] and spent < (seconds if runs else SECONDS):
        report = here.run(bug, scenario, seed + runs)
        spent += report.get("seconds", 0.0)
        runs += not report.get("inconclusive", False)
    found = report["violations"]
    by = {each["invariant"] for each in found}
    return {
        "name": bug or scenario,
        "scenario": scenario,
        # For a reason that the table gives: something else would be wrong with the code, the machine or the harness.
        "caught": bool(by & BUGS[bug].shows if bug else by),
        "by": sorted(by),
        "seconds": round(spent, 1),
        "seed": seed + runs - 1,
        "what": found[0] if found else None,
        "done": report.get("done"),
        "counts": report.get("counts"),
    }


def hunts(here: Ground, wanted: Sequence[tuple[str, str]], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with ThreadPoolExecutor(options.lanes + 1) as lanes:  # one creates its database while the others run
        yield from lanes.map(lambda each: hunt(here, each[0], each[1], options.seed, options.seconds), wanted)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.planted")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--control", action="store_true", help="names are scenarios, played without a bug")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="copy logs and ledgers there")
    options = parser.parse_args()
    if options.control:
        options.seconds = 0.0  # once
        wanted = [("", name) for name in options.names or SCENARIOS]
    else:
        wanted = [(name, BUGS[name].scenario) for name in options.names or BUGS]
    wrong = 0
    with ground(options.lanes, options.keep) as here:
        for line in hunts(here, wanted, options):
            wrong += line["caught"] if options.control else not line["caught"] or line["seconds"] > SECONDS
            print(json.dumps(line) if options.json else _told(line), flush=True)
    return 1 if wrong else 0


def _told(line: dict[str, Any]) -> str:
    said = f"caught by {', '.join(line['by'])}" if line["caught"] else "nothing found"
    what = f": {line['what']['what'][:300]}" if line["what"] else ""
    return f"{line['seconds']:6.1f} s  {line['name']}  {said} (seed {line['seed']}){what}"


if __name__ == "__main__":
    sys.exit(main())
