"""The run of real workers, as anybody starts it. Longer ones: docs/reliability.md."""

import json
import subprocess
import sys

ZEROS = (
    "duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "slot_overruns", "other_violations",
)  # fmt: skip
KILLS, EACH = 200, 20


def test_two_hundred_killed_workers_and_twenty_faults_of_each_kind_leave_nothing_lost_doubled_or_open() -> None:
    command = f"-m tests.chaos --harness real --kills {KILLS} --seed 31 --each {EACH} --seconds 900 --json"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert {name: report[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0), (report["violations"], done.stderr)
    assert (report["violations"], done.returncode) == ([], 0), done.stderr
    assert report["kills"] >= KILLS
    assert {kind for kind in ("pg", "broker", "flush", "stop") if report["faults"][kind] < EACH} == set()
    assert report["operations"] > 0
