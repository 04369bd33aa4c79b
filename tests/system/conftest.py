"""One running scene per module: starting the processes takes longer than most of what is done with them."""

from collections.abc import Iterator

import pytest

from embedded.servers import Servers
from tests.system.scene import Scene, scene


@pytest.fixture(scope="module")
def played(servers: Servers, database_url: str, broker_url: str) -> Iterator[Scene]:
    with scene(servers, database_url, broker_url) as running:
        yield running
