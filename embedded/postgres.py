"""Starts PostgreSQL from the wheel: unix socket only, fsync on."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import psycopg

from embedded.keeper import live_postgres, stop_postgres
from embedded.layout import Layout, reachable
from embedded.wheels import postgres_programs
from orchestrator.domain.errors import Unavailable

START_SECONDS = 60
SUPERUSER = "postgres"
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # Every statement of the store is short: compiling one costs more than running it.
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def server_url(layout: Layout, database: str = SUPERUSER) -> str:
    """The SQLAlchemy URL of a database in this cluster."""
    return f"postgresql+psycopg://{SUPERUSER}@/{database}?host={quote(str(layout.sockets), safe='/')}"


def answers(layout: Layout) -> bool:
    """Does the server take a connection?"""
    try:
        psycopg.connect(host=str(layout.sockets), user=SUPERUSER, dbname=SUPERUSER, connect_timeout=3).close()
    except psycopg.OperationalError:
        return False
    return True


def ensure_running(layout: Layout) -> None:
    """Attach to a running server, or initialise and start one.  The caller holds the start lock.

    Raises ConfigError NO_EMBEDDED, or Unavailable POSTGRES_FAILED with the end of the server's log.
    """
    if answers(layout):
        return
    # Alive but unreachable (its socket was removed, or it hangs): only a stopped server can be started.
    stop_postgres(layout.cluster)
    programs = _programs(layout)
    if not (layout.cluster / "PG_VERSION").exists():
        _initialise(layout, programs)
    _clear_stale(layout)
    _start(layout, programs)


def _programs(layout: Layout) -> Path:
    made_by = layout.cluster / "PG_VERSION"
    return reachable(postgres_programs(made_by.read_text().strip() if made_by.exists() else None), layout)


def _run(layout: Layout, arguments: list[str], failure: str) -> None:
    """Run one of PostgreSQL's programs as the service user."""
    try:
        subprocess.run(  # type: ignore[call-overload]  # noqa: S603
            arguments,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A file, not a pipe: the server inherits it and would keep a pipe open.
            stderr=(log := (layout.logs / "postgres-setup.log").open("w+")),
            cwd="/",
            env=_environment(),
            timeout=START_SECONDS + 30,
            start_new_session=True,
            **layout.user.popen(),
        )
    except (subprocess.SubprocessError, OSError) as error:
        log.seek(0)
        details = (log.read() + server_log_tail(layout)).strip()
        raise Unavailable("POSTGRES_FAILED", f"{failure} ({error})\n{details}") from error
    finally:
        log.close()


def _environment() -> dict[str, str]:
    """The caller's PGHOST, PGDATA and locale must not reach the server."""
    kept = {"PATH", "TMPDIR", "LD_LIBRARY_PATH"}
    return {name: value for name, value in os.environ.items() if name in kept} | {"LC_ALL": "C"}


def server_log_tail(layout: Layout, lines: int = 15) -> str:
    """The last lines of the server's log, "" when there is none."""
    try:
        text = (layout.server_dir / "postgres.log").read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _initialise(layout: Layout, programs: Path) -> None:
    """Create the cluster beside its place and rename it: a launcher killed half-way leaves no half cluster."""
    for left_over in layout.server_dir.glob("pg.new*"):
        shutil.rmtree(left_over, ignore_errors=True)
    fresh = layout.server_dir / f"pg.new{os.getpid()}"
    arguments = [str(programs / "initdb"), "-D", str(fresh), "-U", SUPERUSER, "--auth=trust", "--no-sync"]
    _run(layout, [*arguments, "--encoding=UTF8", "--no-locale"], "PostgreSQL could not create its cluster")
    fresh.rename(layout.cluster)


def _clear_stale(layout: Layout) -> None:
    """Remove what a killed server left.

    PostgreSQL refuses to start while the number in its pid file belongs to any live process, and after a reboot or in a
    container such numbers are reused.
    """
    if live_postgres(layout.cluster) is None:
        (layout.cluster / "postmaster.pid").unlink(missing_ok=True)
        for left_over in layout.sockets.glob(".s.PGSQL.*"):
            left_over.unlink(missing_ok=True)


def _start(layout: Layout, programs: Path) -> None:
    settings = SETTINGS | {"unix_socket_directories": str(layout.sockets), "unix_socket_permissions": "0700"}
    options = " ".join(shlex.quote(part) for name, value in settings.items() for part in ("-c", f"{name}={value}"))
    arguments = [str(programs / "pg_ctl"), "start", "-D", str(layout.cluster), "-w", "-t", str(START_SECONDS), "-s"]
    arguments += ["-l", str(layout.server_dir / "postgres.log"), "-o", options]
    _run(layout, arguments, "PostgreSQL did not start")
