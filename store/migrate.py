"""Bring the database to this version's schema: `python -m store.migrate`. Safe to run from many processes at once."""

import sys
import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from orchestrator.domain.errors import TurnqueueError
from orchestrator.failpoints import failpoint
from orchestrator.settings import Settings
from store.db import Database, try_lock

_LOCK = 0x7571_6D69  # "tqmi": one migration at a time
MIGRATIONS = Path(__file__).parent / "migrations"


def alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def migrate(database: Database) -> None:
    """Apply what is missing. Waits for another process that is migrating; gives up on busy tables after 4 s each."""
    with database.autocommit() as guard:
        while not try_lock(guard, _LOCK):  # a waiting statement would run into its timeout
            time.sleep(0.2)
        try:
            with database.transaction() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '4s'"))
                command.upgrade(alembic_config(connection), "head")
                failpoint("migration.uncommitted")
        finally:
            guard.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
            guard.invalidate()


def main() -> int:
    database = Database(Settings.from_env().require_database(), pool_size=2)
    try:
        migrate(database)
    except TurnqueueError as error:
        sys.stderr.write(f"{error.code}: {error.message}\n")
        return 1
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
