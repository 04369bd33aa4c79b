"""The fork harness: 10,000 SIGKILLs, 300 at each failpoint, 200 zombies; some seven minutes of two idle cores."""

import json
import subprocess
import sys
from typing import Any

import pytest

from orchestrator.failpoints import POINTS

KILLS, PER_POINT, ZOMBIES, SEED = 10_000, 300, 200, 7
ZEROS = ("duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "slot_overruns")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Of a run as anybody starts it; what it says on the way stands in the output of a failed test."""
    command = f"-m tests.chaos --harness fork --kills {KILLS} --per-point {PER_POINT} --zombies {ZOMBIES} --seed {SEED}"
    done = subprocess.run([sys.executable, *command.split(), "--json"], stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"status": done.returncode}


pytestmark = [pytest.mark.timeout(3600), pytest.mark.campaign]


def test_nothing_was_doubled_lost_or_left_behind(report: dict[str, Any]) -> None:
    assert report.get("failure", "") == ""
    assert {name: report[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0), report["violations"]
    assert (report["violations"], report["status"]) == ([], 0)


def test_enough_died_at_every_point(report: dict[str, Any]) -> None:
    assert report["kills"] >= KILLS
    assert {point for point, kills in report["points"].items() if kills >= PER_POINT} == POINTS


def test_the_work_was_real(report: dict[str, Any]) -> None:
    """Most operations got through all this to their end, with effects."""
    counts = report["counts"]
    assert counts["operations"]["COMPLETED"] > report["operations"] / 2
    assert counts["effects"] > report["operations"]
    assert report["unknown_resolved"] > PER_POINT


def test_zombies_sent_late(report: dict[str, Any]) -> None:
    """Each woke after its attempt had been given up; late effects belong to actions that were not sent again."""
    assert report["zombies"] >= ZOMBIES
    assert report["zombie_late_requests"] >= report["zombies"] * 0.9
    assert 0 < report["zombie_late_effects"] <= report["zombie_late_requests"]
