"""Approvals: one decision on one exact action digest, by one or several people, consumed by compare-and-set."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from orchestrator.domain import digests
from orchestrator.domain.model import ApprovalState, DecisionKind
from store import tables, versions
from store.records import readable, record


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
    resource_version: str | None
    approvers: int
    separate: bool
    nonce: str
    bound_sha256: str
    reason: str
    state: ApprovalState
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", ApprovalState(self.state))

    def binding(self, action_digest: str) -> str:
        """What a decision on this row would be bound to, computed anew."""
        return digests.approval_binding(
            **{name: getattr(self, name) for name in _BOUND}, action_digest=action_digest
        )  # fmt: skip


_BOUND = (
    "approval_id", "action_id", "operation_id", "tenant", "requester", "tool_version", "policy_version",
    "resource_version", "approvers", "separate", "nonce", "expires_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """What one person said. `bound_sha256` is the approval's, as it was then."""

    approval_id: str
    by: str
    decision: DecisionKind
    reason: str
    bound_sha256: str
    at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "decision", DecisionKind(self.decision))


def insert(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(tables.approvals.insert(), [{**row, "state": ApprovalState.PENDING} for row in rows])


def load(connection: Connection, approval_id: str) -> ApprovalRecord | None:
    statement = text("SELECT * FROM approvals WHERE approval_id = :approval_id")
    row = connection.execute(statement, {"approval_id": approval_id}).mappings().first()
    return record(ApprovalRecord, row) if row else None


def of_action(connection: Connection, action_id: str) -> ApprovalRecord | None:
    """The newest approval of the action, whatever its state."""
    statement = text("SELECT * FROM approvals WHERE action_id = :action_id ORDER BY created_at DESC LIMIT 1")
    row = connection.execute(statement, {"action_id": action_id}).mappings().first()
    return record(ApprovalRecord, row) if row else None


# --- decisions -----------------------------------------------------------------------------------------------------

_VOTE = text(
    "INSERT INTO decisions (approval_id, by, decision, reason, bound_sha256) "
    "VALUES (:approval_id, :by, :decision, :reason, :bound_sha256) ON CONFLICT (approval_id, by) DO NOTHING"
)


def vote(connection: Connection, approval: ApprovalRecord, *, decision: DecisionKind, by: str, reason: str) -> bool:
    """Keep what one person said; False: that person has decided already. The caller holds the operation's lock."""
    values = {
        "approval_id": approval.approval_id, "by": by, "decision": decision, "reason": reason,
        "bound_sha256": approval.bound_sha256,
    }  # fmt: skip
    return connection.execute(_VOTE, values).rowcount == 1


def votes(connection: Connection, approval_id: str) -> list[DecisionRecord]:
    statement = text("SELECT * FROM decisions WHERE approval_id = :approval_id ORDER BY at, by")
    rows = connection.execute(statement, {"approval_id": approval_id}).mappings()
    return [record(DecisionRecord, row) for row in rows]


def decide(
    connection: Connection, approval_id: str, *, state: ApprovalState, by: str, reason: str
) -> ApprovalRecord | None:
    """PENDING and not expired to APPROVED, DENIED or REVOKED; None when somebody or the clock was first."""
    statement = text(
        """
        UPDATE approvals SET state = :state, decided_by = :by, decision_reason = :reason, decided_at = clock_timestamp()
        WHERE approval_id = :approval_id AND state = 'PENDING' AND expires_at > clock_timestamp() RETURNING *
        """
    )
    values = {"approval_id": approval_id, "state": state, "by": by, "reason": reason}
    row = connection.execute(statement, values).mappings().first()
    return record(ApprovalRecord, row) if row else None


def consume(connection: Connection, approval: ApprovalRecord, *, digest: str) -> bool:
    """Use up the approval of exactly this digest, once, in the transaction that starts the action."""
    statement = text(
        """
        UPDATE approvals SET state = 'CONSUMED', consumed_at = clock_timestamp()
        WHERE approval_id = :approval_id AND action_id = :action_id AND nonce = :nonce AND state = 'APPROVED'
          AND expires_at > clock_timestamp() AND action_digest = :digest
        """
    )
    values = {
        "approval_id": approval.approval_id, "action_id": approval.action_id, "nonce": approval.nonce,
        "digest": digest,
    }  # fmt: skip
    return connection.execute(statement, values).rowcount == 1


def close(connection: Connection, action_id: str, state: ApprovalState) -> bool:
    """Expire or revoke what is still open."""
    statement = text(
        "UPDATE approvals SET state = :state WHERE action_id = :action_id AND state IN ('PENDING', 'APPROVED')"
    )
    return connection.execute(statement, {"action_id": action_id, "state": state}).rowcount == 1


# --- reading -------------------------------------------------------------------------------------------------------


def expired(connection: Connection, limit: int) -> list[ApprovalRecord]:
    """Open approvals past their time whose action has not started."""
    statement = text(
        "SELECT c.* FROM approvals c WHERE c.state IN ('PENDING', 'APPROVED') AND c.expires_at < clock_timestamp() "
        f"AND {versions.OF_C} ORDER BY c.expires_at LIMIT :limit"
    )
    return readable(ApprovalRecord, connection.execute(statement, {"limit": limit}).mappings())


def of_operation(connection: Connection, operation_id: str) -> list[ApprovalRecord]:
    statement = text(
        "SELECT p.* FROM approvals p JOIN actions a USING (action_id) WHERE p.operation_id = :operation_id "
        "ORDER BY p.created_at, a.turn, a.position"
    )
    rows = connection.execute(statement, {"operation_id": operation_id}).mappings()
    return [record(ApprovalRecord, row) for row in rows]


def votes_of_operation(connection: Connection, operation_id: str) -> list[DecisionRecord]:
    statement = text(
        "SELECT d.* FROM decisions d JOIN approvals a USING (approval_id) WHERE a.operation_id = :operation_id "
        "ORDER BY d.at, d.by"
    )
    rows = connection.execute(statement, {"operation_id": operation_id}).mappings()
    return [record(DecisionRecord, row) for row in rows]
