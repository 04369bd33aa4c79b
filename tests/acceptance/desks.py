"""Desks of the acceptance tests: what a test does with an operation, beyond `tests/orchestrator/desk.py`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from orchestrator import commands
from orchestrator.app import App
from orchestrator.views import OperationView
from policy.profile import Profile
from tests.acceptance import parcels as tools
from tests.acceptance.carrier import Carrier
from tests.acceptance.sent import Result, Sent
from tests.orchestrator.desk import Desk

_NUMBERS = count(1)


def long_ago(desk: Desk, operation: str) -> None:
    """What was sent so far was sent long enough ago for "no trace" to mean something."""
    for column in ("started_at", "ended_at"):
        desk.sql(
            f"UPDATE attempts SET {column} = {column} - interval '5 minutes' WHERE {column} IS NOT NULL "
            "AND (call_key IN (SELECT call_key FROM calls WHERE operation_id = :o) "
            "OR action_id IN (SELECT action_id FROM actions WHERE operation_id = :o))", o=operation,
        )  # fmt: skip


def sent(desk: Desk, operation: str) -> list[Sent]:
    """The requests of this operation, oldest first."""
    return [Sent(desk.api, body) for body in desk.requests(operation)]


@contextmanager
def restarted(desk: Desk) -> Iterator[App]:
    """Another process takes over: nothing but the database is left of the first."""
    first, desk.app = desk.app, App(desk.app.settings, desk.app.registry)
    try:
        yield desk.app
    finally:
        desk.app.close()
        desk.app = first


@dataclass
class Parcels(Desk):
    carrier: Carrier = field(kw_only=True)

    def begin(
        self, *turns: Mapping[str, Any], tenant: str = "acme", subject: str = "alice", scopes: Any = tools.SCOPES,
        said: str = "Where is my parcel, and change the delivery address if it hasn't shipped.", **changed: Any,
    ) -> str:  # fmt: skip
        """A new operation whose model says `turns`."""
        name = f"parcels{next(_NUMBERS)}"
        self.model.add({"id": name, "turns": list(turns)})
        fields: dict[str, Any] = {
            "name": name, "instructions": "Help with parcels.", "tools": tuple(spec.name for spec in tools.TOOLS),
            "model": self.recipe(name, parallel_calls=False),
        }  # fmt: skip
        self.app.registry.add_profile(Profile(**(fields | changed)))
        request = commands.submission(profile=name, input=said, tenant=tenant, subject=subject, scopes=scopes)
        operation = commands.submit(self.app, request).operation_id
        self.scripts[operation] = name
        return operation

    def approved(self, operation: str) -> OperationView:
        """Run; a person approves whatever is asked."""
        view = self.run(operation)
        while view.state == "WAITING_APPROVAL":
            commands.approve(self.app, self.approval(operation), by="boss")
            view = self.run(operation)
        return view

    def parcel(self, **fields: str) -> str:
        return self.carrier.parcel(f"PCL-{next(_NUMBERS):06}", **fields)

    def told(self, operation: str, turn: int) -> list[Result]:
        """The results in the request of this turn (from 0)."""
        return sent(self, operation)[turn].results()
