"""resolve, complete and compensate from the shell, on an action that no worker touches."""

from collections.abc import Iterator

import pytest

from orchestrator.completion import token
from orchestrator.settings import Settings
from store.db import Database
from tests.cli.conftest import Shell
from tests.store.rows import Rows

KEYS = {"TURNQUEUE_COMPLETION_KEY_ENV": "THE_KEY", "THE_KEY": "k" * 40}


@pytest.fixture
def rows(deployed: Shell) -> Iterator[Rows]:
    database = Database(deployed.environ["TURNQUEUE_DATABASE_URL"])
    yield Rows(database)
    database.close()


def uncertain(rows: Rows, state: str = "UNKNOWN") -> str:
    operation = rows.operation()
    action = rows.action(operation, tool="submit_refund", wake_at=None)
    rows.sql(
        "UPDATE actions SET state = :s, started_at = clock_timestamp(), review = true WHERE action_id = :a",
        s=state, a=action,
    )  # fmt: skip
    return action


def test_resolve(deployed: Shell, rows: Rows) -> None:
    happened, not_applied = uncertain(rows), uncertain(rows)
    done = deployed("resolve", happened, "--succeeded", "REF-7", "--by", "olga", "--json")
    assert (done.code, done.json) == (0, {"action_id": happened, "state": "SUCCEEDED"})
    assert rows.one("actions", happened)["external_ref"] == "REF-7"
    assert "FAILED" in deployed("resolve", not_applied, "--not-applied", "--evidence", "ticket 5").err
    deployed("resolve", happened, "--succeeded", "REF-8").failed(4, "NOT_UNCERTAIN")


def test_reviews_lists_what_waits_for_an_operator(deployed: Shell, rows: Rows) -> None:
    action = uncertain(rows)
    assert action in [row["action_id"] for row in deployed("reviews", "--json").json["reviews"]]
    assert action in deployed("reviews").out
    deployed("resolve", action, "--not-applied", "--evidence", "looked it up")
    assert action not in deployed("reviews").out + deployed("reviews", "--tenant", "nobody").out


@pytest.mark.parametrize(
    "options", [(), ("--succeeded", "R", "--retry"), ("--not-applied",), ("--succeeded", "R", "--result", "[1]")]
)
def test_resolve_needs_one_verdict_with_its_evidence(options: tuple[str, ...], deployed: Shell, rows: Rows) -> None:
    deployed("resolve", uncertain(rows), *options).failed(5, "BAD_FIELD")


def test_unknown_ids(deployed: Shell) -> None:
    deployed("resolve", "act_none", "--succeeded", "R").failed(3, "UNKNOWN_ACTION")
    deployed("compensate", "act_none", "--arguments", "{}").failed(3, "UNKNOWN_ACTION")


def test_complete(deployed: Shell, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "k" * 40)
    action = uncertain(rows, "PENDING")
    settings = Settings(completion_key_env="THE_KEY")
    sealed = token(settings, action, rows.one("actions", action)["idempotency_key"]) or ""
    deployed("complete", action, "--token", sealed + "x", "--code", "NO", **KEYS).failed(5, "TOKEN_BAD")
    done = deployed("complete", action, "--token", sealed, "--code", "card declined", "--json", **KEYS)
    assert done.json == {"action_id": action, "state": "FAILED"}
    deployed("complete", action, "--token", sealed, "--code", "NO", **KEYS).failed(4, "ALREADY_SETTLED")


def test_what_names_no_undo_cannot_be_compensated(deployed: Shell, rows: Rows) -> None:
    action = uncertain(rows)
    deployed("compensate", action, "--arguments", "{}").failed(4, "NOT_SUCCEEDED")
    deployed("resolve", action, "--succeeded", "REF-7")
    deployed("compensate", action, "--arguments", "{}").failed(5, "NO_COMPENSATION")
