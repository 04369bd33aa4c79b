"""SIGTERM, and what comes after it: real workers, the sweeper, a service that enqueues, and `turnqueue up`."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from embedded.servers import Servers
from embedded.stack import Worker
from orchestrator.enqueue import Enqueuer
from orchestrator.hints import transport_options
from orchestrator.tasks import AGAIN_SECONDS, EXIT_LEFT
from tests.cli.conftest import Program as Shown
from tests.cli.conftest import home, shell, starting  # noqa: F401 - fixtures
from tests.enqueue.forge import ENVIRON, KEY, SENDERS
from tests.recovery.stage import DONE, EXECUTORS, ORCHESTRATOR, PATIENCE, QUICK, Program, Stage, calls, stage
from tests.system.scene import wait_until

SENDER = {**SENDERS["desk"], "tenants": ["north"], "profiles": ["recovery"], "scopes": []}
# A slice without end: only the stop itself keeps a task from claiming the next row, and the one after that.
ENV = {**QUICK, "TURNQUEUE_SLICE_SECONDS": "600", "TURNQUEUE_SENDERS": json.dumps({"desk": SENDER}), **ENVIRON}


@pytest.fixture
def acted(servers: Servers, database_url: str, broker_url: str) -> Iterator[Stage]:
    with stage(servers, database_url, broker_url, ENV) as ready:
        ready.sql("UPDATE operations SET wake_at = NULL WHERE wake_at IS NOT NULL")  # what earlier tests left
        yield ready


def asked(acted: Stage, operations: list[str]) -> int:
    """How many of them have been claimed for their first turn."""
    return int(
        acted.sql("SELECT count(*) FROM operations WHERE fence > 0 AND operation_id = ANY(%s)", operations)[0][0]
    )


def test_turns_in_flight_are_finished_and_no_more_are_claimed(acted: Stage) -> None:
    operations = [acted.submit(DONE, delay=2.0) for _ in range(12)]
    worker = acted.worker(ORCHESTRATOR)
    wait_until(lambda: asked(acted, operations) == 4)
    assert worker.end() == 0
    assert asked(acted, operations) == 4
    assert acted.leased() == 0
    ended = [each for each in operations if acted.view(each).ended_at]
    assert {acted.view(each).state for each in ended} == {"COMPLETED"}
    assert len(ended) == 4
    acted.worker(ORCHESTRATOR)
    acted.sweeper()
    assert {view.state for view in acted.finish(*operations)} == {"COMPLETED"}
    assert {len(view.requests) for view in acted.finish(*operations)} == {1}, "no turn was asked twice"


@pytest.mark.parametrize(
    "tool", ["pay_keyed", *(pytest.param(tool, marks=pytest.mark.campaign) for tool in ("look", "pay_lookup"))]
)
def test_calls_in_flight_are_finished_and_no_more_are_claimed(acted: Stage, tool: str) -> None:
    before = acted.arrived()
    operations = [acted.submit(calls(tool), DONE) for _ in range(8)]
    orchestrator = acted.worker(ORCHESTRATOR)
    acted.ledger.control(faults={"late": 1.0}, late_s=2.0)
    wait_until(lambda: all(acted.view(each).calls for each in operations))
    executors = acted.worker(EXECUTORS)
    wait_until(lambda: acted.arrived() - before == 4)
    assert executors.end() == 0
    assert acted.arrived() - before == 4
    assert acted.leased() == 0
    settled = [each.state for operation in operations for each in acted.view(operation).attempts]
    assert settled == ["SUCCEEDED"] * 4
    acted.ledger.control(faults={})
    acted.worker(EXECUTORS)
    acted.sweeper()
    assert {view.state for view in acted.finish(*operations)} == {"COMPLETED"}
    assert set(acted.effects().values()) <= {1}
    assert acted.arrived() - before == 8, "nothing was sent twice"
    assert orchestrator.end() == 0


def terminate_twice(program: Program) -> None:
    program.tell(signal.SIGTERM)
    wait_until(lambda: program.said("shutdown (MainProcess)"))
    wait_until(lambda: _again(program) is not None)
    assert program.process.returncode == EXIT_LEFT
    assert program.said("worker.left")


def _again(program: Program) -> int | None:
    """Told again and again; the first times that is within a second of the first, and not meant."""
    program.tell(signal.SIGTERM)
    try:
        return program.process.wait(AGAIN_SECONDS / 4)
    except subprocess.TimeoutExpired:
        return None


def stop_timeout(program: Program) -> None:
    """As Docker does once `stop_grace_period` is over."""
    program.tell(signal.SIGTERM)
    wait_until(lambda: program.said("shutdown (MainProcess)"))
    program.kill()


def quit_at_once(program: Program) -> None:
    program.end(signal.SIGQUIT)


@pytest.mark.parametrize(
    "how",
    [
        terminate_twice,
        stop_timeout,
        *(pytest.param(how, marks=pytest.mark.campaign) for how in (quit_at_once, Program.kill)),
    ],
)
def test_what_is_cut_off_is_swept_up(acted: Stage, how: Callable[[Program], Any]) -> None:
    """A turn, a read and writes of each kind are in flight for longer than anybody waits."""
    acted.ledger.control(faults={"late": 1.0}, late_s=8.0)
    first = [acted.submit(calls(name), DONE) for name in ("look", "pay_keyed", "pay_lookup", "pay_both")]
    before = acted.arrived()
    orchestrator, executors = acted.worker(ORCHESTRATOR), acted.worker(EXECUTORS)
    wait_until(lambda: acted.arrived() - before == 4)
    turn = acted.submit(DONE, delay=8.0)
    wait_until(lambda: acted.view(turn).state == "MODEL_REQUESTED")
    for program in (orchestrator, executors):
        how(program)
    acted.ledger.control(faults={})
    acted.worker(ORCHESTRATOR)
    acted.worker(EXECUTORS)
    acted.sweeper()
    assert {view.state for view in acted.finish(turn, *first)} == {"COMPLETED"}
    assert set(acted.effects().values()) == {1}
    wait_until(lambda: acted.leased() == 0)


# --- the others ----------------------------------------------------------------------------------------------------

LOST = 600
_CLONE = """
    INSERT INTO operations (operation_id, tenant, subject, scopes, profile, profile_digest, request_sha256, state,
                            deadline, next_seq, fence, turn, lease_until)
    SELECT 'op_lost' || n, tenant, subject, scopes, profile, profile_digest, request_sha256, 'MODEL_REQUESTED',
           deadline, 1, 1, 1, now() - interval '1 minute'
    FROM operations, generate_series(1, %s) n WHERE operation_id = %s
