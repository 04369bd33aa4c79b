"""F16: workers whose wall clocks are an hour off. Leases, timers and deadlines are the database's; the rest counts on
clocks that nobody sets.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from embedded.servers import Servers
from orchestrator import commands, completion
from orchestrator.domain.errors import UserError
from orchestrator.enqueue import Enqueuer
from orchestrator.settings import Settings
from tests.faults.floor import EXECUTORS, ORCHESTRATOR, Floor, floor, sweeper, worker
from tests.orchestrator.desk import DONE, call, calls
from tests.shared import ROOT
from tests.system.scene import wait_until

HOUR = 3600
KEY = "a key for tests only, of 32 or more characters"
SOURCE = Path(__file__).with_name("shifted_clock.c")

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, as tests/models")


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose wall clock is an hour ahead; all of it, native code too."""
    library = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(HOUR)}


@pytest.fixture(scope="module")
def off(servers: Servers, database_url: str, broker_url: str, ahead: dict[str, str]) -> Iterator[Floor]:
    """The orchestrator and the sweeper are ahead, the executors behind; the servers and this process are right."""
    behind = ahead | {"CLOCK_SHIFT": str(-HOUR)}
    processes = [worker(ORCHESTRATOR, **ahead), worker(EXECUTORS, **behind), sweeper(**ahead)]
    sender = {"desk": {"key_env": "DESK_KEY", "tenants": ["acme"], "profiles": ["floor"]}}
    env = {"TURNQUEUE_SENDERS": json.dumps(sender), "DESK_KEY": KEY, "TURNQUEUE_ENVELOPE_SECONDS": str(HOUR / 2)}
    with floor(servers, database_url, broker_url, processes, env) as running:
        yield running


def test_nothing_is_early_late_or_lost(off: Floor) -> None:
    """A read, a write that waits for approval for a while, a rate limit of the model: deadline and time to live are
    shorter than the clocks are off."""
    slow_down = {"fault": {"status": 429, "headers": {"retry-after": "2"}, "times": 1}}
    operation = off.submit(calls(call("clock"), call("asked", text="a")), DONE | slow_down)
    wait_until(lambda: off.view(operation).state == "WAITING_APPROVAL")
    [asked] = off.view(operation).open_approvals
    time_to_look(off)
    commands.approve(off.app, asked.approval_id, by="boss")
    view = off.ended(operation)
    assert (view.state, view.reason) == ("COMPLETED", None)
    [clock] = [each for each in view.calls if each.tool == "clock"]
    assert float(clock.observation["data"]["text"]) - time.time() == pytest.approx(-HOUR, abs=120)
    assert made_at(view.actions[0].action_id) - time.time() == pytest.approx(HOUR, abs=120)
    assert {(attempt.number, attempt.state) for attempt in view.attempts} == {(1, "SUCCEEDED")}
    assert off.audited(operation, "turn.lost") == 0
    [times] = off.sql(
        "SELECT max(abs(extract(epoch FROM clock_timestamp() - at))) AS off FROM (SELECT at FROM audit "
        "UNION ALL SELECT started_at FROM attempts UNION ALL SELECT ended_at FROM attempts UNION ALL "
        "SELECT updated_at FROM operations) AS t(at)"
    )
    assert times["off"] < HOUR / 2, "every time that is kept is the database's"


def made_at(row_id: str) -> float:
    """The wall clock of the process that made the id: its first 48 bits are milliseconds."""
    number = 0
    for letter in row_id.partition("_")[2]:
        number = number << 5 | "0123456789abcdefghjkmnpqrstvwxyz".index(letter)
    return (number >> 80) / 1000


def time_to_look(off: Floor) -> None:
    """Several rounds of the sweeper, whose clock says that all has expired."""
    before = off.sql("SELECT clock_timestamp() AS now")[0]["now"]
    wait_until(lambda: (off.sql("SELECT clock_timestamp() AS now")[0]["now"] - before).total_seconds() > 1.5)


def test_a_dead_workers_work_is_taken_up_after_its_lease(off: Floor) -> None:
    """Not an hour early, nor an hour late."""
    off.lab.will(wait=True)
    operation = off.submit(calls(call("look", text="a")), DONE)
    wait_until(lambda: len(off.view(operation).attempts) == 1 and bool(off.lab.seen))
    off.stack.kill("executors")
    off.lab.released.set()
    view = off.ended(operation)
    assert view.state == "COMPLETED"
    assert [(a.number, a.state) for a in view.attempts] == [(1, "LOST"), (2, "SUCCEEDED")]
    first, second = view.attempts
    assert second.started_at is not None
    assert 1.0 < (second.started_at - first.started_at).total_seconds() < HOUR / 2


def test_an_envelope_is_dated_by_the_databases_clock(off: Floor, broker_url: str) -> None:
    """It was signed now; to the worker that opens it, that is longer ago than an envelope is good for."""
    off.model.add({"id": "by-envelope", "turns": [DONE]})
    options = {"global_keyprefix": "turnqueue:"}
    with Celery(broker=broker_url, broker_transport_options=options) as service:
        Enqueuer(service, sender="desk", key=KEY).submit(
            profile="floor", input="[script:by-envelope]", tenant="acme", subject="alice", idempotency_key="e-1"
        )
    made = "SELECT operation_id FROM operations WHERE caller_key = 'e-1'"
    wait_until(lambda: bool(off.sql(made)))
    assert off.ended(off.sql(made)[0]["operation_id"]).state == "COMPLETED"


def test_a_token_of_a_worker_that_is_ahead_is_good(ahead: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A downstream reports to a process whose clock is right, an hour before the token was signed."""
    monkeypatch.setenv("TOKEN_KEY", KEY)
    settings = Settings(completion_key_env="TOKEN_KEY", completion_seconds=HOUR / 2)
    sign = (
        "from orchestrator import completion, settings; "
        "s = settings.Settings(completion_key_env='TOKEN_KEY'); print(completion.token(s, 'act_1', 'tq_1'))"
    )
    argv, env = [sys.executable, "-c", sign], {**os.environ, "TOKEN_KEY": KEY}
    sealed = [
        subprocess.run(argv, env=env | clock, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        for clock in (ahead, ahead | {"CLOCK_SHIFT": str(-HOUR)})
    ]
    assert completion.opened(settings, sealed[0]) == ("act_1", "tq_1")
    with pytest.raises(UserError) as caught:
        completion.opened(settings, sealed[1])
    assert caught.value.code == "TOKEN_EXPIRED"
