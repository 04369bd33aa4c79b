"""The harness of tests/orchestrator, the support example, and the parcel scenario with its own downstream."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from examples.scripted_model.process import ScriptedModel
from executors.registry import Registry
from orchestrator import commands
from orchestrator.app import App
from orchestrator.settings import Settings
from orchestrator.views import OperationView
from policy.profile import Model, Profile
from tests.acceptance import parcels as tools
from tests.acceptance.carrier import Carrier, carrier
from tests.executors.downstream import Downstream
from tests.orchestrator.conftest import desk, lab_server, migrated, model, settings  # noqa: F401 - fixtures
from tests.orchestrator.desk import Desk
from tests.orchestrator.test_support import desk as support  # noqa: F401 - a fixture
from tests.orchestrator.test_support import shop  # noqa: F401 - a fixture

_NUMBERS = count(1)


def long_ago(desk: Desk, operation: str) -> None:
    """What was sent so far was sent long enough ago for "no trace" to mean something."""
    for column in ("started_at", "ended_at"):
        desk.sql(
            f"UPDATE attempts SET {column} = {column} - interval '5 minutes' WHERE {column} IS NOT NULL "
            "AND (call_key IN (SELECT call_key FROM calls WHERE operation_id = :o) "
            "OR action_id IN (SELECT action_id FROM actions WHERE operation_id = :o))", o=operation,
        )  # fmt: skip


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
        """A new operation whose model says `turns` over Chat Completions."""
        name = f"parcels{next(_NUMBERS)}"
        self.model.add({"id": name, "turns": list(turns)})
        fields: dict[str, Any] = {
            "name": name, "instructions": "Help with parcels.", "tools": tuple(spec.name for spec in tools.TOOLS),
            "model": Model(api="openai-chat", name=name, base_url="$LAB_MODEL_URL", parallel_calls=False),
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

    def told(self, operation: str, turn: int) -> list[dict[str, Any]]:
        """The tool messages of the request of this turn (from 0)."""
        return [m for m in self.requests(operation)[turn]["messages"] if m["role"] == "tool"]


@pytest.fixture(scope="module")
def carrier_server(database_url: str) -> Iterator[Carrier]:
    with carrier(database_url) as running:
        yield running


@pytest.fixture
def parcels(
    settings: Settings, migrated: None, model: ScriptedModel, lab_server: Downstream,  # noqa: F811 - fixtures
    carrier_server: Carrier, monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Parcels]:  # fmt: skip
    monkeypatch.setenv("CARRIER_URL", carrier_server.url)
    monkeypatch.setenv("LAB_MODEL_URL", f"{model.url}/v1")
    registry = Registry()
    registry.add(*tools.TOOLS)
    app = App(settings, registry)
    app.sync_slots()
    opened = Parcels(app, model, lab_server, carrier=carrier_server)
    for table in ("operations", "calls", "actions"):  # what earlier tests left is not due in this one
        opened.sql(f"UPDATE {table} SET wake_at = NULL WHERE wake_at IS NOT NULL")
    yield opened
    carrier_server.faults.clear()
    app.close()
