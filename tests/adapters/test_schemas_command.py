"""The command that decides about every argument object of the schema workload."""

import json
import subprocess
import sys
from pathlib import Path

from tests.shared import ROOT, shared


def run(folder: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "tests.schemas", str(folder), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def test_every_verdict_is_right() -> None:
    status, out, _ = run(shared("workloads") / "schemas")
    assert json.loads(out) == {
        "schemas": 219,
        "valid_accepted": 332,
        "valid": 332,
        "invalid_rejected": 1073,
        "invalid": 1073,
        "raw": {"cases": 39, "passed": 39},
    }
    assert status == 0


def test_a_wrong_verdict_is_reported(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    entry = {"id": "one", "parameters": schema, "valid": [{"a": "5"}], "invalid": []}
    (tmp_path / "schemas.json").write_text(json.dumps([entry]))
    status, out, err = run(tmp_path)
    assert (status, json.loads(out)["valid_accepted"]) == (1, 0)
    assert "one valid 0" in err
    assert run(tmp_path / "absent")[0] == 2
