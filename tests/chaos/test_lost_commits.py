"""A short run of `tests.chaos.commits`; longer ones: docs/reliability.md."""

import json
import subprocess
import sys

import pytest


@pytest.mark.campaign
def test_a_run_of_lost_commits_breaks_nothing() -> None:
    command = "-m tests.chaos.commits --lost 200 --terminations 80 --seed 4 --seconds 120 --json"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    zeros = ("duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "other_violations")
    assert {name: report[name] for name in zeros} == dict.fromkeys(zeros, 0), (report["violations"], done.stderr)
    assert report["promises_broken"] == []
    assert done.returncode == 0, (report.get("failure"), done.stderr)
    assert report["lost_commits"] >= 50
    assert report["terminated"] >= 20
    assert report["effects"] > 0
