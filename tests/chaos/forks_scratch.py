"""What hundreds of killed migrations left behind in a database of their own: nothing, and the next one succeeds."""

from typing import Any

import psycopg
from alembic import command

from embedded.servers import Servers
from store.db import Database
from store.migrate import alembic_config, migrate

_SCHEMA = """
    SELECT 'column', table_name, column_name, data_type, coalesce(column_default, ''), is_nullable
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), '', ''
    FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT 'function', proname, '', md5(prosrc), '', '' FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
"""


def _schema(url: str) -> set[tuple[Any, ...]]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return set(connection.execute(_SCHEMA).fetchall())


class Scratch:
    """A database of its own. `revision`: the one it has to start with; "" for none."""

    def __init__(self, servers: Servers, revision: str) -> None:
        self.url = servers.database(f"scratch{revision}")
        if revision:
            database = Database(self.url, pool_size=2)
            with database.transaction() as connection:
                command.upgrade(alembic_config(connection), revision)
            database.close()
        self._before = _schema(self.url)

    def problems(self, whole: str) -> list[str]:
        """`whole`: the URL of a database that was migrated in peace."""
        found = []
        if _schema(self.url) != self._before:
            found.append("a killed migration left something behind")
        database = Database(self.url, pool_size=2)
        migrate(database)
        database.close()
        if _schema(self.url) != _schema(whole):
            found.append("a migration after killed ones gives another schema")
        return found
