"""The airline on a real database, seeded once with the shared workload."""

from collections.abc import Iterator

import pytest

from examples.airline.tools import AIRLINE
from examples.worlds.storage import Store
from tests.replay.desk import Desk
from tests.replay.workload import Workload
from tests.shared import shared


@pytest.fixture(scope="session")
def workload() -> Workload:
    return Workload.load(shared("workloads/tau_airline"))


@pytest.fixture
def store(database_url: str, workload: Workload) -> Iterator[Store]:
    store = AIRLINE.open(database_url)
    assert store.seed(workload.state()) == workload.base_digest
    yield store
    store.close()


@pytest.fixture
def desk(store: Store) -> Iterator[Desk]:
    with Desk(AIRLINE, store) as desk:
        yield desk
