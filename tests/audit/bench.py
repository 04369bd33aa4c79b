"""The support scenario in the test's process: real PostgreSQL, model server and shop, without the broker's hop."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event, text

from examples.scripted_model.process import ScriptedModel
from examples.support.scenario import SCOPES, SUBJECT, seed
from examples.support.script import script
from orchestrator import commands, dispatch, turn
from orchestrator.app import App
from orchestrator.views import OperationView


@dataclass
class Bench:
    app: App
    model: ScriptedModel
    database_url: str
    made: list[str] = field(default_factory=list)

    def submit(self, tenant: str, turns: list[dict[str, Any]] | None = None) -> str:
        """One refund of an order of its own; `turns` instead of the usual script."""
        order = f"ORD-{100_000 + 10 * len(self.made):06}"
        seed(self.database_url, tenant=tenant, order_id=order)
        played = script(order) | {"id": order}
        self.model.add(played | {"turns": turns(order) if callable(turns) else turns} if turns else played)
        request = commands.submission(
            profile="support", input=f"[script:{order}] Please refund {order}.", tenant=tenant, subject=SUBJECT,
            scopes=SCOPES,
        )  # fmt: skip
        self.made.append(commands.submit(self.app, request).operation_id)
        return self.made[-1]

    def step(self) -> bool:
        """Whatever is due next."""
        return (
            turn.advance(self.app, None)
            or dispatch.run_one(self.app, "reads", None)
            or dispatch.run_one(self.app, "writes", None)
        )

    def settle(self) -> None:
        while self.step():
            pass

    def decide(self, operation_id: str, *, approve: bool = True) -> None:
        for asked in self.view(operation_id).open_approvals:
            decide = commands.approve if approve else commands.deny
            decide(self.app, asked.approval_id, by="ops")

    def play(self, tenant: str) -> str:
        """To its end, with the refund approved."""
        operation_id = self.submit(tenant)
        self.settle()
        self.decide(operation_id)
        self.settle()
        return operation_id

    def view(self, operation_id: str) -> OperationView:
        return commands.inspect(self.app, operation_id)

    def sql(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        with self.app.database.autocommit() as connection:
            result = connection.execute(text(statement), values)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Statements by verb and table, and transactions, while the block runs."""
        seen: Counter[str] = Counter()

        def statement(_c: Any, _cur: Any, sql: str, *_: Any) -> None:
            seen["statements"] += 1
            if "INTO audit" in sql:
                seen["audit"] += 1

        def commit(_c: Any) -> None:
            seen["commits"] += 1

        event.listen(self.app.database.engine, "before_cursor_execute", statement)
        event.listen(self.app.database.engine, "commit", commit)
        try:
            yield seen
        finally:
            event.remove(self.app.database.engine, "before_cursor_execute", statement)
            event.remove(self.app.database.engine, "commit", commit)
