"""Rows of a newer release are left alone: by workers, by the sweeper, and by people's verbs. The others go on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from orchestrator import commands, dispatch, settling, turn
from orchestrator.completion import token
from orchestrator.domain.errors import Conflict
from orchestrator.settling import Completed, Verdict
from store import actions as action_store
from store import operations as operation_store
from store.tables import SCHEMA_VERSION
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import CAREFUL, submit

KEY = "SKEW_COMPLETION_KEY"
ASKS = calls(call("ask_user", question="Which day?"))
PAST = "clock_timestamp() - interval '1 second'"
# Everything that is stored about an operation, but its version.
TABLES = {
    "operations": "operation_id", "items": "seq", "calls": "call_key", "actions": "action_id",
    "attempts": "attempt_id", "approvals": "approval_id", "questions": "question_id", "audit": "seq",
}  # fmt: skip


@pytest.fixture(autouse=True)
def signing_key(monkeypatch: pytest.MonkeyPatch, hall: Desk) -> None:
    monkeypatch.setenv(KEY, "k" * 40)
    monkeypatch.setattr(hall.app, "settings", hall.app.settings.model_copy(update={"completion_key_env": KEY}))


# --- operations in which something is due --------------------------------------------------------------------------


def _ready(hall: Desk) -> str:
    return submit(hall, DONE)


def _lost_turn(hall: Desk) -> str:
    operation = _ready(hall)
    with hall.app.database.autocommit() as connection:
        assert operation_store.claim_turn(connection, operation, 60) is not None
    hall.expire_leases(operation)
    return operation


def _late(hall: Desk) -> str:
    operation = submit(hall, ASKS, DONE)
    hall.advance(operation)
    hall.sql(f"UPDATE operations SET deadline = {PAST} WHERE operation_id = :o", o=operation)
    return operation


def _due(tool: str) -> Callable[[Desk], str]:
    def leave(hall: Desk) -> str:
        operation = submit(hall, calls(call(tool)), DONE)
        hall.advance(operation)
        return operation

    return leave


def _lost_read(hall: Desk) -> str:
    operation = _due("look")(hall)
    hall.sql(
        f"UPDATE calls SET state = 'RUNNING', wake_at = NULL, attempts = 1, lease_until = {PAST} "
        "WHERE operation_id = :o", o=operation,
    )  # fmt: skip
    return operation


def _lost_write(hall: Desk) -> str:
    operation = _due("write")(hall)
    action_id = hall.action(operation).action_id
    with hall.app.database.transaction() as connection:
        assert action_store.start(connection, action_id, lease=60, slot_lease=60, worker="dead") is not None
    hall.expire_leases(operation)
    return operation


def _left(tool: str, **plan: Any) -> Callable[[Desk], str]:
    """A write was sent, and what the downstream did with it is not known yet; the next look is due."""

    def leave(hall: Desk) -> str:
        hall.lab.will(**plan)
        operation = _due(tool)(hall)
        hall.step("writes")
        hall.hurry(operation)
        return operation

    return leave


def _asked(hall: Desk) -> str:
    operation = submit(hall, ASKS, DONE)
    assert hall.advance(operation).state == "WAITING_INPUT"
    return operation


def _waiting(hall: Desk) -> str:
    operation = submit(hall, calls(CAREFUL), DONE)
    assert hall.advance(operation).state == "WAITING_APPROVAL"
    return operation


def _expired(table: str, before: Callable[[Desk], str]) -> Callable[[Desk], str]:
    def leave(hall: Desk) -> str:
        operation = before(hall)
        hall.sql(f"UPDATE {table} SET expires_at = {PAST} WHERE operation_id = :o", o=operation)
        return operation

    return leave


def _done(hall: Desk) -> str:
    operation = submit(hall, calls(call("patient")), DONE)
    assert hall.run(operation).state == "COMPLETED"
    return operation


DUE: dict[str, Callable[[Desk], str]] = {
    "turn": _ready,
    "lost turn": _lost_turn,
    "past its deadline": _late,
    "read": _due("look"),
    "limited read": _due("narrow"),
    "lost read": _lost_read,
    "write": _due("write"),
    "lost write": _lost_write,
    "uncertain write": _left("patient", cut=True),
    "pending write": _left("checked", status=202, json={"id": "job-9"}),
    "expired approval": _expired("approvals", _waiting),
    "expired question": _expired("questions", _asked),
}


# --- what a worker and the sweeper do ------------------------------------------------------------------------------


def stored(hall: Desk, operation: str) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for table, order in TABLES.items():
        rows = hall.sql(f"SELECT * FROM {table} WHERE operation_id = :o ORDER BY {order}", o=operation)
        found[table] = [{k: v for k, v in row.items() if k != "schema_version"} for row in rows]
    return found


def set_version(hall: Desk, operation: str, version: int) -> None:
    hall.sql("UPDATE operations SET schema_version = :v WHERE operation_id = :o", v=version, o=operation)


def work(hall: Desk, operation: str) -> None:
    """Every hint there could be of this operation, then whatever is due, and a sweep."""
    turn.advance(hall.app, operation)
    for table, key in (("calls", "call_key"), ("actions", "action_id")):
        for row in hall.sql(f"SELECT {key} AS id, queue FROM {table} WHERE operation_id = :o", o=operation):
            dispatch.run_one(hall.app, row["queue"] or "reads", row["id"])
    turn.advance(hall.app, None)
    for queue in ("reads", "writes"):
        dispatch.run_one(hall.app, queue, None)
    hall.sweep()


@pytest.mark.parametrize("kind", DUE)
def test_left_alone_until_somebody_knows_it(kind: str, hall: Desk) -> None:
    newer = DUE[kind](hall)
    set_version(hall, newer, SCHEMA_VERSION + 1)
    ours = DUE[kind](hall)
    before, ours_before = stored(hall, newer), stored(hall, ours)
    assert hall.sweep() is not None
    for _ in range(3):
        work(hall, newer)
    assert stored(hall, newer) == before
    assert stored(hall, ours) != ours_before, "another operation in the same state goes on"
    set_version(hall, newer, SCHEMA_VERSION)  # as it looks to a release that knows it
    work(hall, newer)
    assert stored(hall, newer) != before


# --- people --------------------------------------------------------------------------------------------------------


def _approve(hall: Desk, operation: str) -> None:
    commands.approve(hall.app, hall.approval(operation), by="boss")


def _edit(hall: Desk, operation: str) -> None:
    commands.approve(hall.app, hall.approval(operation), by="boss", arguments={"text": "b", "size": 4})


def _deny(hall: Desk, operation: str) -> None:
    commands.deny(hall.app, hall.approval(operation), by="boss")


def _answer(hall: Desk, operation: str) -> None:
    commands.answer(hall.app, operation, "Monday", by="alice")


def _amend(hall: Desk, operation: str) -> None:
    commands.amend(hall.app, operation, "Tuesday, please.", by="alice")


def _cancel(hall: Desk, operation: str) -> None:
    commands.cancel(hall.app, operation)


def _resolve(hall: Desk, operation: str) -> None:
    settling.resolve(hall.app, hall.action(operation).action_id, Verdict("not_applied", "ticket 5"), by="olga")


def _complete(hall: Desk, operation: str) -> None:
    action = hall.action(operation)
    sealed = token(hall.app.settings, action.action_id, action.idempotency_key)
    assert sealed is not None
    settling.complete(hall.app, action.action_id, sealed, Completed(code="FULL"))


def _compensate(hall: Desk, operation: str) -> None:
    settling.compensate(hall.app, hall.action(operation).action_id, arguments={}, by="olga")


VERBS: dict[str, tuple[Callable[[Desk], str], Callable[[Desk, str], None]]] = {
    "approve": (_waiting, _approve),
    "approve with an edit": (_waiting, _edit),
    "deny": (_waiting, _deny),
    "answer": (_asked, _answer),
    "amend": (_asked, _amend),
    "cancel": (_ready, _cancel),
    "resolve": (_left("write", cut=True), _resolve),
    "complete": (_left("checked", status=202, json={"id": "job-9"}), _complete),
    "compensate": (_done, _compensate),
}


@pytest.mark.parametrize("verb", VERBS)
def test_people_are_told_to_use_the_newer_release(verb: str, hall: Desk) -> None:
    leave, say = VERBS[verb]
    operation = leave(hall)
    set_version(hall, operation, SCHEMA_VERSION + 1)
    before = stored(hall, operation)
    with pytest.raises(Conflict) as refused:
        say(hall, operation)
    assert refused.value.code == "NEWER_VERSION"
    assert stored(hall, operation) == before
    set_version(hall, operation, SCHEMA_VERSION)
    say(hall, operation)
    assert stored(hall, operation) != before


def test_it_can_be_looked_at_and_is_not_submitted_again(hall: Desk) -> None:
    operation = _waiting(hall)
    hall.sql("UPDATE operations SET caller_key = 'k' WHERE operation_id = :o", o=operation)
    set_version(hall, operation, SCHEMA_VERSION + 1)
    assert hall.view(operation).state == "WAITING_APPROVAL"
    assert operation in [row["operation_id"] for row in commands.list_operations(hall.app)]
    name = hall.scripts[operation]
    request = commands.submission(profile=name, input="Please.", tenant="acme", subject="alice", idempotency_key="k")
    found = commands.submit(hall.app, request)
    assert (found.operation_id, found.created) == (operation, False)


# --- values that this release does not know ------------------------------------------------------------------------


@pytest.fixture
def logged() -> Iterator[LogCapture]:
    capture, before = LogCapture(), structlog.get_config()
    structlog.configure(processors=[capture])
    yield capture
    structlog.configure(**before)


def test_an_unknown_value_does_not_keep_others_from_their_repair(hall: Desk, logged: LogCapture) -> None:
    """As if a release had forgotten to raise its version: what cannot be read is passed over and said."""
    hall.sql("ALTER TABLE actions DROP CONSTRAINT ck_actions_effect")
    hall.sql("ALTER TABLE calls DROP CONSTRAINT ck_calls_effect")
    strange_write, write = _lost_write(hall), _lost_write(hall)
    strange_read, read = _lost_read(hall), _lost_read(hall)
    hall.sql("UPDATE actions SET effect = 'teleport' WHERE operation_id = :o", o=strange_write)
    hall.sql("UPDATE calls SET effect = 'teleport' WHERE operation_id = :o", o=strange_read)
    done = hall.sweep()
    assert (done["lost_writes"], done["lost_reads"]) == (1, 1)
    assert hall.action(write).state == "UNKNOWN"
    assert hall.call(read).state == "READY"
    kinds = [entry["kind"] for entry in logged.entries if entry["event"] == "row.unreadable"]
    assert sorted(kinds) == ["ActionRecord", "CallRecord"]
    [action] = hall.sql("SELECT action_id FROM actions WHERE operation_id = :o", o=strange_write)
    assert not dispatch.run_one(hall.app, "writes", action["action_id"]), "a hint of it does no harm"
    with pytest.raises(Conflict, match="newer release"):
        hall.view(strange_write)


def test_a_profile_of_a_newer_release_does_not_keep_others_from_their_repair(hall: Desk, logged: LogCapture) -> None:
    strange, ours = _lost_turn(hall), _lost_turn(hall)
    digest = hall.sql("SELECT profile_digest FROM operations WHERE operation_id = :o", o=strange)[0]["profile_digest"]
    hall.sql("UPDATE profiles SET body = body || '{\"moon_phase\": 3}' WHERE digest = :d", d=digest)
    assert hall.sweep()["lost_turns"] == 1
    assert hall.view(ours).state == "READY"
    assert hall.view(strange).state == "MODEL_REQUESTED"
    assert "sweeper.row_left" in [entry["event"] for entry in logged.entries]
