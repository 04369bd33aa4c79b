"""What hundreds of killed migrations left behind in a database of their own: nothing, and the next one succeeds."""

from collections.abc import Sequence
from typing import Any

import psycopg

from store.db import Database
from store.migrate import migrate

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


def scratch_problems(whole: str, scratch: Sequence[str]) -> list[str]:
    """`scratch`: URLs of databases in which migrations were killed; `whole`: of one that was migrated in peace."""
    found = []
    for url in scratch:
        if _schema(url):
            found.append("a killed migration left something behind")
        database = Database(url, pool_size=2)
        migrate(database)
        database.close()
        if _schema(url) != _schema(whole):
            found.append("a migration after killed ones gives another schema")
    return found
