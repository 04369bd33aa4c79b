"""Rows for store tests, written through the store's own functions where it has them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from orchestrator.domain.model import ApprovalState
from orchestrator.ids import new_id
from store import actions, approvals, calls, operations, tables
from store.db import Database

RACERS = 50


@dataclass(frozen=True)
class Rows:
    database: Database

    def sql(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        with self.database.autocommit() as connection:
            result = connection.execute(text(statement), values)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def one(self, table: str, row_id: str) -> dict[str, Any]:
        key = {"operations": "operation_id", "calls": "call_key", "actions": "action_id", "approvals": "approval_id"}
        [row] = self.sql(f"SELECT * FROM {table} WHERE {key[table]} = :row_id", row_id=row_id)
        return row

    def operation(self, tenant: str = "acme", **changed: Any) -> str:
        fields: dict[str, Any] = {
            "operation_id": new_id("op"), "tenant": tenant, "subject": "customer-7", "scopes": ["r"], "profile": "desk",
            "profile_digest": "d" * 64, "caller_key": None, "request_sha256": "r" * 64, "wall_seconds": 3600,
        }  # fmt: skip
        fields |= changed
        with self.database.transaction() as connection:
            operations.insert_profile(connection, digest="d" * 64, name="desk", version="1", body="{}")
            assert operations.insert(connection, **fields)
        return str(fields["operation_id"])

    def read(self, operation_id: str, position: int = 0, **changed: Any) -> str:
        """A due read call."""
        fields: dict[str, Any] = {
            "call_key": new_id("call"), "operation_id": operation_id, "tenant": "acme", "turn": 1, "position": position,
            "revision": 1, "call_id": f"c{position}", "tool": "look", "queue": "reads", "limited": False,
            "arguments": {}, "arguments_sha256": "a" * 64, "state": "READY", "wake_at": text("clock_timestamp()"),
        }  # fmt: skip
        with self.database.transaction() as connection:
            connection.execute(_insert("calls", fields | changed))
        return str((fields | changed)["call_key"])

    def action(self, operation_id: str, position: int = 0, **changed: Any) -> str:
        """A due write."""
        action_id = new_id("act")
        fields: dict[str, Any] = {
            "action_id": action_id, "operation_id": operation_id, "tenant": "acme", "turn": 1, "position": position,
            "revision": 1, "tool": "pay", "tool_version": "1", "effect": "create", "queue": "writes", "limited": False,
            "independent": False, "arguments": {}, "arguments_sha256": "a" * 64, "idempotency_key": f"tq_{action_id}",
            "digest": "d" * 64, "policy_version": "p", "state": "READY", "wake_at": text("clock_timestamp()"),
        }  # fmt: skip
        with self.database.transaction() as connection:
            connection.execute(_insert("actions", fields | changed))
        return action_id

    def approval(self, action_id: str, ttl: float = 3600) -> str:
        action = self.one("actions", action_id)
        approval_id = new_id("apr")
        row = {
            "approval_id": approval_id, "action_id": action_id, "operation_id": action["operation_id"],
            "tenant": "acme", "requester": "customer-7", "action_digest": action["digest"], "tool_version": "1",
            "policy_version": "p", "resource_version": None, "approvers": 1, "separate": False, "nonce": approval_id,
            "bound_sha256": "b" * 64, "reason": "pay needs it",
            "expires_at": datetime.now(UTC) + timedelta(seconds=ttl),
        }  # fmt: skip
        with self.database.transaction() as connection:
            approvals.insert(connection, [row])
        return str(row["approval_id"])

    def claim(self, *, hint: str | None = None, fair: bool = False, lease: float = 30, worker: str = "w") -> Any:
        with self.database.autocommit() as connection:
            return claim(connection, hint=hint, fair=fair, lease=lease, worker=worker)

    def settle(self, row: dict[str, Any], fence: int | None = None) -> bool:
        with self.database.transaction() as connection:
            return calls.settle(connection, **result_of(row, fence))

    def expire(self, table: str, row_id: str) -> None:
        """Let the lease of a row run out, as time would."""
        key = {"operations": "operation_id", "calls": "call_key", "actions": "action_id"}[table]
        past = "clock_timestamp() - interval '1 second'"
        self.sql(f"UPDATE {table} SET lease_until = {past} WHERE {key} = :row_id", row_id=row_id)


def claim(
    connection: Connection, *, hint: str | None = None, fair: bool = False, lease: float = 30, worker: str = "w"
) -> Any:
    return calls.claim(connection, hint=hint, queue="reads", lease=lease, slot_lease=60, worker=worker, fair=fair)


def result_of(row: dict[str, Any], fence: int | None = None) -> dict[str, Any]:
    return {
        "call_key": row["call_key"], "fence": row["fence"] if fence is None else fence, "state": "SUCCEEDED",
        "code": None, "observation": "{}", "is_error": False, "binding": "{}", "binding_sha256": "b" * 64,
        "attempt_state": "SUCCEEDED", "contacted": True,
    }  # fmt: skip


def approve(connection: Connection, approval_id: str, state: ApprovalState, by: str) -> bool:
    return approvals.decide(connection, approval_id, state=state, by=by, reason="") is not None


def start(connection: Connection, action_id: str, worker: str = "w") -> tuple[str, int] | None:
    return actions.start(connection, action_id, lease=30, slot_lease=60, worker=worker)


def _insert(table: str, fields: dict[str, Any]) -> Any:
    return tables.metadata.tables[table].insert().values(**fields)


def race(database: Database, work: Callable[[Connection, int], Any], racers: int = RACERS) -> list[Any]:
    """Every racer has its own connection and starts at the same moment; what each returned or raised."""
    barrier = threading.Barrier(racers)
    results: list[Any] = [None] * racers

    def run(index: int) -> None:
        try:
            with database.transaction() as connection:
                connection.execute(text("SELECT 1"))
                barrier.wait(60)
                results[index] = work(connection, index)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition; fail when it does not come."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.02)
