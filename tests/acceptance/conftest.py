"""The harness of tests/orchestrator, the support example, and the parcel scenario with its own downstream.

Every test whose application asks a model runs on every provider, some streamed and some not: a test without cases of
its own once on each, the cases of another one share the providers among them. `LAB_API=all` runs each case on each
provider in both ways; with the name of one (`LAB_API=gemini-interactions`), on that one in both ways.
"""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.registry import ADAPTERS
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

APIS = tuple(ADAPTERS)
WANTED = os.environ.get("LAB_API")  # read before any test changes it


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not {"desk", "parcels", "support"}.isdisjoint(metafunc.fixturenames):
        if WANTED:
            modes = [(api, stream) for api in APIS for stream in (False, True) if WANTED in ("all", api)]
            assert modes, f"LAB_API={WANTED} is no provider"
        else:
            first = zlib.crc32(metafunc.function.__name__.encode())  # half of the tests begin with a stream
            modes = [(api, bool((first + place) % 2)) for place, api in enumerate(APIS)]
        metafunc.parametrize("provider", modes, ids=[_name(*mode) for mode in modes], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves each test every case and every provider, but not every pair of them."""
    if WANTED:
        return
    found = {item: _case_and_provider(item) for item in items}
    cases: dict[str, dict[str, int]] = {}  # of each test: their numbers
    for item, (case, _) in found.items():
        known = cases.setdefault(_test(item), {})
        known.setdefault(case, len(known))
    items[:] = [item for item, pair in found.items() if _meet(cases[_test(item)], *pair)]


def _test(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def _case_and_provider(item: pytest.Item) -> tuple[str, str | None]:
    """What the test's own parameters are called, and its provider."""
    here = isinstance(item, pytest.Function) and Path(__file__).parent in item.path.parents
    params: dict[str, Any] = item.callspec.params if here and hasattr(item, "callspec") else {}
    if "provider" not in params:
        return item.nodeid, None
    api, stream = params["provider"]
    return item.nodeid.replace(_name(api, stream), "", 1), api


def _name(api: str, stream: bool) -> str:
    return f"{api}-stream" if stream else api


def _meet(cases: dict[str, int], case: str, api: str | None) -> bool:
    shared = min(len(cases), len(APIS))
    return api is None or cases[case] % shared == APIS.index(api) % shared


@pytest.fixture(autouse=True)
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire format of every model of this test."""
    api, stream = getattr(request, "param", (APIS[0], False))
    for who in ("LAB", "SUPPORT"):
        monkeypatch.setenv(f"{who}_API", api)
        monkeypatch.setenv(f"{who}_STREAM", "1" if stream else "0")


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
