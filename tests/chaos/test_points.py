"""Every registered failpoint is reached and kills, nothing comes of it, and the verifier sees what it should see."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.failpoints import POINTS
from tests.chaos.evidence import lines
from tests.chaos.faults import LEDGER, REACHED
from tests.chaos.world import World, wait_until, world


@pytest.fixture(scope="module")
def here() -> Iterator[World]:
    """After a run in which every point has killed once (that of the migration before it)."""
    with world(3, client=("--in-flight", "6")) as running:
        running.ledger.control(faults=LEDGER, late_s=0.3, hide_s=1.0)
        for point in REACHED:
            running.arm(point)
        wait_until(lambda: {point for point, *_ in running.fired()} >= POINTS)
        running.disarm()
        (running.folder / "enough").touch()
        running.ledger.control(faults={})
        yield running


def test_every_point_was_hit_and_killed(here: World) -> None:
    assert {point for point, _, _, action in here.fired() if action == "kill"} == POINTS


def test_nothing_came_of_it(here: World) -> None:
    assert here.rest()
    found = here.verify()
    assert found["violations"] == []
    assert found["counts"]["accepted"] >= 6
    assert found["counts"]["effects"] > 0


def _write(path: Path, found: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in found))
    return path


def _invariants(found: dict[str, Any]) -> set[str]:
    return {each["invariant"] for each in found["violations"]}


def test_the_verifier_reads_the_ledger(here: World, tmp_path: Path) -> None:
    """A second effect, one of other arguments, one that is missing, one too early, a sixth at once, a request twice."""
    whole = lines(here.ledger.path)
    effect = next(line for line in whole if line["event"] == "effect")
    rest = [line for line in whole if line is not effect]
    arrived = next(line for line in whole if line["event"] == "arrived" and line["tool"] == "narrow")
    planted = {
        "I1": [*whole, effect],
        "I4": [*rest, effect | {"digest": "0" * 64}],
        "I5": rest,
        "I6": [*whole, arrived | {"in_flight": 6, "attempt": "att_other"}],
        "I7": [*whole, arrived],
        "I9": [*(line for line in whole if line is not arrived), arrived | {"tenant": "elsewhere"}],
    }
    for invariant, ledger in planted.items():
        assert invariant in _invariants(here.verify(ledger=_write(tmp_path / invariant, ledger))), invariant
    early = here.verify(ledger=_write(tmp_path / "early", [*rest, effect | {"at": effect["at"] - 3600}]))
    assert [each["what"] for each in early["violations"]] == ["effect before its start"]
    answered = here.sql("SELECT attempt_id FROM attempts WHERE call_key IS NOT NULL AND state = 'SUCCEEDED'")[0][0]
    without = here.verify(ledger=_write(tmp_path / "without", [x for x in whole if x.get("attempt") != answered]))
    assert [each["what"] for each in without["violations"]] == ["an answer to what never arrived"]


def test_the_verifier_reads_the_log_of_the_client(here: World, tmp_path: Path) -> None:
    other = _write(tmp_path / "accepted", [*lines(here.folder / "accepted"), {"operation_id": "op_gone"}])
    assert _invariants(here.verify(accepted=other)) == {"I2"}
    first, *more = lines(here.folder / "accepted")
    for altered, invariant in ({"tenant": "elsewhere"}, "I9"), ({"input": "Something else."}, "I2"):
        other = _write(tmp_path / "altered", [first | altered, *more])
        assert _invariants(here.verify(accepted=other)) == {invariant}


@pytest.mark.parametrize(
    ("invariant", "damage", "mend"),
    [
        ("I2", "UPDATE operations SET state = 'EXECUTING', ended_at = NULL WHERE operation_id = {operation}",
         "UPDATE operations SET state = 'COMPLETED', ended_at = now() WHERE operation_id = {operation}"),
        ("I3", "UPDATE attempts SET state = 'STARTED', ended_at = NULL WHERE attempt_id = {attempt}",
         "UPDATE attempts SET state = 'SUCCEEDED', ended_at = now() WHERE attempt_id = {attempt}"),
        ("I8", "UPDATE audit SET actor = actor || '!' WHERE operation_id = {operation} AND seq = 2",
         "UPDATE audit SET actor = rtrim(actor, '!') WHERE operation_id = {operation} AND seq = 2"),
        ("I4", "UPDATE actions SET revision = revision + 1 WHERE action_id = {action}",
         "UPDATE actions SET revision = revision - 1 WHERE action_id = {action}"),
        ("I9", "UPDATE calls SET tenant = tenant || '!' WHERE operation_id = {operation}",
         "UPDATE calls SET tenant = rtrim(tenant, '!') WHERE operation_id = {operation}"),
        ("I9", "UPDATE audit SET actor = 'caller:elsewhere/client' WHERE operation_id = {operation} AND seq = 1",
         "UPDATE audit SET actor = 'caller:' || tenant || '/client' WHERE operation_id = {operation} AND seq = 1"),
        ("I10", "UPDATE audit SET kind = 'action.unknown' WHERE audit_id = {started}",
         "UPDATE audit SET kind = 'action.started' WHERE audit_id = {started}"),
        ("I11", "UPDATE attempts SET fence = fence + 100 WHERE attempt_id = {attempt}",
         "UPDATE attempts SET fence = fence - 100 WHERE attempt_id = {attempt}"),
    ],
)  # fmt: skip
def test_the_verifier_reads_the_database(invariant: str, damage: str, mend: str, here: World) -> None:
    operation, attempt, action = here.sql(
        "SELECT operation_id, attempt_id, action_id FROM attempts JOIN operations o USING (operation_id) "
        "WHERE action_id IS NOT NULL AND o.state = 'COMPLETED' AND attempts.state = 'SUCCEEDED' "
        "ORDER BY attempt_id LIMIT 1"
    )[0]
    [started] = here.sql(
        f"SELECT min(audit_id) FROM audit WHERE operation_id = '{operation}' AND kind = 'action.started'"
    )[0]
    names = {"operation": f"'{operation}'", "attempt": f"'{attempt}'", "action": f"'{action}'", "started": started}
    here.tamper(damage.format(**names))
    assert invariant in _invariants(here.verify())
    here.tamper(mend.format(**names))
