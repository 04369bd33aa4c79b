"""One application per module over real PostgreSQL, the scripted model and the shop."""

from collections.abc import Iterator

import pytest

from examples.scripted_model.process import ScriptedModel
from examples.support import authorization
from examples.support.scenario import seed, shop_process
from orchestrator.app import App
from orchestrator.settings import Settings
from store.migrate import migrate
from tests.audit.bench import Bench


@pytest.fixture(scope="module")
def bench(database_url: str, broker_url: str) -> Iterator[Bench]:
    seed(database_url)
    settings = Settings(database_url=database_url, broker_url=broker_url, modules=("examples.support",))
    with (
        ScriptedModel.start() as model,
        shop_process(database_url, faults=True) as shop,
        pytest.MonkeyPatch.context() as patch,
        App.open(settings) as app,
    ):
        for name, value in {**shop.env, "SUPPORT_MODEL_URL": f"{model.url}/v1"}.items():
            patch.setenv(name, value)
        migrate(app.database)
        app.sync_slots()
        yield Bench(app, model, database_url)
        authorization._client().close()
        authorization._client.cache_clear()
