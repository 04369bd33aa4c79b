"""The harness of tests/orchestrator, with the tools of this folder beside its own."""

import pytest

from tests.orchestrator.conftest import desk, lab_server, migrated, model, settings  # noqa: F401 - fixtures
from tests.orchestrator.desk import Desk
from tests.recovery import cursed


@pytest.fixture
def bench(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:  # noqa: F811
    desk.app.registry.add(*cursed.TOOLS)
    monkeypatch.setattr(cursed, "CURSES", set())
    return desk
