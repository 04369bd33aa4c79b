"""What kills its worker at each step, on real workers that a supervisor starts again: parked, and the others go on."""

from collections.abc import Iterator

import pytest

from embedded.servers import Servers
from embedded.stack import Stack, Worker
from embedded.supervisor import CrashLimit
from orchestrator import commands, settling
from tests.recovery.stage import DONE, EXECUTORS, ORCHESTRATOR, QUICK, Stage, calls, stage
from tests.system.scene import wait_until

PATIENCE = 400.0
LIMIT = 3  # deaths; the default is 5, and each takes the time of a worker's start


@pytest.fixture
def acted(servers: Servers, database_url: str, broker_url: str) -> Iterator[Stage]:
    with stage(servers, database_url, broker_url, {**QUICK, "TURNQUEUE_LOST_LIMIT": str(LIMIT)}) as ready:
        ready.env["HAZARD_STARTS"] = str(ready.folder / "starts")
        yield ready


def stack(acted: Stage, servers: Servers, worker: Worker, *, sweeper: bool) -> Stack:
    settings = acted.app.settings
    here = Servers(settings.database_url or "", settings.broker_url or "", servers.data_dir)
    extra = {} if sweeper else {"sweeper": None}
    return Stack(
        here, env=acted.env, log_dir=acted.folder, workers=[worker], migrate=None, crash_limit=CrashLimit(1000, 1.0),
        **extra,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_deaths_at_each_step_are_counted_and_parked(acted: Stage, servers: Servers) -> None:
    with stack(acted, servers, ORCHESTRATOR, sweeper=True) as turns:
        turns.wait_ready()
        names = ("die_reading", "die_starting", "die_checked", "look", "look")
        reading, starting, checked, *healthy = (acted.submit(calls(name), DONE) for name in names)
        wait_until(lambda: all(acted.view(each).calls for each in (reading, starting, checked, *healthy)))
        judged = acted.submit(calls("die_judged"), DONE)
        (acted.folder / "starts").touch()
        acted.ledger.control(next=["after"])  # the answer to the only write that is sent is lost
        with stack(acted, servers, EXECUTORS, sweeper=False):
            wait_until(lambda: acted.view(judged).parked is not None, PATIENCE)
            wait_until(lambda: acted.view(starting).parked is not None, PATIENCE)
            wait_until(lambda: bool(acted.view(reading).ended_at), PATIENCE)
            assert {view.state for view in acted.finish(*healthy, seconds=PATIENCE)} == {"COMPLETED"}
            views = {name: acted.view(each) for name, each in (("judged", judged), ("starting", starting))}
            assert {name: (view.state, view.parked) for name, view in views.items()} == {
                "judged": ("READY", "POISON_TURN"), "starting": ("EXECUTING", "POISON_WRITE"),
            }  # fmt: skip
            assert [(each.state, each.attempts) for each in views["starting"].actions] == [("READY", 0)]
            assert [(each.state, each.code, each.attempts) for each in acted.view(reading).calls] == [
                ("FAILED", "WORKER_LOST", 3)
            ]
            deaths = "SELECT count(*) FROM audit WHERE operation_id = %s AND kind = 'turn.lost'"
            assert acted.sql(deaths, judged) == [(LIMIT,)]
            # The write whose reconciliation kills: uncertain, and an operator's.
            wait_until(lambda: acted.view(checked).actions[0].review, PATIENCE)
            [action] = acted.view(checked).actions
            assert (action.state, action.attempts) == ("UNKNOWN", 1)
            assert action.action_id in [row["action_id"] for row in settling.reviews(acted.app)]
            (acted.folder / "starts").unlink()
            commands.release(acted.app, starting, by="ops")
            assert acted.finish(starting, seconds=PATIENCE)[0].state == "COMPLETED"
    assert set(acted.effects().values()) == {1}
