"""Fifty connections reach for the same thing at the same moment; one gets it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from executors.registry import Registry
from orchestrator import commands
from orchestrator.app import App
from orchestrator.domain.errors import Conflict
from orchestrator.domain.model import ApprovalState
from orchestrator.settings import Settings
from policy.profile import Model, Profile
from store import actions, approvals, calls, operations, slots
from store.db import Database
from tests.store.rows import RACERS, Rows, approve, claim, race, start


def winners(results: list[Any]) -> list[Any]:
    errors = [r for r in results if isinstance(r, Exception)]
    assert errors == []
    return [r for r in results if r]


def test_one_claims_an_operation(rows: Rows) -> None:
    operation = rows.operation()
    results = race(rows.database, lambda c, i: operations.claim_turn(c, operation, 30))
    [held] = winners(results)
    assert (held.fence, held.turn) == (1, 1)


def test_fifty_hints_for_fifty_operations_claim_each_once(rows: Rows) -> None:
    """Without a name: each takes the longest due that nobody else has."""
    made = {rows.operation() for _ in range(RACERS)}
    results = winners(race(rows.database, lambda c, i: operations.claim_turn(c, None, 30)))
    assert Counter(held.operation_id for held in results) == Counter(made)


@pytest.mark.parametrize("hinted", [True, False])
def test_one_claims_a_read(rows: Rows, hinted: bool) -> None:
    key = rows.read(rows.operation())
    results = race(rows.database, lambda c, i: claim(c, hint=key if hinted else None, worker=f"w{i}"))
    [held] = winners(results)
    assert (held["call_key"], held["fence"], held["attempts"]) == (key, 1, 1)
    assert len(rows.sql("SELECT 1 FROM attempts WHERE call_key = :k", k=key)) == 1


def test_one_starts_an_action(rows: Rows) -> None:
    action = rows.action(rows.operation())
    results = race(rows.database, lambda c, i: start(c, action, f"w{i}"))
    [(attempt, fence)] = winners(results)
    assert fence == 1
    [row] = rows.sql("SELECT attempt_id, state FROM attempts WHERE action_id = :a", a=action)
    assert row == {"attempt_id": attempt, "state": "STARTED"}


def test_one_checks_an_uncertain_action(rows: Rows) -> None:
    action = rows.action(rows.operation(), state="UNKNOWN", started_at=rows.sql("SELECT now() AS at")[0]["at"])
    [held] = winners(race(rows.database, lambda c, i: actions.claim_check(c, action, lease=30)))
    assert (held.fence, held.checks) == (1, 1)


def test_one_decision_on_an_approval(rows: Rows) -> None:
    approval = rows.approval(rows.action(rows.operation(), state="WAITING_APPROVAL", wake_at=None))

    def decide(connection: Connection, index: int) -> str | None:
        state = ApprovalState.APPROVED if index % 2 else ApprovalState.DENIED
        return f"p{index} {state}" if approve(connection, approval, state, f"p{index}") else None

    [winner] = winners(race(rows.database, decide))
    row = rows.one("approvals", approval)
    assert f"{row['decided_by']} {row['state']}" == winner


def test_deny_or_expire_but_not_both(rows: Rows) -> None:
    action = rows.action(rows.operation(), state="WAITING_APPROVAL", wake_at=None)
    approval = rows.approval(action)

    def decide(connection: Connection, index: int) -> str | None:
        if index % 2:
            return "DENIED" if approve(connection, approval, ApprovalState.DENIED, "p") else None
        return "EXPIRED" if approvals.close(connection, action, ApprovalState.EXPIRED) else None

    assert winners(race(rows.database, decide)) == [rows.one("approvals", approval)["state"]]


def test_nobody_decides_after_the_expiry(rows: Rows) -> None:
    action = rows.action(rows.operation(), state="WAITING_APPROVAL", wake_at=None)
    approval = rows.approval(action, ttl=-1)
    assert winners(race(rows.database, lambda c, i: approve(c, approval, ApprovalState.APPROVED, "p"))) == []


def test_an_approval_is_used_once(rows: Rows) -> None:
    action = rows.action(rows.operation())
    approval = rows.approval(action)
    with rows.database.transaction() as connection:
        approve(connection, approval, ApprovalState.APPROVED, "p")
    digest = rows.one("actions", action)["digest"]
    with rows.database.transaction() as connection:
        [exact] = approvals.of_operation(connection, rows.one("actions", action)["operation_id"])
        assert not approvals.consume(connection, exact, digest="another")
        for name in ("approval_id", "action_id", "nonce"):
            assert not approvals.consume(connection, replace(exact, **{name: "another"}), digest=digest)
    used = race(rows.database, lambda c, i: approvals.consume(c, exact, digest=digest))
    assert len(winners(used)) == 1


# --- submissions ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def app(database: Database, broker_url: str) -> Iterator[App]:
    registry = Registry()
    model = Model(api="openai-chat", name="m", base_url="http://h/v1")
    registry.add_profile(Profile(name="desk", model=model, instructions="x"))
    opened = App(Settings(database_url=database.url, broker_url=broker_url, pool_size=RACERS), registry)
    yield opened
    opened.close()


def request(**changed: Any) -> commands.Submission:
    return commands.submission(**({"profile": "desk", "input": "Where is it?", "tenant": "acme"} | changed))


def test_one_operation_per_caller_key(database: Database, app: App) -> None:
    same = request(idempotency_key="ticket-7")
    results = race(database, lambda c, i: commands.submit(app, same))
    assert len({r.operation_id for r in winners(results)}) == 1
    assert sum(r.created for r in results) == 1


def test_another_request_under_the_key_is_a_conflict(database: Database, app: App) -> None:
    results = race(database, lambda c, i: commands.submit(app, request(idempotency_key="ticket-8", input=f"{i % 2}")))
    done = [r for r in results if not isinstance(r, Exception)]
    refused = [r for r in results if isinstance(r, Conflict)]
    assert len({r.operation_id for r in done}) == 1
    assert sum(r.created for r in done) == 1
    assert len(done) == len(refused) == RACERS // 2
    assert {r.code for r in refused} == {"IDEMPOTENCY_CONFLICT"}


def test_keys_of_other_tenants_are_other_keys(app: App) -> None:
    one, other = (commands.submit(app, request(idempotency_key="ticket-9", tenant=t)) for t in ("acme", "initech"))
    assert one.operation_id != other.operation_id


def test_an_envelope_makes_one_operation(database: Database, app: App) -> None:
    envelope = commands.Envelope("billing", "nonce-1", 2_000_000_000.0)
    results = race(database, lambda c, i: commands.submit(app, request(), envelope))
    assert len({r.operation_id for r in winners(results)}) == 1
    assert sum(r.created for r in results) == 1


def test_a_nonce_serves_one_request_only(database: Database, app: App) -> None:
    envelope = commands.Envelope("billing", "nonce-2", 2_000_000_000.0)
    results = race(database, lambda c, i: commands.submit(app, request(input=f"{i % 2}"), envelope))
    refused = [r for r in results if isinstance(r, Conflict)]
    assert len(refused) == RACERS // 2
    assert {r.code for r in refused} == {"ENVELOPE_NONCE_REUSED"}
    assert len(Rows(database).sql("SELECT 1 FROM envelopes WHERE nonce = 'nonce-2'")) == 1


# --- slots ---------------------------------------------------------------------------------------------------------


def limited(rows: Rows, tool: str, limit: int, count: int) -> list[str]:
    with rows.database.transaction() as connection:
        slots.sync(connection, {tool: limit})
    operation = rows.operation()
    return [rows.read(operation, i, tool=tool, limited=True) for i in range(count)]


def holders(rows: Rows, tool: str) -> list[str]:
    with rows.database.transaction() as connection:
        return slots.holders(connection, tool)


def test_never_more_than_the_limit(rows: Rows) -> None:
    limited(rows, "narrow", 4, RACERS)
    taken: list[dict[str, Any]] = []
    served = 0
    while True:
        got = winners(race(rows.database, lambda c, i: claim(c, fair=True)))
        taken += got
        assert len(taken) <= 4
        assert sorted(holders(rows, "narrow")) == sorted(row["call_key"] for row in taken)
        if not taken:
            break
        assert rows.settle(taken.pop())
        served += 1
    assert served == RACERS, "a free slot is always taken again in the end"


def test_reads_and_writes_share_the_limit_of_their_tool(rows: Rows) -> None:
    [key] = limited(rows, "shared", 1, 1)
    action = rows.action(rows.operation(), tool="shared", limited=True)
    row = rows.claim(fair=True)
    assert row["call_key"] == key
    with rows.database.transaction() as connection:
        assert start(connection, action) is None
    assert rows.settle(row)
    with rows.database.transaction() as connection:
        assert start(connection, action) is not None


def test_an_expired_slot_is_taken_again_with_a_higher_fence(rows: Rows) -> None:
    limited(rows, "slow", 1, 2)
    first = rows.claim(fair=True)
    assert rows.claim(fair=True) is None
    before = rows.sql("SELECT fence FROM slots WHERE tool = 'slow'")[0]["fence"]
    rows.sql("UPDATE slots SET lease_until = clock_timestamp() - interval '1 second' WHERE tool = 'slow'")
    second = rows.claim(fair=True)
    assert second["call_key"] != first["call_key"]
    assert rows.sql("SELECT fence, holder FROM slots WHERE tool = 'slow'") == [
        {"fence": before + 1, "holder": second["call_key"]}
    ]
    assert rows.settle(first)  # late, but its own: it frees nothing of the other's
    assert holders(rows, "slow") == [second["call_key"]]


def test_a_lost_worker_keeps_its_slot_until_its_deadline(rows: Rows) -> None:
    """Its request may still be running at the tool."""
    [key] = limited(rows, "lost", 1, 1)
    row = rows.claim(fair=True)
    with rows.database.transaction() as connection:
        again = {"call_key": key, "fence": row["fence"], "delay": 0, "attempt_state": "LOST", "code": "WORKER_LOST"}
        assert calls.try_again(connection, **again, contacted=None, free_slot=False)
    assert rows.claim(fair=True) is None
    rows.sql("UPDATE slots SET lease_until = clock_timestamp() - interval '1 second' WHERE tool = 'lost'")
    assert rows.claim(fair=True)["attempts"] == 2


def test_slots_follow_a_changed_limit(rows: Rows) -> None:
    limited(rows, "resized", 3, 3)
    row = rows.claim(fair=True)
    for limit, left in ((1, 1), (5, 5)):
        with rows.database.transaction() as connection:
            slots.sync(connection, {"resized": limit})
        assert len(rows.sql("SELECT 1 FROM slots WHERE tool = 'resized'")) == left
    assert rows.settle(row)


# --- fairness ------------------------------------------------------------------------------------------------------


def test_one_call_of_a_tenant_does_not_wait_behind_two_hundred_of_another(rows: Rows) -> None:
    with rows.database.transaction() as connection:
        slots.sync(connection, {"busy": 2})
    crowd, single = rows.operation("crowd"), rows.operation("single")
    for position in range(200):
        rows.read(crowd, position, tool="busy", limited=True, tenant="crowd")
    mine = rows.read(single, 0, tool="busy", limited=True, tenant="single")
    claimed = [rows.claim(fair=True), rows.claim(fair=True)]
    assert mine in [row["call_key"] for row in claimed]
    assert rows.claim(fair=True) is None
    assert rows.settle(claimed[0])
    assert rows.claim(fair=True)["tenant"] == "crowd"  # nobody else waits


def test_a_hint_does_not_pass_the_queue_of_a_limited_tool(rows: Rows) -> None:
    first, second = limited(rows, "hinted", 2, 2)
    assert rows.claim(hint=second, fair=True)["call_key"] == first
