"""Questions of the model to the caller, and the answers. Callers own the transaction and hold the operation's lock."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from orchestrator.domain.model import QuestionState
from store import tables, versions
from store.records import CallRecord, readable, record


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    question_id: str
    operation_id: str
    tenant: str
    call_key: str
    text: str
    choices: list[str] | None
    answer_schema: dict[str, Any] | None
    state: QuestionState
    created_at: datetime
    expires_at: datetime
    answered_at: datetime | None
    answered_by: str | None
    answer: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", QuestionState(self.state))


def insert(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(tables.questions.insert(), [{**row, "state": QuestionState.PENDING} for row in rows])


def load(connection: Connection, question_id: str) -> QuestionRecord | None:
    statement = text("SELECT * FROM questions WHERE question_id = :question_id")
    row = connection.execute(statement, {"question_id": question_id}).mappings().first()
    return record(QuestionRecord, row) if row else None


def answer(connection: Connection, question_id: str, *, answer: Any, by: str) -> bool:
    """PENDING and not expired to ANSWERED; False when somebody or the clock was first."""
    statement = text(
        "UPDATE questions SET state = 'ANSWERED', answer = CAST(:answer AS jsonb), answered_by = :by, "
        "answered_at = clock_timestamp() "
        "WHERE question_id = :question_id AND state = 'PENDING' AND expires_at > clock_timestamp()"
    )
    values = {"question_id": question_id, "answer": json.dumps(answer), "by": by}
    return connection.execute(statement, values).rowcount == 1


def call_of(connection: Connection, question: QuestionRecord) -> CallRecord:
    statement = text("SELECT * FROM calls WHERE call_key = :call_key")
    return record(CallRecord, connection.execute(statement, {"call_key": question.call_key}).mappings().one())


def close(connection: Connection, operation_id: str, state: QuestionState) -> list[CallRecord]:
    """Revoke or expire what is still open; the calls that waited."""
    statement = text(
        """
        WITH closed AS (
            UPDATE questions SET state = :state WHERE operation_id = :operation_id AND state = 'PENDING'
            RETURNING call_key)
        SELECT c.* FROM calls c JOIN closed USING (call_key) WHERE c.state = 'WAITING' ORDER BY c.turn, c.position
        """
    )
    rows = connection.execute(statement, {"operation_id": operation_id, "state": state}).mappings()
    return [record(CallRecord, row) for row in rows]


def expire(connection: Connection, question_id: str) -> CallRecord | None:
    """PENDING and past its time to EXPIRED; the call that waited, or None when somebody was first."""
    statement = text(
        """
        WITH closed AS (
            UPDATE questions SET state = 'EXPIRED'
            WHERE question_id = :question_id AND state = 'PENDING' AND expires_at <= clock_timestamp()
            RETURNING call_key)
        SELECT c.* FROM calls c JOIN closed USING (call_key)
        """
    )
    row = connection.execute(statement, {"question_id": question_id}).mappings().first()
    return record(CallRecord, row) if row else None


def expired(connection: Connection, limit: int) -> list[QuestionRecord]:
    """Open questions past their time."""
    statement = text(
        "SELECT c.* FROM questions c WHERE c.state = 'PENDING' AND c.expires_at < clock_timestamp() "
        f"AND {versions.OF_C} ORDER BY c.expires_at LIMIT :limit"
    )
    return readable(QuestionRecord, connection.execute(statement, {"limit": limit}).mappings())


def of_operation(connection: Connection, operation_id: str) -> list[QuestionRecord]:
    statement = text("SELECT * FROM questions WHERE operation_id = :operation_id ORDER BY created_at, question_id")
    rows = connection.execute(statement, {"operation_id": operation_id}).mappings()
    return [record(QuestionRecord, row) for row in rows]
