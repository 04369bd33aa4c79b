"""One world per module; see `world`."""

from collections.abc import Iterator

import pytest

from orchestrator.app import App
from tests.chaos.world import World


@pytest.fixture(scope="module")
def app(here: World) -> Iterator[App]:
    """The caller's side, in this process, where no failpoint is."""
    with App.open(here.settings) as opened:
        yield opened
