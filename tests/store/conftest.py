"""A migrated PostgreSQL database per module, and rows in it."""

from collections.abc import Iterator

import pytest

from orchestrator.settings import sqlalchemy_url
from store.db import Database
from store.migrate import migrate
from tests.store.rows import RACERS, Rows


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    opened = Database(sqlalchemy_url(database_url), pool_size=RACERS + 5)
    migrate(opened)
    yield opened
    opened.close()


@pytest.fixture
def rows(database: Database) -> Rows:
    """Nothing that an earlier test left may be due."""
    found = Rows(database)
    found.sql("UPDATE operations SET wake_at = NULL")
    found.sql("UPDATE calls SET wake_at = NULL WHERE wake_at IS NOT NULL")
    found.sql("UPDATE actions SET wake_at = NULL WHERE wake_at IS NOT NULL")
    return found
