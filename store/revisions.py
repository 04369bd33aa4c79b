"""Which migrations a database has, and whether this release can work with it.

Migrations are additive: a release works on every newer schema, and on none that lacks a migration of its own. Their
numbers, at the beginning of their file names, are in order.
"""

from enum import Enum, auto
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, text

from orchestrator.domain.errors import ConfigError
from store.db import Database

MIGRATIONS = Path(__file__).parent / "migrations"


class Schema(Enum):
    """How the database's schema stands to this release's."""

    MISSING = auto()  # no migration has run
    OLDER = auto()
    OURS = auto()
    NEWER = auto()  # of a release after this one, which left everything in place that we need


@cache
def known() -> tuple[str, ...]:
    """The numbers of this release's migrations, oldest first."""
    return tuple(sorted(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9][0-9][0-9][0-9]_*.py")))


def schema(connection: Connection) -> Schema:
    if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar() is None:
        return Schema.MISSING
    at = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if at is None:
        return Schema.MISSING
    if at not in known():
        return Schema.NEWER
    return Schema.OURS if at == known()[-1] else Schema.OLDER


def check_migrated(database: Database) -> None:
    """Raises ConfigError NOT_MIGRATED where a migration of this release is missing."""
    with database.autocommit() as connection:
        found = schema(connection)
    if found in (Schema.MISSING, Schema.OLDER):
        raise ConfigError(
            "NOT_MIGRATED", "the database has not this version's schema; run `python -m store.migrate` of this version"
        )
