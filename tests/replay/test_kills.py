"""Workers are killed while the airline's tasks run; its writes would show if one of them happened twice."""

from dataclasses import replace

import pytest

from examples.airline.tools import AIRLINE
from tests.replay.kills import QUICK, Killer
from tests.replay.launch import launch
from tests.replay.runner import Runner
from tests.replay.workload import Workload
from tests.shared import shared

ENDED_PER_KILL = 6  # operations that end between two kills
SUBSET = 8


@pytest.mark.campaign
@pytest.mark.timeout(280)
def test_nothing_happens_twice_and_nothing_is_lost() -> None:
    """Some tasks in worlds of their own, then the batch in one world: every result, the final states, every effect."""
    workload = Workload.load(shared("workloads/tau_airline"))
    writing = [task for task in workload.tasks if any(action.writes for action in task.actions)][:SUBSET]
    with launch(AIRLINE, provider="openai-responses", env=QUICK) as running:
        running.records.seed(workload.state())
        killer = Killer(running.stack, running.names, seed=20260607)

        def on_progress(phase: str, done: int, total: int) -> None:
            if done % ENDED_PER_KILL == 1:  # others are in flight
                killer.kill()

        runner = Runner(
            workload=replace(workload, tasks=tuple(writing)),
            client=running.client,
            records=running.records,
            domain=AIRLINE,
            model=running.model,
            on_progress=on_progress,
            seconds=200,
        )
        runner.tasks("tasks", runner.workload.tasks)
        runner.batch("batch", workload.batch)
    report = runner.report
    assert report.failed == []
    assert (report.passed, report.batch_ok, report.duplicate_effects) == (SUBSET, True, 0)
    assert killer.kills >= 5
