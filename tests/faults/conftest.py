"""The harness of tests/orchestrator, with the tools of this folder beside its own."""

import pytest

from tests.faults import tools
from tests.orchestrator.conftest import desk, lab_server, migrated, model, settings  # noqa: F401 - fixtures
from tests.orchestrator.desk import Desk


@pytest.fixture
def bench(desk: Desk) -> Desk:  # noqa: F811
    desk.app.registry.add(*tools.TOOLS)
    return desk
