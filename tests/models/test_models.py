"""The Promela models, checked exhaustively by spin; each wrong rule that can be planted in one must be found."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "models"
STATES_IN_TOTAL = 5_000_000
LINES = 60

pytestmark = [
    pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed (Debian package `spin`)"),
    pytest.mark.timeout(600),
]

# Bounds of the exhaustive runs: (model, switches). A fourth worker makes eight times as many states of the slots.
SLOT_WORKERS = 4 if os.environ.get("TQ_CAMPAIGN") else 3
SOUND = [
    ("write_path", "KEY WORKERS=4 TRIES=3 FENCES=5"),
    ("write_path", "WORKERS=4 TRIES=3 FENCES=6"),
    ("approval", "PEOPLE=3 WORKERS=2 TRIES=3"),
    ("slots", f"CALLS=2 WORKERS={SLOT_WORKERS} TRIES=2"),
    ("sweeper", "ROWS=2 WORKERS=2 FAULTS=2 SWEEPERS=2"),
    ("sweeper", "ROWS=3 WORKERS=2 FAULTS=0 SWEEPERS=1 BROKEN_NO_SWEEPER"),  # without a fault, hints alone do
]
SMALL = {
    "write_path": "WORKERS=2 TRIES=2 FENCES=3",
    "approval": "PEOPLE=2 WORKERS=2 TRIES=2",
    "slots": "CALLS=2 WORKERS=3 TRIES=2",
    "sweeper": "ROWS=2 WORKERS=2 FAULTS=2 SWEEPERS=1",
}
ALSO = {  # what a wrong rule needs besides in order to show
    "BROKEN_UNSENT_FORGETS": "KEY",
    "BROKEN_WITHDRAW_FORGETS": "KEY",
    "BROKEN_HINTED_ROW_ONLY": "BROKEN_NO_SWEEPER ROWS=3 FAULTS=0",
}


@dataclass(frozen=True, slots=True)
class Run:
    errors: int
    states: int
    output: str


def check(model: str, switches: str, work: Path, optimise: str = "-O2") -> Run:
    """Translate, compile and run one model in `work`. Raises AssertionError when the search was not complete."""
    for source in MODELS.iterdir():
        shutil.copy(source, work)
    flags = [f"-D{switch}" for switch in switches.split()]
    _call(["spin", *flags, "-a", f"{model}.pml"], work)
    _call(["cc", optimise, "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=4096", "-w", "-o", "pan", "pan.c"], work)
    output = _call(["./pan", "-m100000"], work)
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"(\d+) states, stored", output)
    assert errors, output
    assert states, output
    for incomplete in ("max search depth too small", "out of memory", "Search not completed"):
        assert errors[1] != "0" or incomplete not in output, output
    return Run(int(errors[1]), int(states[1]), output)


def _call(command: list[str], work: Path) -> str:
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def planted() -> list[tuple[str, str]]:
    return [
        (path.stem, switch)
        for path in sorted(MODELS.glob("*.pml"))
        for switch in sorted(set(re.findall(r"BROKEN_[A-Z_]+", path.read_text())))
    ]


def test_every_switch_is_declared_once_and_used() -> None:
    declared = re.findall(r"#ifndef (\w+)", (MODELS / "switches.h").read_text())
    assert sorted(declared) == sorted({"KEY", *(switch for _, switch in planted())})
    assert len(planted()) >= 20


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.pml")), ids=lambda path: path.stem)
def test_a_model_fits_on_a_page(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES


def test_the_protocols_hold_in_every_state(tmp_path: Path) -> None:
    states = 0
    for number, (model, switches) in enumerate(SOUND):
        work = tmp_path / str(number)
        work.mkdir()
        run = check(model, switches, work)
        assert run.errors == 0, f"{model} {switches}\n{run.output}"
        print(f"{model} {switches}: {run.states:,} states, 0 errors")
        states += run.states
    assert states >= STATES_IN_TOTAL


@pytest.mark.parametrize(("model", "switch"), planted())
def test_a_planted_rule_is_found(model: str, switch: str, tmp_path: Path) -> None:
    run = check(
        model, f"{_bounds(model, switch)} {switch}", tmp_path, optimise="-O0"
    )  # found at once: compiling would take longer
    assert run.errors == 1, run.output
    assert "assertion violated" in run.output, "found as a dead end of the model, not as a broken promise"


def _bounds(model: str, switch: str) -> str:
    also = ALSO.get(switch, "").split()
    named = {word.partition("=")[0] for word in also}
    return " ".join([*also, *(word for word in SMALL[model].split() if word.partition("=")[0] not in named)])
