"""Creates and drops databases in a PostgreSQL server: administration, not the store's schema."""

from typing import LiteralString

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from orchestrator.domain.errors import Unavailable


def _administer(server: URL, statement: LiteralString, name: str) -> None:
    target = server.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))
    except psycopg.OperationalError as error:
        raise Unavailable("DATABASE_DOWN", f"PostgreSQL does not answer: {error}") from error


def database_url(database_url: str, name: str) -> str:
    """The same server and user, another database."""
    return make_url(database_url).set(database=name).render_as_string(hide_password=False)


def create_database(server_url: str, name: str, *, exist_ok: bool = False) -> str:
    """Create an empty database beside the one that the URL names; returns its URL.

    Raises Unavailable when the server does not answer; psycopg's DuplicateDatabase when it exists (unless `exist_ok`).
    """
    try:
        _administer(make_url(server_url), "CREATE DATABASE {}", name)
    except psycopg.errors.DuplicateDatabase:
        if not exist_ok:
            raise
    return database_url(server_url, name)


def drop_database(server_url: str, name: str) -> None:
    """Drop a database, ending the connections to it; nothing happens when it does not exist."""
    _administer(make_url(server_url), "DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
