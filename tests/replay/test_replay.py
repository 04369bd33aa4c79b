"""The command itself, through real servers and workers: the retail and airline workloads, and one that is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shared import ROOT, shared

WAIT_SECONDS = 280


def run(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.replay", str(folder), "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def test_the_retail_workload_comes_out_right() -> None:
    status, report = run(shared("workloads/tau_retail"))
    assert report.pop("wall_s") > 0
    assert report == {
        "workload": "tau_retail",
        "tasks": 80,
        "passed": 80,
        "failed": [],
        "batch": {"tasks": 46, "ok": True},
        "errors": {"cases": 56, "passed": 56},
        "authz": {"cases": 42, "refused": 42},
        "duplicate_effects": 0,
    }
    assert status == 0


def test_the_airline_workload_and_the_recorded_conversations_come_out_right() -> None:
    status, report = run(shared("workloads/tau_airline"))
    assert report.pop("wall_s") > 0
    assert report == {
        "workload": "tau_airline",
        "tasks": 35,
        "passed": 35,
        "failed": [],
        "batch": {"tasks": 28, "ok": True},
        "errors": {"cases": 34, "passed": 34},
        "authz": {"cases": 20, "refused": 20},
        "recorded": {"conversations": 73, "passed": 73},
        "duplicate_effects": 0,
    }
    assert status == 0


def test_a_workload_that_is_wrong_is_found_out(tmp_path: Path) -> None:
    """Five tasks and two cases of each kind, one thing of each made wrong; the chat wire format."""
    wrong = spoil(shared("workloads/tau_retail"), tmp_path / "spoiled")
    status, report = run(tmp_path / "spoiled", "--provider", "openai-chat")
    assert {failure["id"] for failure in report["failed"]} == wrong
    assert (report["tasks"], report["passed"]) == (5, 2)
    assert report["batch"] == {"tasks": 2, "ok": False}
    assert report["errors"] == {"cases": 2, "passed": 1}
    assert report["authz"] == {"cases": 2, "refused": 1}
    assert report["duplicate_effects"] >= 1  # the effect that the ground truth no longer knows of
    assert status == 1


def spoil(source: Path, target: Path) -> set[str]:
    """Write a small folder with known mistakes; returns the ids of what must fail."""
    target.mkdir()
    parts = {path.name: json.loads(path.read_text()) for path in source.glob("*.json")}
    apart = parts["batch.json"]["task_ids"]  # these use different records
    tasks = [task for task in parts["tasks.json"]["tasks"] if task["id"] in apart and task["counts"]["writes"]][:5]
    tasks[0]["actions"][0]["expect"] = {"ok": False, "error": "Never said"}
    tasks[1]["final"]["db_digest"] = "0" * 64
    write = next(action for action in tasks[2]["actions"] if action["effect"] == "write")
    write["expect"] = {"ok": False, "error": "Never refused"}
    errors, authz = parts["error_cases.json"][:2], parts["authz_cases.json"][:2]
    errors[0]["expect"]["error"] += "?"
    authz[0]["principal_user_id"] = authz[0]["record_owner_id"]
    batch = {"task_ids": [tasks[3]["id"], tasks[4]["id"]], "final_db_digest": "0" * 64}
    changed = {
        "tasks.json": {**parts["tasks.json"], "tasks": tasks},
        "error_cases.json": errors,
        "authz_cases.json": authz,
        "batch.json": batch,
    }
    for name in ("db.json", "tools.json", *changed):
        (target / name).write_text(json.dumps(changed.get(name, parts[name])))
    return {*(task["id"] for task in tasks[:3]), errors[0]["id"], authz[0]["id"], "batch"}


@pytest.mark.parametrize("domain", ["nowhere", None])
def test_what_cannot_be_replayed_is_said_in_one_line(tmp_path: Path, domain: str | None) -> None:
    if domain:
        files: dict[str, Any] = {name: [] for name in ("error_cases.json", "authz_cases.json", "tools.json")}
        files["batch.json"] = {"task_ids": [], "final_db_digest": ""}
        files["tasks.json"] = {"domain": domain, "base": {"db_digest": ""}, "tasks": []}
        for name, content in files.items():
            (tmp_path / name).write_text(json.dumps(content))
    command = [sys.executable, "-m", "tests.replay", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert (domain or "tasks.json") in done.stderr
