"""The harness of tests/orchestrator, the support example, and the parcel scenario with its own downstream."""

from collections.abc import Iterator

import pytest

from examples.scripted_model.process import ScriptedModel
from executors.registry import Registry
from orchestrator.app import App
from orchestrator.settings import Settings
from tests.acceptance import parcels as tools
from tests.acceptance.carrier import Carrier, carrier
from tests.acceptance.desks import Parcels
from tests.executors.downstream import Downstream
from tests.orchestrator.conftest import desk, lab_server, migrated, model, settings  # noqa: F401 - fixtures
from tests.orchestrator.test_support import desk as support  # noqa: F401 - a fixture
from tests.orchestrator.test_support import shop  # noqa: F401 - a fixture


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
