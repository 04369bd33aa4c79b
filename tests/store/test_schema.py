"""Migrations build exactly `store/tables.py`: compared by alembic and by PostgreSQL's own catalogs."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from embedded.databases import create_database, drop_database
from embedded.servers import Servers
from orchestrator.domain.action import ActionState
from orchestrator.domain.model import (
    ApprovalState,
    AttemptState,
    CallState,
    DecisionKind,
    Effect,
    QuestionState,
    Reason,
)
from orchestrator.domain.operation import OperationState
from orchestrator.settings import sqlalchemy_url
from store import tables
from store.db import Database
from store.migrate import migrate
from tests.shared import ROOT

CATALOG = {
    "columns": """SELECT table_name, column_name, data_type, udt_name, is_nullable, column_default, is_identity,
                         identity_generation, numeric_precision, numeric_scale
                  FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2""",
    "constraints": """SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid)
                      FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    "triggers": """SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid)
                   FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 2""",
    "functions": """SELECT proname, prosrc, provolatile::text FROM pg_proc
                    WHERE pronamespace = 'public'::regnamespace ORDER BY 1""",
}


@pytest.fixture
def empty(servers: Servers) -> Iterator[Database]:
    name = f"test_{os.getpid()}_{uuid.uuid4().hex[:12]}"
    opened = Database(sqlalchemy_url(create_database(servers.database_url, name)), pool_size=2)
    yield opened
    opened.close()
    drop_database(servers.database_url, name)


def catalog(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    with database.transaction() as connection:
        found = {name: [tuple(row) for row in connection.execute(text(sql))] for name, sql in CATALOG.items()}
    return {name: [row for row in listed if row[0] != "alembic_version"] for name, listed in found.items()}


def test_alembic_sees_no_difference(database: Database) -> None:
    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []


def test_the_catalogs_are_equal(database: Database, empty: Database) -> None:
    """alembic compares neither CHECKs nor index predicates nor triggers."""
    with empty.transaction() as connection:
        tables.metadata.create_all(connection)
        for statement in tables.TRIGGERS:
            connection.execute(text(statement))
    migrated, declared = catalog(database), catalog(empty)
    for kind in CATALOG:
        assert migrated[kind] == declared[kind], kind
        assert migrated[kind], kind


CHECKS: list[tuple[str, type[StrEnum]]] = [
    ("ck_operations_state", OperationState),
    ("ck_operations_reason", Reason),
    ("ck_actions_state", ActionState),
    ("ck_actions_effect", Effect),
    ("ck_calls_state", CallState),
    ("ck_calls_effect", Effect),
    ("ck_attempts_state", AttemptState),
    ("ck_approvals_state", ApprovalState),
    ("ck_decisions_decision", DecisionKind),
    ("ck_questions_state", QuestionState),
]


@pytest.mark.parametrize(("name", "members"), CHECKS)
def test_enums_and_checks_agree(database: Database, name: str, members: type[StrEnum]) -> None:
    definition = {row[1]: row[3] for row in catalog(database)["constraints"]}[name]
    assert set(re.findall(r"'([^']+)'::text", definition)) == {str(member) for member in members}


def test_migrating_again_changes_nothing(database: Database) -> None:
    before = catalog(database)
    migrate(database)
    assert catalog(database) == before


def test_four_processes_migrate_at_once(empty: Database, database: Database) -> None:
    env = os.environ | {"TURNQUEUE_DATABASE_URL": empty.url}
    command = [sys.executable, "-m", "store.migrate"]
    started = [subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert catalog(empty) == catalog(database)


def test_an_unreachable_database_is_one_clear_line() -> None:
    env = os.environ | {"TURNQUEUE_DATABASE_URL": "postgresql://nobody:hidden@127.0.0.1:1/none"}
    command = [sys.executable, "-m", "store.migrate"]
    done = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("DATABASE_UNREACHABLE: ")
    assert "Traceback" not in done.stderr
    assert "hidden" not in done.stderr
