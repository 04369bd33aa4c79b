"""The run of all harnesses that CI makes (`python -m tests.chaos --short`), and how runs are summed up."""

import json
import subprocess
import sys
from typing import Any

import pytest

from orchestrator.failpoints import POINTS
from tests.chaos.__main__ import _sum
from tests.chaos.campaign import summed

KILLS, PER_POINT, ZOMBIES = 10_000, 300, 200
REAL_KILLS, EACH, COMMITS = 200, 20, 1000
SEED = 7
ZEROS = (
    "duplicate_effects", "lost_operations", "unresolved_started", "audit_breaks", "slot_overruns", "other_violations",
)  # fmt: skip


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Of a run as anybody starts it; what it says on the way stands in the output of a failed test."""
    command = f"-m tests.chaos --short --seed {SEED} --json"
    done = subprocess.run([sys.executable, *command.split()], stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    print({name: value for name, value in found.items() if name != "parts"})
    return found | {"status": done.returncode}


def campaign(test: Any) -> Any:
    return pytest.mark.campaign(pytest.mark.timeout(3600)(test))


@campaign
def test_nothing_was_doubled_lost_or_left_behind(report: dict[str, Any]) -> None:
    assert report.get("failure", "") == ""
    assert {name: report[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0), report["violations"]
    assert (report["violations"], report["status"]) == ([], 0)


@campaign
def test_enough_died_at_every_point(report: dict[str, Any]) -> None:
    forks = report["parts"]["forks"]
    assert forks["kills"] >= KILLS
    assert {point for point, kills in forks["points"].items() if kills >= PER_POINT} == POINTS


@campaign
def test_enough_real_workers_died_and_enough_servers(report: dict[str, Any]) -> None:
    workers = report["parts"]["workers"]
    assert workers["kills"] >= REAL_KILLS
    assert {kind for kind in ("pg", "broker", "flush", "stop") if workers["faults"][kind] < EACH} == set()


@campaign
def test_enough_commits_were_lost(report: dict[str, Any]) -> None:
    assert report["parts"]["commits"]["lost_commits"] >= COMMITS


@campaign
def test_the_work_was_real(report: dict[str, Any]) -> None:
    """Most operations got through all this to their end, with effects."""
    forks = report["parts"]["forks"]
    assert forks["counts"]["operations"]["COMPLETED"] > forks["operations"] / 2
    assert forks["counts"]["effects"] > forks["operations"]
    assert report["unknown_resolved"] > PER_POINT


@campaign
def test_zombies_sent_late(report: dict[str, Any]) -> None:
    """Each woke after its attempt had been given up; late effects belong to actions that were not sent again."""
    forks = report["parts"]["forks"]
    assert forks["zombies"] >= ZOMBIES
    assert forks["zombie_late_requests"] >= forks["zombies"] * 0.9
    assert 0 < forks["zombie_late_effects"] <= forks["zombie_late_requests"]


def reported(**others: Any) -> dict[str, Any]:
    return {"kills": 100, "operations": 10, "faults": {"flush": 2, "proxy": {"all": {}}}, "violations": [], **others}


def test_numbers_add_up_and_bound_what_did_not_happen() -> None:
    total = summed(3, {"a": reported(), "b": reported(lost_commits=50, terminated=50)})
    assert (total["seed"], total["kills"], total["operations"], total["faults"]) == (3, 200, 20, {"flush": 4})
    assert total["bound_95"] == 0.01
    assert "failure" not in total


def test_a_violation_or_a_failure_of_one_is_one_of_the_whole() -> None:
    broken = reported(violations=[{"invariant": "I1", "what": "two"}], duplicate_effects=1)
    total = summed(3, {"a": reported(), "b": broken})
    assert total["violations"] == [{"part": "b", "invariant": "I1", "what": "two"}]
    assert total["duplicate_effects"] == 1
    assert "bound_95" not in total
    assert summed(3, {"a": reported(failure="no rest")})["failure"] == "a: no rest"
    assert summed(3, {"a": reported(promises_broken=[{}])})["failure"] == "a: promises broken"


def test_reports_of_both_harnesses_add_up_though_each_has_what_the_other_has_not() -> None:
    forked = {"kills": 3, "points": {"a": 1}, "cpu_ms": {"x": 1}, "violations": []}
    real = {"kills": 2, "points": {"a": 2, "b": 1}, "proxy": {"all": {}}, "violations": [{"what": "it"}]}
    assert _sum(forked, real) == {
        "kills": 5, "points": {"a": 3, "b": 1}, "cpu_ms": {"x": 1}, "proxy": {"all": {}},
        "violations": [{"what": "it"}],
    }  # fmt: skip
