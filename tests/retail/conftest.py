"""The shop on a real database, seeded once with the shared workload."""

from collections.abc import Iterator

import pytest

from examples.retail.storage import Store
from tests.replay.workload import Workload
from tests.retail.desk import Desk
from tests.shared import shared


@pytest.fixture(scope="session")
def workload() -> Workload:
    return Workload.load(shared("workloads/tau_retail"))


@pytest.fixture
def store(database_url: str, workload: Workload) -> Iterator[Store]:
    store = Store(database_url)
    assert store.seed(workload.state()) == workload.base_digest
    yield store
    store.close()


@pytest.fixture
def desk(store: Store) -> Iterator[Desk]:
    with Desk(store) as desk:
        yield desk
