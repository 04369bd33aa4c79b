"""The run of real workers, as anybody starts it. Longer ones: docs/reliability.md."""

import json
import subprocess
import sys
from typing import Any

import pytest

ZEROS = (
    "duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "slot_overruns", "other_violations",
)  # fmt: skip
KILLS, EACH = 200, 20


def run(arguments: str) -> dict[str, Any]:
    command = f"-m tests.chaos --harness real {arguments} --json"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert {name: report[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0), (report["violations"], done.stderr)
    assert (report["violations"], done.returncode) == ([], 0), done.stderr
    assert report["operations"] > 0
    return report


def test_a_short_run_leaves_nothing_lost_doubled_or_open() -> None:
    assert run("--kills 30 --seed 5 --faults kill,flush,stop,dup,zombie --seconds 60")["kills"] > 0


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_two_hundred_killed_workers_and_twenty_faults_of_each_kind_leave_nothing_lost_doubled_or_open() -> None:
    report = run(f"--kills {KILLS} --seed 31 --each {EACH} --seconds 900")
    assert report["kills"] >= KILLS
    assert {kind for kind in ("pg", "broker", "flush", "stop") if report["faults"][kind] < EACH} == set()
