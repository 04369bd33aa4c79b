"""The whole application in the test's process: only the broker hop is left out, each step is called by the test."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sqlalchemy import text

from examples.scripted_model.process import ScriptedModel
from orchestrator import commands, dispatch, sweeper, turn
from orchestrator.app import App
from orchestrator.views import ActionView, CallView, OperationView
from policy.profile import Budgets, Model, Profile
from tests.executors.downstream import Downstream
from tests.orchestrator import lab

NAMES = count(1)
DONE = {"text": "Done."}


def call(name: str, call_id: str | None = None, /, **arguments: Any) -> dict[str, Any]:
    said = {"name": name, "arguments": arguments}
    return said if call_id is None else said | {"call_id": call_id}


def calls(*proposed: dict[str, Any], **fault: Any) -> dict[str, Any]:
    return {"calls": list(proposed)} | ({"fault": fault} if fault else {})


@dataclass
class Desk:
    app: App
    model: ScriptedModel
    lab: Downstream
    scripts: dict[str, str] = field(default_factory=dict)
    api: str = field(default_factory=lambda: os.environ.get("LAB_API", "openai-responses"))
    stream: bool = field(default_factory=lambda: os.environ.get("LAB_STREAM") == "1")

    def recipe(self, name: str, **changed: Any) -> Model:
        """The model that plays the script of this name, over the desk's wire format."""
        fields = {"api": self.api, "name": name, "base_url": "$LAB_MODEL_URL", "stream": self.stream}
        return Model(**(fields | changed))

    def submit(
        self, *turns: Mapping[str, Any], budgets: Budgets | None = None, scopes: Sequence[str] = (), **changed: Any
    ) -> str:
        """A new operation whose model says `turns`, with a profile of its own."""
        name = f"lab{next(NAMES)}"
        self.model.add({"id": name, "turns": list(turns)})
        fields: dict[str, Any] = {
            "name": name, "instructions": "Help.", "tools": tuple(spec.name for spec in lab.TOOLS),
            "model": self.recipe(name),
            "budgets": budgets or Budgets(),
        }  # fmt: skip
        self.app.registry.add_profile(Profile(**(fields | changed)))
        request = commands.submission(profile=name, input="Please.", tenant="acme", subject="alice", scopes=scopes)
        operation = commands.submit(self.app, request).operation_id
        self.scripts[operation] = name
        return operation

    def advance(self, operation: str) -> OperationView:
        assert turn.advance(self.app, operation), "the operation was not due"
        return self.view(operation)

    def step(self, queue: str) -> None:
        assert dispatch.run_one(self.app, queue, None), f"nothing is due in {queue}"

    def idle(self, queue: str) -> bool:
        return not dispatch.run_one(self.app, queue, None)

    def run(self, operation: str, rounds: int = 60) -> OperationView:
        """Everything that is due, and what will be, without waiting for the time to come."""
        for _ in range(rounds):
            self.hurry(operation)
            worked = turn.advance(self.app, operation)
            worked = dispatch.run_one(self.app, "reads", None) or worked
            worked = dispatch.run_one(self.app, "writes", None) or worked
            if not worked:
                return self.view(operation)
        raise AssertionError(f"no end after {rounds} rounds: {self.view(operation).state}")

    def hurry(self, operation: str) -> None:
        """Let the time of every timer of the operation come."""
        for table in ("operations", "calls", "actions"):
            self.sql(
                f"UPDATE {table} SET wake_at = clock_timestamp() WHERE operation_id = :o AND wake_at IS NOT NULL",
                o=operation,
            )
        # Two seconds since the last send are conclusive for the shop of the support example.
        self.sql(
            "UPDATE attempts SET started_at = started_at - interval '2 seconds' WHERE operation_id = :o", o=operation
        )

    def sweep(self) -> dict[str, int]:
        return sweeper.run_once(self.app)

    def expire_leases(self, operation: str) -> None:
        """The worker that holds them is dead, and time has passed."""
        for table in ("operations", "calls", "actions"):
            self.sql(
                f"UPDATE {table} SET lease_until = clock_timestamp() - interval '1 second', "
                "wake_at = CASE WHEN wake_at IS NOT NULL THEN clock_timestamp() END "
                "WHERE operation_id = :o AND lease_until IS NOT NULL", o=operation,
            )  # fmt: skip

    def view(self, operation: str) -> OperationView:
        return commands.inspect(self.app, operation)

    def actions(self, operation: str) -> list[ActionView]:
        return self.view(operation).actions

    def action(self, operation: str) -> ActionView:
        [only] = self.actions(operation)
        return only

    def call(self, operation: str) -> CallView:
        [only] = self.view(operation).calls
        return only

    def approval(self, operation: str) -> str:
        [only] = self.view(operation).open_approvals
        return only.approval_id

    def requests(self, operation: str) -> list[dict[str, Any]]:
        """Bodies of the model requests of this operation, oldest first."""
        return [request["body"] for request in self.model.requests(self.scripts[operation])]

    def audit(self, operation: str, kind: str) -> list[dict[str, Any]]:
        rows = self.sql(
            "SELECT kind, subject_id, actor, body FROM audit WHERE operation_id = :o ORDER BY audit_id", o=operation
        )
        return [row for row in rows if row["kind"] == kind]

    def sql(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        with self.app.database.autocommit() as connection:
            result = connection.execute(text(statement), values)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def tamper(self, table: str, statement: str, **values: Any) -> None:
        """Change what triggers protect, as somebody with the database's own password could."""
        with self.app.database.transaction() as connection:
            connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
            connection.execute(text(statement), values)
            connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
