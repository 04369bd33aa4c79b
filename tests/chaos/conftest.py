"""Fixtures: the caller's side of a world (`world`), and the orchestrator tests' application behind a fault proxy."""

from collections.abc import Callable, Iterator

import pytest

from examples.scripted_model.process import ScriptedModel
from executors.registry import Registry
from orchestrator.app import App
from orchestrator.settings import Settings
from store.db import Database
from store.migrate import migrate
from tests.chaos.lost import LOST, STOPPED
from tests.chaos.proxy import Proxy, target, through
from tests.chaos.world import World
from tests.executors.downstream import Downstream, downstream
from tests.orchestrator import lab
from tests.orchestrator.desk import Desk


@pytest.fixture(scope="module")
def app(here: World) -> Iterator[App]:
    """The caller's side, in this process, where no failpoint is."""
    with App.open(here.settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def migrated(database_url: str) -> None:
    database = Database(database_url, 2)
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
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(target(database_url), seed=1, postgres=True) as running:
        yield running


@pytest.fixture
def desk(
    migrated: None, proxy: Proxy, database_url: str, broker_url: str, model: ScriptedModel, lab_server: Downstream,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:  # fmt: skip
    """The application behind the proxy."""
    monkeypatch.setenv("LAB_URL", lab_server.url)
    monkeypatch.setenv("LAB_MODEL_URL", f"{model.url}/v1")
    monkeypatch.setenv("LAB_COMPLETION_KEY", "k" * 40)
    registry = Registry()
    registry.add(*lab.TOOLS)
    url = through(database_url, proxy.address)
    settings = Settings(
        database_url=url, broker_url=broker_url, lease_seconds=60.0, hint_limit=100_000,
        completion_key_env="LAB_COMPLETION_KEY",
    )  # fmt: skip
    app = App(settings, registry)
    app.sync_slots()
    opened = Desk(app, model, lab_server)
    for table in ("operations", "calls", "actions"):  # what earlier tests left is not due in this one
        opened.sql(f"UPDATE {table} SET wake_at = NULL WHERE wake_at IS NOT NULL")
    yield opened
    app.close()


@pytest.fixture(params=[LOST, STOPPED], ids=["durable", "not durable"])
def lost_once(request: pytest.FixtureRequest, proxy: Proxy) -> Callable[[], None]:
    """Lose the next COMMIT: this answer, or this request."""
    [kind] = request.param

    def lose() -> None:
        proxy.control(faults={kind: 1.0}, times=1)

    return lose
