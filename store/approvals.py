"""Approvals: one decision on one exact action digest, decided and consumed by compare-and-set."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from orchestrator.domain.model import ApprovalState
from store.records import record


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    approval_id: str
    action_id: str
    operation_id: str
    tenant: str
    requester: str
    action_digest: str
    tool_version: str
    policy_version: str
    reason: str
    state: ApprovalState
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", ApprovalState(self.state))


def insert(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Each row gives `ttl` in seconds; the database clock gives the expiry."""
    statement = text(
        """
        INSERT INTO approvals (approval_id, action_id, operation_id, tenant, requester, action_digest, tool_version,
                               policy_version, reason, state, expires_at)
        VALUES (:approval_id, :action_id, :operation_id, :tenant, :requester, :action_digest, :tool_version,
                :policy_version, :reason, 'PENDING', clock_timestamp() + make_interval(secs => :ttl))
        """
    )
    if rows:
        connection.execute(statement, list(rows))


def load(connection: Connection, approval_id: str) -> ApprovalRecord | None:
    statement = text("SELECT * FROM approvals WHERE approval_id = :approval_id")
    row = connection.execute(statement, {"approval_id": approval_id}).mappings().first()
    return record(ApprovalRecord, row) if row else None


def open_of_action(connection: Connection, action_id: str) -> ApprovalRecord | None:
    """The newest approval of the action, whatever its state."""
    statement = text("SELECT * FROM approvals WHERE action_id = :action_id ORDER BY created_at DESC LIMIT 1")
    row = connection.execute(statement, {"action_id": action_id}).mappings().first()
    return record(ApprovalRecord, row) if row else None


def decide(
    connection: Connection, approval_id: str, *, state: ApprovalState, by: str, reason: str
) -> ApprovalRecord | None:
    """PENDING and not expired to APPROVED or DENIED; None when somebody or the clock was first."""
    statement = text(
        """
        UPDATE approvals SET state = :state, decided_by = :by, decision_reason = :reason, decided_at = clock_timestamp()
        WHERE approval_id = :approval_id AND state = 'PENDING' AND expires_at > clock_timestamp() RETURNING *
        """
    )
    values = {"approval_id": approval_id, "state": state, "by": by, "reason": reason}
    row = connection.execute(statement, values).mappings().first()
    return record(ApprovalRecord, row) if row else None


def consume(connection: Connection, action_id: str, *, digest: str, tool_version: str, policy_version: str) -> bool:
    """Use up the approval of exactly this digest, once, in the transaction that starts the action."""
    statement = text(
        """
        UPDATE approvals SET state = 'CONSUMED', consumed_at = clock_timestamp()
        WHERE action_id = :action_id AND state = 'APPROVED' AND expires_at > clock_timestamp()
          AND action_digest = :digest AND tool_version = :tool_version AND policy_version = :policy_version
        """
    )
    values = {
        "action_id": action_id, "digest": digest, "tool_version": tool_version, "policy_version": policy_version,
    }  # fmt: skip
    return connection.execute(statement, values).rowcount == 1


def close(connection: Connection, action_id: str, state: ApprovalState) -> bool:
    """Expire or revoke what is still open."""
    statement = text(
        "UPDATE approvals SET state = :state WHERE action_id = :action_id AND state IN ('PENDING', 'APPROVED')"
    )
    return connection.execute(statement, {"action_id": action_id, "state": state}).rowcount == 1


def expired(connection: Connection, limit: int) -> list[ApprovalRecord]:
    """Open approvals past their time whose action has not started."""
    statement = text(
        "SELECT * FROM approvals WHERE state IN ('PENDING', 'APPROVED') AND expires_at < clock_timestamp() "
        "ORDER BY expires_at LIMIT :limit"
    )
    return [record(ApprovalRecord, row) for row in connection.execute(statement, {"limit": limit}).mappings()]


def of_operation(connection: Connection, operation_id: str) -> list[ApprovalRecord]:
    statement = text("SELECT * FROM approvals WHERE operation_id = :operation_id ORDER BY created_at, approval_id")
    rows = connection.execute(statement, {"operation_id": operation_id}).mappings()
    return [record(ApprovalRecord, row) for row in rows]
