"""Turnqueue on this machine: embedded servers, schema, workers and sweeper, started together; see also `cli_target`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from embedded.databases import create_database
from embedded.layout import default_home
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import Stack, default_workers
from embedded.supervisor import CrashLimit, Process
from executors.registry import Registry
from orchestrator.cli_target import (
    BROKER_URL,
    DATABASE_URL,
    MODULES,
    Kind,
    announce,
    bad_home,
    place_for,
    registered,
)
from orchestrator.hints import CORE_QUEUES
from orchestrator.settings import PREFIX, Settings
from store.db import Database
from store.migrate import migrate

# A worker that a test or a person kills a few times is started again; one that cannot start is given up soon enough.
CRASHES = CrashLimit(deaths=6, seconds=20.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `settings` are TURNQUEUE_ variables that hold unless the environment sets them.

    `database` names an own database on the embedded server. `services` gives further processes, and the environment
    that all processes need to reach them, once the servers are there and the directory for their files is known.
    """

    kind: Kind
    modules: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    database: str | None = None
    services: Callable[[Servers, Path], "Services"] | None = None


@dataclass(frozen=True, slots=True)
class Services:
    processes: Sequence[Process]
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Local:
    """What was started. `found` says whether other shells find it: not when something else runs there already."""

    servers: Servers
    embedded: EmbeddedServers
    stack: Stack
    settings: Settings
    registry: Registry
    logs: Path
    found: bool


@contextmanager
def start(plan: Plan, tell: Callable[[str], None]) -> Iterator[Local]:
    """Start it all, and stop it all at the end; the processes may still be on their way up when the block begins.

    Raises ConfigError (BAD_MODULE, BAD_SETTING, NO_EMBEDDED, BAD_HOME, ...) and Unavailable; nothing is left behind.
    """
    environ = plan.settings | os.environ | ({MODULES: ",".join(plan.modules)} if plan.modules else {})
    registry = registered(environ)
    home = default_home(environ)
    with ExitStack() as started:
        place = started.enter_context(place_for(home))
        tell("starting PostgreSQL and Valkey" if _embeds(environ) else "using the servers of the environment")
        embedded = EmbeddedServers(home, environ)
        servers = started.enter_context(embedded)
        if plan.database and DATABASE_URL not in environ:
            url = create_database(servers.database_url, plan.database, exist_ok=True)
            servers = Servers(url, servers.broker_url, servers.data_dir)
        env = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
        env |= {DATABASE_URL: servers.database_url, BROKER_URL: servers.broker_url}
        settings = Settings.from_env(env)
        _migrate(settings)
        logs = _log_dir(servers.data_dir, plan.kind, alone=place is not None)
        services = plan.services(servers, logs) if plan.services else Services((), {})
        tell(f"starting workers and sweeper; logs in {logs}")
        stack = _stack(servers, registry, services, env, logs)
        started.enter_context(stack)
        if place is not None:
            announce(place, plan.kind, env)
        yield Local(servers, embedded, stack, settings, registry, logs, found=place is not None)


def _embeds(environ: Mapping[str, str]) -> bool:
    return not (environ.get(DATABASE_URL) and environ.get(BROKER_URL))


def _migrate(settings: Settings) -> None:
    database = Database(settings.require_database(), pool_size=2)
    try:
        migrate(database)
    finally:
        database.close()


def _stack(servers: Servers, registry: Registry, services: Services, env: Mapping[str, str], logs: Path) -> Stack:
    own_queues = sorted({spec.queue for spec in registry.tools} - set(CORE_QUEUES))
    return Stack(
        servers,
        env={**env, **services.env},
        log_dir=logs,
        workers=default_workers(own_queues),
        extra=services.processes,
        migrate=None,
        crash_limit=CRASHES,
    )


def _log_dir(home: Path, kind: Kind, *, alone: bool) -> Path:
    logs = home / "logs" / (kind if alone else f"{kind}-{os.getpid()}")
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise bad_home(home, error) from error
    return logs
