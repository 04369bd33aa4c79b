"""G7: with the default lease (15 s) and sweep (5 s) a dead worker's safe work runs again within 25 s."""

import os
from collections.abc import Iterator
from datetime import datetime

import pytest

from embedded.servers import Servers
from tests.recovery.stage import DONE, EXECUTORS, ORCHESTRATOR, Stage, calls, stage
from tests.system.scene import wait_until

BOUND = 25.0  # seconds from the death, on the database's clock


@pytest.fixture
def acted(servers: Servers, database_url: str, broker_url: str) -> Iterator[Stage]:
    with stage(servers, database_url, broker_url) as ready:
        yield ready


def now(acted: Stage) -> datetime:
    found: datetime = acted.sql("SELECT clock_timestamp()")[0][0]
    return found


def report(line: str) -> None:
    """For docs/reliability.md: RECOVERY_REPORT names a file that keeps what was measured."""
    path = os.environ.get("RECOVERY_REPORT")
    if path:
        with open(path, "a") as file:
            file.write(line + "\n")


def test_a_turn_and_a_read_of_dead_workers_run_again(acted: Stage) -> None:
    """Both at once, so that it takes the time once. The workers are replaced at once, as a supervisor would."""
    acted.ledger.control(faults={"late": 1.0}, late_s=40.0)
    read = acted.submit(calls("look"), DONE)
    orchestrator, executors = acted.worker(ORCHESTRATOR), acted.worker(EXECUTORS)
    acted.sweeper()
    wait_until(lambda: acted.arrived() == 1)
    turn = acted.submit(DONE, delay=40.0, times=1)
    wait_until(lambda: acted.view(turn).state == "MODEL_REQUESTED")
    acted.ledger.control(faults={})
    orchestrator.kill()
    executors.kill()
    died = now(acted)
    acted.worker(ORCHESTRATOR)
    acted.worker(EXECUTORS)
    assert [view.state for view in acted.finish(turn, read)] == ["COMPLETED", "COMPLETED"]
    [again] = acted.sql("SELECT started_at FROM attempts WHERE operation_id = %s AND number = 2", read)[0]
    # The second claim is between the entry of the loss and the reply, which the model does not delay a second time.
    [lost] = acted.sql("SELECT at FROM audit WHERE operation_id = %s AND kind = 'turn.lost'", turn)[0]
    [replied] = acted.sql("SELECT replied_at FROM turns WHERE operation_id = %s", turn)[0]
    waited = {"read": (again - died).total_seconds(), "turn": (replied - died).total_seconds()}
    report(f"dead worker: read again after {waited['read']:.1f} s, turn answered after {waited['turn']:.1f} s")
    assert max(waited.values()) <= BOUND
    assert died < lost <= replied
    assert [each.state for each in acted.view(read).attempts] == ["LOST", "SUCCEEDED"]
    assert len(acted.view(turn).requests) == 1
