"""Several runs as one, and what they come to: `python -m tests.chaos --short` (CI) and `--long` (half an hour).

Each part is a run of its own with its own servers, started as anybody would by hand; two of them go on at a time, one
of which waits more than it works. The sum has the names of every report of `tests.chaos`, what was lost and ended of
PostgreSQL's answers and sessions, `bound_95` (3/N for N of the kills, lost COMMITs and ended sessions, in which nothing
went wrong), and the reports themselves by the part's name.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import environ
from threading import Thread
from typing import IO, Any

Say = Callable[[str], None]
SUMMED = (
    "operations", "kills", "duplicate_effects", "lost_operations", "unresolved_started", "unknown_resolved",
    "unknown_open", "audit_breaks", "slot_overruns", "other_violations", "lost_commits", "terminated",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """`arguments` of the module, without seed."""

    name: str
    arguments: str
    module: str = "tests.chaos"
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, seed: int) -> list[str]:
        return [*f"-m {self.module} {self.arguments} --seed {seed} --json".split()]


# By lane: what stands in one runs one after the other.
SHORT = (
    (Part("forks", "--harness fork --kills 10000 --per-point 300 --zombies 200"),),
    (
        Part("workers", "--harness real --kills 200 --each 20 --seconds 900"),
        Part("commits", "--lost 1000 --terminations 500", "tests.chaos.commits"),
    ),
)
LONG = (
    (Part("forks", "--harness fork --kills 36000 --per-point 1100 --zombies 700"),),
    (
        Part("workers", "--harness real --kills 300 --each 30 --seconds 3600"),
        Part("commits", "--lost 3000 --terminations 1500 --seconds 3600", "tests.chaos.commits"),
        Part("network", "--faults proxy --seconds 240"),
        Part("rabbitmq", "--harness real --kills 60 --each 3 --seconds 900", env={"TQ_TEST_BROKER": "amqp"}),
    ),
)


def run(lanes: Sequence[Sequence[Part]], seed: int, say: Say) -> dict[str, Any]:
    since = time.monotonic()

    def one_after_the_other(lane: Sequence[Part]) -> dict[str, dict[str, Any]]:
        return {part.name: _run(part, seed, say) for part in lane}

    with ThreadPoolExecutor(len(lanes)) as pool:
        found = [reports for lane in pool.map(one_after_the_other, lanes) for reports in lane.items()]
    return summed(seed, dict(found)) | {"wall_s": round(time.monotonic() - since, 1)}


def _run(part: Part, seed: int, say: Say) -> dict[str, Any]:
    command = part.command(seed)
    say(f"{part.name}: python {' '.join(command)}")
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environ, **part.env},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        teller = Thread(target=_pass_on, args=(process.stderr, part.name, say))
        teller.start()
        printed = process.stdout.read()
        teller.join()
    say(f"{part.name}: ended with status {process.returncode}")
    report: dict[str, Any] = json.loads(printed) if printed else {"violations": [], "failure": "it printed no report"}
    if process.returncode and not report["violations"]:
        report.setdefault("failure", f"status {process.returncode}")
    return report


def _pass_on(lines: IO[str], name: str, say: Say) -> None:
    for line in lines:
        say(f"{name}: {line.rstrip().split(': ', 1)[-1]}")


def summed(seed: int, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`parts`: reports by name."""
    total: dict[str, Any] = {"seed": seed}
    total |= {name: sum(report.get(name, 0) for report in parts.values()) for name in SUMMED}
    faults: dict[str, int] = {}
    for report in parts.values():
        for kind, number in report.get("faults", {}).items():
            if isinstance(number, int):
                faults[kind] = faults.get(kind, 0) + number
    total["faults"] = faults
    total["points"] = {name: dict(report["points"]) for name, report in parts.items() if report.get("points")}
    total["last_failpoints"] = [last for report in parts.values() for last in report.get("last_failpoints", ())]
    total["violations"] = [
        {"part": name, **each} for name, report in parts.items() for each in report["violations"]
    ]  # fmt: skip
    trials = total["kills"] + total["lost_commits"] + total["terminated"]
    if trials and not total["violations"]:
        total["bound_95"] = round(3 / trials, 7)
    failures = [f"{name}: {report['failure']}" for name, report in parts.items() if "failure" in report]
    failures += [f"{name}: promises broken" for name, report in parts.items() if report.get("promises_broken")]
    if failures:
        total["failure"] = "; ".join(failures)
    return total | {"parts": dict(parts)}
