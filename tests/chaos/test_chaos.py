"""A short run of the harness, as anybody starts it. Longer ones: docs/reliability.md."""

import json
import subprocess
import sys
from typing import Any


def run(options: str) -> dict[str, Any]:
    """The report of a run that broke nothing."""
    command = f"-m tests.chaos --json {options}"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    zeros = ("duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "slot_overruns")
    assert {name: report[name] for name in zeros} == dict.fromkeys(zeros, 0), (report["violations"], done.stderr)
    assert (report["violations"], done.returncode) == ([], 0), done.stderr
    assert report["operations"] > 0
    return report


def test_a_short_run_leaves_nothing_lost_doubled_or_open() -> None:
    assert run("--kills 30 --seed 5 --faults kill,flush,stop,dup,zombie --seconds 60")["kills"] > 0


def test_a_short_run_over_a_bad_network() -> None:
    done = run("--kills 10 --seed 6 --faults kill,proxy --seconds 60")["faults"]["proxy"]
    assert done["all"].keys() >= {"commit", "delay", "reset"}
    assert done.keys() == {"all", "postgres", "broker", "model", "ledger"}