"""
_REPAIRED = "SELECT count(*) FROM operations WHERE starts_with(operation_id, 'op_lost') AND state = 'READY'"


def test_the_sweeper_stops_between_two_rows_and_the_next_one_goes_on(acted: Stage) -> None:
    acted.sql(_CLONE, LOST, acted.submit(DONE))
    sweeper = acted.sweeper(TURNQUEUE_LOG_LEVEL="INFO")
    wait_until(lambda: acted.sql(_REPAIRED)[0][0] > 0)
    assert sweeper.end() == 0
    done = acted.sql(_REPAIRED)[0][0]
    assert 0 < done < LOST
    acted.sweeper()
    wait_until(lambda: acted.sql(_REPAIRED)[0][0] == LOST)
    lost = "SELECT count(*), count(DISTINCT operation_id) FROM audit WHERE kind = 'turn.lost'"
    assert acted.sql(f"{lost} AND starts_with(operation_id, 'op_lost')") == [(LOST, LOST)]
    acted.sql("UPDATE operations SET wake_at = NULL WHERE wake_at IS NOT NULL")


def test_no_envelope_is_lost_when_workers_stop(acted: Stage, broker_url: str) -> None:
    """Submissions by message are in no database before they are taken."""
    desk = Celery("desk", broker=broker_url, set_as_current=False)
    desk.conf.broker_transport_options = transport_options(acted.app.settings)
    enqueuer = Enqueuer(desk, sender="desk", key=KEY)
    for number in range(150):
        enqueuer.submit(
            profile="recovery", input="[script:none]", tenant="north", subject="desk", idempotency_key=f"stop-{number}"
        )
    desk.close()
    count = "SELECT count(*), count(DISTINCT caller_key) FROM operations WHERE starts_with(caller_key, 'stop-')"
    submit = Worker("submit", ("submit",), 4)
    for wanted in (1, 60):
        worker = acted.worker(submit)
        wait_until(lambda wanted=wanted: acted.sql(count)[0][0] >= wanted)  # type: ignore[misc]
        assert worker.end() == 0
    acted.worker(submit)
    wait_until(lambda: acted.sql(count)[0] == (150, 150))
    acted.sql("UPDATE operations SET wake_at = NULL WHERE wake_at IS NOT NULL")


def test_a_service_that_is_stopped_has_sent_what_it_said(acted: Stage, broker_url: str) -> None:
    desk = subprocess.Popen(
        [sys.executable, "-m", "examples.enqueue_service"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "DESK_ENVELOPE_KEY": KEY, "DESK_TENANT": "acme", "DESK_BROKER_URL": broker_url},
    )  # fmt: skip
    assert desk.stdin is not None
    assert desk.stdout is not None
    said = 0
    for number in range(1, 21):
        desk.stdin.write(json.dumps({"number": number, "customer": "c", "text": "Please."}) + "\n")
        desk.stdin.flush()
        said += desk.stdout.readline() == f"sent {number}\n"
        if number == 10:
            desk.send_signal(signal.SIGTERM)
            desk.wait(PATIENCE)
            break
    assert said == 10
    desk.communicate()
    sender = {"desk": {**SENDERS["desk"], "scopes": ["orders:read", "refunds:draft", "refunds:submit"]}}
    acted.worker(
        Worker("submit", ("submit",), 4), TURNQUEUE_SENDERS=json.dumps(sender),
        TURNQUEUE_MODULES="tests.chaos.tools,tests.recovery.hazards,examples.support",
    )  # fmt: skip
    made = "SELECT count(*) FROM operations WHERE starts_with(caller_key, 'desk-ticket-')"
    wait_until(lambda: acted.sql(made)[0][0] == 10)
    acted.sql("UPDATE operations SET wake_at = NULL WHERE wake_at IS NOT NULL")


def _of(home_directory: Path) -> dict[int, str]:
    """Processes whose environment names this data directory."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes().split(b"\0")
            if f"TURNQUEUE_HOME={home_directory}".encode() in environ:
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def test_up_leaves_nothing_running(starting: Callable[..., Shown], home: Path) -> None:  # noqa: F811
    if not Path("/proc/self/environ").exists():
        pytest.skip("looks for processes in /proc")
    up = starting("up", "--quiet")
    up.until("Ready.")
    commands = " ".join(_of(home).values())
    for part in ("orchestrator.worker", "orchestrator.sweeper", "examples.scripted_model"):
        assert re.search(re.escape(part), commands), part
    assert up.end(signal.SIGTERM).code == 0
    assert _of(home) == {}
