"""What a run left behind, read once: database, the ledger's file, the client's log. For `verify`; no code of ours."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

Row = dict[str, Any]
CLOCKS = 0.05  # seconds by which two clock readings of one machine may disagree


class Evidence:
    """Everything that was left behind. `fired` and `seen` are files too: who was stopped where, who was shown what."""

    def __init__(
        self, database: str, ledger: Path, accepted: Path, *, fired: Path | None = None, seen: Path | None = None
    ) -> None:
        # First the files: whatever they tell of was in the database before.
        self.ledger = lines(ledger)
        self.accepted = lines(accepted)
        self.seen = lines(seen) if seen else []
        self.fired = [line.split() for line in fired.read_text().splitlines()] if fired and fired.exists() else []
        with psycopg.connect(database, row_factory=dict_row) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

            def rows(statement: Any) -> list[Row]:
                return connection.execute(statement).fetchall()

            self.operations = {row["operation_id"]: row for row in rows("SELECT * FROM operations")}
            self.requests = dict(tuple(row.values()) for row in rows(_REQUESTS))
            self.turns = rows("SELECT * FROM turns ORDER BY operation_id, turn, ask")
            self.actions = {row["action_id"]: row for row in rows("SELECT * FROM actions")}
            self.calls = {row["call_key"]: row for row in rows("SELECT * FROM calls")}
            self.attempts = rows("SELECT * FROM attempts ORDER BY number")
            self.approvals = rows("SELECT * FROM approvals")
            self.decisions = rows("SELECT * FROM decisions")
            self.questions = rows("SELECT * FROM questions")
            self.audit = rows("SELECT * FROM audit ORDER BY operation_id, seq")
            self.slots = rows("SELECT *, lease_until > clock_timestamp() AS held FROM slots")
        self.effects = [line for line in self.ledger if line["event"] == "effect"]
        self.arrived = [line for line in self.ledger if line["event"] == "arrived"]
        self.by_key = Counter(line["key"] for line in self.effects)
        self.tries = Counter(line["attempt"] for line in self.arrived)
        self.action_of = {row["idempotency_key"]: row for row in self.actions.values()}


_REQUESTS = "SELECT operation_id, body ->> 'text' FROM items WHERE seq = 0"


def lines(path: Path) -> list[Row]:
    """A line that its writer left half-written when it was killed was never acknowledged."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def violation(invariant: str, what: str, **details: Any) -> Row:
    return {"invariant": invariant, "what": what, **details}
