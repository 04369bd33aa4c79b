"""A worker is stopped after `started` and its last look at the lease, just before the request leaves, and goes on long
after it was given up: the request still arrives. Nothing may come of it twice, and nobody may call it not done.
"""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator import commands, settling
from orchestrator.app import App
from tests.chaos.world import World, wait_until, world


@pytest.fixture(scope="module")
def here() -> Iterator[World]:
    """Two workers of each kind: the other one reconciles while one is stopped."""
    with world(env={"TURNQUEUE_CHECK_LIMIT": "3"}) as running:
        yield running


def submit(here: World, app: App, tool: str, name: str) -> str:
    turns: list[dict[str, Any]] = [{"calls": [{"name": tool, "arguments": {"name": name}}]}, {"text": "Done."}]
    here.model.add({"id": name, "turns": turns})
    request = commands.Submission(profile="chaos", input=f"[script:{name}]", tenant="north", subject="client")
    operation_id = commands.submit(app, request).operation_id
    with (here.folder / "accepted").open("a") as log:
        log.write(json.dumps({"operation_id": operation_id}) + "\n")
    return operation_id


def stopped_before_sending(here: World, app: App, tool: str, name: str) -> tuple[str, int]:
    """The operation and the process that is stopped in it."""
    before = len(here.fired())
    here.arm("write.sending", 1, "stop")
    operation_id = submit(here, app, tool, name)
    assert wait_until(lambda: len(here.fired()) > before)
    *_, pid, action = here.fired()[-1]
    assert action == "stop"
    here.disarm()
    return operation_id, pid


def arrived(here: World, event: str, tool: str) -> int:
    return sum(line["tool"] == tool for line in here.ledger.lines(event))


def late_results(here: World, operation_id: str) -> int:
    statement = "SELECT count(*) FROM audit WHERE operation_id = %s AND kind = 'action.late_result'"
    return int(here.sql(statement, operation_id)[0][0])


def how_it_stands(here: World) -> list[tuple[Any, ...]]:
    """For the message of a failed test."""
    asked = "SELECT tool, state, checks, review, wake_at::text, lease_until::text, evidence FROM actions"
    sessions = "SELECT pid, state, wait_event, state_change::text, left(query, 80) FROM pg_stat_activity"
    return here.sql(asked) + here.sql(f"{sessions} WHERE state <> 'idle'")


def wake(here: World, operation_id: str, pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: late_results(here, operation_id) == 1), "what the zombie saw is kept as evidence"


@pytest.mark.parametrize("tool", ["pay_keyed", "pay_both"])
def test_absorbed_by_the_key(tool: str, here: World, app: App) -> None:
    """The downstream enforces the key: another worker sent again meanwhile, and the late request changes nothing."""
    operation_id, pid = stopped_before_sending(here, app, tool, f"zombie-{tool}")
    assert wait_until(lambda: commands.inspect(app, operation_id).state == "COMPLETED")
    assert (arrived(here, "arrived", tool), arrived(here, "effect", tool)) == (1, 1)
    wake(here, operation_id, pid)
    assert (arrived(here, "arrived", tool), arrived(here, "effect", tool)) == (2, 1)
    [action] = commands.inspect(app, operation_id).actions
    assert (action.state, action.attempts) == ("SUCCEEDED", 2)
    assert here.rest()
    assert here.verify()["violations"] == []


@pytest.mark.parametrize("tool", ["pay_lookup", "pay_blind"])
def test_attributed_to_an_unknown_that_was_not_run_again(tool: str, here: World, app: App) -> None:
    """No key is enforced: that the downstream knows nothing of it is no proof, so that it waits for an operator."""
    operation_id, pid = stopped_before_sending(here, app, tool, f"zombie-{tool}")
    assert wait_until(lambda: commands.inspect(app, operation_id).actions[0].review), how_it_stands(here)
    assert arrived(here, "arrived", tool) == 0, "the one request has not left yet, and no other was sent"
    wake(here, operation_id, pid)
    assert (arrived(here, "arrived", tool), arrived(here, "effect", tool)) == (1, 1)
    [action] = commands.inspect(app, operation_id).actions
    assert (action.state, action.review, action.attempts) == ("UNKNOWN", True, 1)
    assert here.verify()["violations"] == []
    settling.resolve(app, action.action_id, settling.Verdict("succeeded", "seen in the ledger"), by="operator")
    assert wait_until(lambda: commands.inspect(app, operation_id).state == "COMPLETED")
    assert here.rest()
    assert here.verify()["violations"] == []


def test_a_zombie_that_still_has_to_look_at_its_lease_sends_nothing(here: World, app: App) -> None:
    here.arm("write.after_started", 1, "stop")
    before = len(here.fired())
    sent = arrived(here, "arrived", "pay_blind")
    operation_id = submit(here, app, "pay_blind", "zombie-early")
    assert wait_until(lambda: len(here.fired()) > before)
    here.disarm()
    assert wait_until(lambda: commands.inspect(app, operation_id).actions[0].review)
    wake(here, operation_id, here.fired()[-1][2])
    assert arrived(here, "arrived", "pay_blind") == sent
    assert commands.inspect(app, operation_id).actions[0].state == "UNKNOWN"
