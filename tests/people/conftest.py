"""The orchestrator tests' application, with a tool that reads what people outside wrote."""

import pytest

from tests.orchestrator.conftest import desk, lab_server, migrated, model, settings  # noqa: F401 - fixtures
from tests.orchestrator.desk import Desk
from tests.people import scene


@pytest.fixture
def hall(desk: Desk) -> Desk:  # noqa: F811
    desk.app.registry.add(*scene.TOOLS)
    return desk
