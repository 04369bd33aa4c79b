"""A short run of the harness, as anybody starts it. Longer ones: docs/reliability.md."""

import json
import subprocess
import sys


def test_a_short_run_leaves_nothing_lost_doubled_or_open() -> None:
    command = "-m tests.chaos --kills 30 --seed 5 --faults kill,flush,stop,dup,zombie --seconds 60 --json"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    zeros = ("duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "slot_overruns")
    assert {name: report[name] for name in zeros} == dict.fromkeys(zeros, 0), (report["violations"], done.stderr)
    assert (report["violations"], done.returncode) == ([], 0), done.stderr
    assert report["kills"] > 0
    assert report["operations"] > 0
