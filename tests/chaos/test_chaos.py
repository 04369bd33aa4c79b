"""The run of real workers, as anybody starts it. Longer ones: `test_short`, docs/reliability.md."""

import json
import subprocess
import sys
from typing import Any

import pytest

ZEROS = (
    "duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "slot_overruns", "other_violations",
)  # fmt: skip


def run(arguments: str) -> dict[str, Any]:
    command = f"-m tests.chaos --harness real {arguments} --json"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert {name: report[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0), (report["violations"], done.stderr)
    assert (report["violations"], done.returncode) == ([], 0), done.stderr
    assert report["operations"] > 0
    return report


@pytest.mark.campaign
def test_a_short_run_leaves_nothing_lost_doubled_or_open() -> None:
    assert run("--kills 30 --seed 5 --faults kill,flush,stop,dup,zombie --seconds 60")["kills"] > 0
