"""`turnqueue up` in one process, and the other commands from another that knows the data directory only."""

import signal
from collections.abc import Callable

import pytest

from tests.cli.conftest import Program, Shell, submit_options, wait_for_approval


@pytest.fixture(scope="module")
def up(starting: Callable[..., Program]) -> Program:
    program = starting("up", "--quiet")
    program.until("Ready.")
    return program


@pytest.fixture
def waiting(up: Program, shell: Shell) -> str:
    """An operation that waits for its approval."""
    operation_id: str = shell("submit", *submit_options(), "--json").json["operation_id"]
    wait_for_approval(shell, operation_id)
    return operation_id


def test_says_where_things_are(up: Program, shell: Shell) -> None:
    said = "".join(up.seen)
    assert str(shell.home) in said
    assert "turnqueue submit --profile support --tenant acme" in said


def test_approve_by_operation_and_follow(waiting: str, shell: Shell) -> None:
    following = shell.start("show", waiting, "--follow")
    following.until("waits for a person")
    done = shell("approve", waiting, "--by", "ops", "--reason", "seen the photo", "--json")
    assert done.code == 0
    assert done.json["state"] == "APPROVED"
    shown = following.end()
    assert shown.code == 0
    assert "COMPLETED" in shown.out
    assert "decided by ops (seen the photo)" in shown.out
    view = shell("show", waiting, "--json").json
    assert view["approvals"][0]["decided_by"] == "ops"
    assert view["approvals"][0]["decided_at"] > view["approvals"][0]["created_at"]
    shell("approve", waiting).failed(4, "NOT_PENDING")
    shell("cancel", waiting).failed(4, "ALREADY_ENDED")


def test_timeline_shows_turns_calls_attempts_waits_and_costs(waiting: str, shell: Shell) -> None:
    shown = shell("show", waiting).out
    for part in ("TOOL_PROPOSALS", "get_order (read)", "get_order #1 SUCCEEDED", "waited ", "$0.0", "out tokens"):
        assert part in shown
    assert '{"amount_cents":2450,"currency":"EUR","draft_id":"DRF-' in shown


def test_deny_by_approval_id(waiting: str, shell: Shell) -> None:
    approval_id = wait_for_approval(shell, waiting)
    done = shell("deny", approval_id, "--json")
    assert done.json["approval_id"] == approval_id
    assert done.json["state"] == "DENIED"
    followed = shell("show", waiting, "--follow", "--json")
    assert followed.code == 1
    assert followed.json["state"] == "INCOMPLETE"
    assert "NOT_PENDING: the approval is DENIED" in shell("deny", approval_id).failed(4, "NOT_PENDING")


def test_cancel(waiting: str, shell: Shell) -> None:
    done = shell("cancel", waiting, "--json")
    assert done.code == 0
    assert done.json == {"operation_id": waiting, "state": "CANCELLED"}
    view = shell("show", waiting, "--json").json
    assert view["state"] == "CANCELLED"
    assert view["approvals"][0]["state"] == "REVOKED"


def test_list(waiting: str, shell: Shell) -> None:
    found = shell("list", "--state", "WAITING_APPROVAL", "--tenant", "acme", "--json").json["operations"]
    assert waiting in [row["operation_id"] for row in found]
    assert shell("list", "--tenant", "nobody", "--json").json == {"operations": []}
    assert len(shell("list", "--limit", "1", "--json").json["operations"]) == 1
    assert waiting in shell("list").out
    shell("list", "--state", "DONE").failed(5, "BAD_FIELD")


def test_submit_prints_the_id_alone(up: Program, shell: Shell) -> None:
    first = shell("submit", *submit_options(), "--idempotency-key", "ticket-1")
    again = shell("submit", *submit_options(), "--idempotency-key", "ticket-1")
    assert first.out == again.out
    assert first.out.startswith("op_")
    other = shell("submit", *submit_options("other"), "--idempotency-key", "ticket-1")
    assert other.code == 0  # another tenant's key is another key
    changed = [*submit_options()[:-1], "something else"]
    shell("submit", *changed, "--idempotency-key", "ticket-1").failed(4, "IDEMPOTENCY_CONFLICT")


def test_run_uses_the_workers_that_run(up: Program, shell: Shell) -> None:
    running = shell.start("run", *submit_options(), "--json")
    approval_id = running.until("decide in another shell").split("approve ")[1].split()[0]
    assert not any("starting" in line for line in running.seen)
    assert shell("approve", approval_id).code == 0
    done = running.end()
    assert done.code == 0
    assert done.json["state"] == "COMPLETED"


def test_run_reports_an_end_that_is_not_completion(up: Program, shell: Shell) -> None:
    stranger = ["--profile", "support", "--tenant", "acme", "--subject", "customer-7", "--input", "refund ORD-123456"]
    done = shell("run", *stranger, "--json")  # no scopes: every tool is refused
    assert done.code == 1
    assert done.json["state"] not in ("COMPLETED", "READY")


def test_interrupted_follow_is_130(waiting: str, shell: Shell) -> None:
    following = shell.start("show", waiting, "--follow")
    following.until("waits for a person")
    following.end(signal.SIGINT).failed(130, "INTERRUPTED")


def test_unknown_ids(up: Program, shell: Shell) -> None:
    mistyped = "op_00000000000000000000000000"
    assert mistyped in shell("show", mistyped).failed(3, "UNKNOWN_OPERATION")
    shell("show", "tpyo").failed(3, "UNKNOWN_OPERATION")
    shell("cancel", mistyped).failed(3, "UNKNOWN_OPERATION")
    shell("approve", mistyped).failed(3, "UNKNOWN_OPERATION")
    done = shell("deny", "apr_nothing", "--json")
    done.failed(3, "UNKNOWN_APPROVAL")
    assert done.json["error"]["code"] == "UNKNOWN_APPROVAL"


def test_second_up_is_a_conflict(up: Program, shell: Shell) -> None:
    assert str(up.process.pid) in shell("up").failed(4, "ALREADY_RUNNING")


def test_demo_beside_up_has_a_database_of_its_own(up: Program, shell: Shell) -> None:
    done = shell("demo", "--yes", "--json")
    assert done.code == 0
    shell("show", done.json["operation_id"]).failed(3, "UNKNOWN_OPERATION")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_cleanly(up: Program, shell: Shell, starting: Callable[..., Program], number: int) -> None:
    if up.process.poll() is None:
        up.end(signal.SIGTERM)
    again = starting("up", "--quiet")
    again.until("Ready.")
    assert again.end(number).code == 0
    shell("list").failed(6, "NO_SERVERS")
