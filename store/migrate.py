"""Bring the database to this version's schema: `python -m store.migrate`. Safe to run from many processes at once."""

import sys
import time

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from orchestrator.domain.errors import TurnqueueError
from orchestrator.failpoints import failpoint
from orchestrator.settings import Settings
from store.db import Database, try_lock
from store.revisions import MIGRATIONS, Schema, schema

_LOCK = 0x7571_6D69  # "tqmi": one migration at a time


def alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def migrate(database: Database) -> Schema:
    """Apply what is missing; how the database stood to this release before. A newer schema is left as it is.

    Waits for another process that is migrating. Workers may go on meanwhile: where they keep a table busy for 4 s it is
    tried again, five times in all.
    """
    with database.autocommit() as guard:
        while not try_lock(guard, _LOCK):  # a waiting statement would run into its timeout
            time.sleep(0.2)
        try:
            return database.transact(_apply)
        finally:
            guard.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
            guard.invalidate()


def _apply(connection: Connection) -> Schema:
    found = schema(connection)
    if found is not Schema.NEWER:
        connection.execute(text("SET LOCAL lock_timeout = '4s'"))
        command.upgrade(alembic_config(connection), "head")
        failpoint("migration.uncommitted")
    return found


def main() -> int:
    database = Database(Settings.from_env().require_database(), pool_size=2)
    try:
        if migrate(database) is Schema.NEWER:
            sys.stderr.write("the database has the schema of a newer release; nothing to do\n")
    except TurnqueueError as error:
        sys.stderr.write(f"{error.code}: {error.message}\n")
        return 1
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
