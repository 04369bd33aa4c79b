"""A release on an older, a newer and no schema: it refuses what it cannot work with, and works on what is newer."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from embedded.databases import create_database, drop_database
from embedded.servers import Servers
from orchestrator.domain.errors import ConfigError, Unavailable
from store import operations, revisions
from store.db import Database
from store.migrate import alembic_config, migrate
from store.revisions import Schema, check_migrated
from tests.store.rows import Rows

SWEEPER = [sys.executable, "-m", "orchestrator.sweeper"]
WORKER = [sys.executable, "-m", "celery", "-A", "orchestrator.tasks", "worker", "-Q", "reads", "-P", "threads"]
LIST = [sys.executable, "-m", "orchestrator.cli", "list"]


@pytest.fixture
def database(servers: Servers) -> Iterator[Database]:
    """Without tables."""
    name = f"skew_{uuid.uuid4().hex[:12]}"
    opened = Database(create_database(servers.database_url, name))
    yield opened
    opened.close()
    drop_database(servers.database_url, name)


def at(database: Database, revision: str) -> None:
    """As if that migration, known here or not, had been the last one."""
    migrate(database)
    with database.transaction() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = %s", (revision,))


def run(argv: list[str], database: Database, broker_url: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TURNQUEUE_DATABASE_URL": database.url, "TURNQUEUE_BROKER_URL": broker_url}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_numbers_are_those_of_alembic(database: Database) -> None:
    with database.autocommit() as connection:
        script = ScriptDirectory.from_config(alembic_config(connection))
        assert [each.revision for each in script.walk_revisions()][::-1] == list(revisions.known())


def test_an_empty_database_and_an_older_schema_are_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"store\.migrate") as refused:
        check_migrated(database)
    assert refused.value.code == "NOT_MIGRATED"
    assert migrate(database) is Schema.MISSING
    check_migrated(database)
    assert migrate(database) is Schema.OURS
    later = (*revisions.known(), "9999")
    monkeypatch.setattr(revisions, "known", lambda: later)
    with pytest.raises(ConfigError, match="this version's schema"):
        check_migrated(database)


@pytest.mark.parametrize("argv", [SWEEPER, WORKER, LIST], ids=["sweeper", "worker", "command line"])
def test_every_process_says_so_in_one_line(argv: list[str], database: Database, broker_url: str) -> None:
    done = run(argv, database, broker_url)
    lines = [line for line in done.stderr.splitlines() if line.startswith("NOT_MIGRATED: ")]
    assert (done.returncode != 0, len(lines)) == (True, 1), done.stderr
    assert "Traceback" not in done.stderr


def test_a_newer_schema_is_worked_with_and_not_migrated(database: Database, broker_url: str) -> None:
    at(database, "9999")
    check_migrated(database)
    assert migrate(database) is Schema.NEWER
    done = run([sys.executable, "-m", "store.migrate"], database, broker_url)
    assert (done.returncode, done.stderr) == (0, "the database has the schema of a newer release; nothing to do\n")
    assert run(LIST, database, broker_url).returncode == 0


def test_a_process_lives_through_a_migration(database: Database) -> None:
    """What its sessions have prepared is outdated by a new column: they give way, and one claim fails at most."""
    migrate(database)
    rows = Rows(database)
    keys = [rows.read(rows.operation()) for _ in range(43)]
    [operation] = rows.sql("SELECT operation_id FROM operations LIMIT 1")

    def locked(connection: Connection) -> bool:
        return operations.lock(connection, operation["operation_id"]).turn == 0

    for key in keys[:20]:  # the driver prepares what it is asked to run often
        assert rows.claim(hint=key)["call_key"] == key
        assert database.transact(locked)
    for table in ("calls", "operations"):
        rows.sql(f"ALTER TABLE {table} ADD COLUMN mood text")
    assert database.transact(locked), "a transaction is tried again"
    assert rows.claim(hint=keys[20])["call_key"] == keys[20], "all sessions are new ones"
    for key in keys[21:41]:
        assert rows.claim(hint=key)["call_key"] == key
    rows.sql("ALTER TABLE calls ADD COLUMN moods text")
    with pytest.raises(Unavailable) as busy:
        rows.claim(hint=keys[41])
    assert busy.value.code == "DATABASE_BUSY"
    assert rows.claim(hint=keys[42])["call_key"] == keys[42]
