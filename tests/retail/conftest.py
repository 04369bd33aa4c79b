"""The shop on a real database, seeded once with the shared workload."""

from collections.abc import Iterator

import pytest

from examples.retail.tools import RETAIL
from examples.worlds.storage import Store
from tests.replay.desk import Desk
from tests.replay.workload import Workload
from tests.shared import shared


@pytest.fixture(scope="session")
def workload() -> Workload:
    return Workload.load(shared("workloads/tau_retail"))


@pytest.fixture
def store(database_url: str, workload: Workload) -> Iterator[Store]:
    store = RETAIL.open(database_url)
    assert store.seed(workload.state()) == workload.base_digest
    yield store
    store.close()


@pytest.fixture
def desk(store: Store) -> Iterator[Desk]:
    with Desk(RETAIL, store) as desk:
        yield desk
