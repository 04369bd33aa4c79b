"""A short run over a network that is bad by turns on the way to each server, with a few kills."""

import json
import subprocess
import sys

import pytest


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_a_bad_network_breaks_nothing() -> None:
    command = "-m tests.chaos --kills 10 --seed 6 --faults kill,proxy --seconds 60 --json"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert (report["violations"], done.returncode) == ([], 0), (report.get("failure"), done.stderr)
    happened = report["faults"]["proxy"]
    assert happened["all"].keys() >= {"commit", "delay", "reset"}
    assert happened.keys() == {"all", "postgres", "broker", "model", "ledger"}
    assert report["operations"] > 0
