"""One application per module over real PostgreSQL, a real model server and a real downstream."""

from collections.abc import Iterator

import pytest

from examples.scripted_model.process import ScriptedModel
from executors.registry import Registry
from orchestrator.app import App
from orchestrator.settings import Settings
from store.db import Database
from store.migrate import migrate
from tests.executors.downstream import Downstream, downstream
from tests.orchestrator import lab
from tests.orchestrator.desk import Desk


@pytest.fixture(scope="module")
def settings(database_url: str, broker_url: str) -> Settings:
    return Settings(database_url=database_url, broker_url=broker_url, lease_seconds=60.0)


@pytest.fixture(scope="module")
def migrated(settings: Settings) -> None:
    database = Database(settings.require_database(), 2)
    migrate(database)
    database.close()


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as running:
        yield running


@pytest.fixture
def lab_server() -> Iterator[Downstream]:
    with downstream() as running:
        yield running


@pytest.fixture
def desk(
    settings: Settings, migrated: None, model: ScriptedModel, lab_server: Downstream, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    monkeypatch.setenv("LAB_URL", lab_server.url)
    monkeypatch.setenv("LAB_MODEL_URL", f"{model.url}/v1")
    for name, value in {"version": "v1", "allowed": True}.items():
        monkeypatch.setitem(lab.FACTS, name, value)
    registry = Registry()
    registry.add(*lab.TOOLS)
    app = App(settings, registry)
    app.sync_slots()
    opened = Desk(app, model, lab_server)
    for table in ("operations", "calls", "actions"):  # what earlier tests left is not due in this one
        opened.sql(f"UPDATE {table} SET wake_at = NULL WHERE wake_at IS NOT NULL")
    yield opened
    app.close()
