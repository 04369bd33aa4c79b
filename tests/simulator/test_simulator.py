"""Seeded histories of the pure core under crashes, lossy delivery and a faulty downstream; planted rules are found."""

import pytest

from orchestrator.domain.operation import TERMINAL
from tests.simulator.__main__ import main
from tests.simulator.history import BUGS, play
from tests.simulator.runs import how_to_repeat, run

HISTORIES = 20_000
ENOUGH_TO_FIND = 5_000

pytestmark = pytest.mark.timeout(900)


def test_the_invariants_hold_in_every_history() -> None:
    total = run(seed=0, histories=HISTORIES)
    assert not total.failed, f"{len(total.failed)} of {total.histories}: {how_to_repeat(total.failed[0])}"
    assert total.histories == HISTORIES
    assert set(total.ends) >= {state.value for state in TERMINAL}
    assert set(total.ends) >= {"SUCCEEDED", "REJECTED", "UNKNOWN", "PENDING"}
    assert total.kills > HISTORIES
    assert total.effects > HISTORIES


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_rule_is_found(bug: str, capsys: pytest.CaptureFixture[str]) -> None:
    total = run(seed=0, histories=ENOUGH_TO_FIND, bug=bug, stop=True)
    assert total.first, f"{bug} went unnoticed in {total.histories} histories"
    seed = total.first.seed
    assert main(["--seed", str(seed), "--bug", bug]) == 1
    assert f"SEED={seed} {total.first.problem}" in capsys.readouterr().out


def test_a_seed_repeats_its_history() -> None:
    assert play(7, trace=True) == play(7, trace=True)
    assert play(7).steps != play(8).steps
