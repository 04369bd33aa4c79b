"""Turnqueue on this machine: embedded servers, schema, workers and sweeper, started together and found by other shells.

Whoever starts them holds `HOME/local.lock` and writes `HOME/local.json`; a command without server settings of its own
reads where to go from there. The lock says whether the file is true: the kernel drops it when its holder dies.
"""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from embedded import keeper
from embedded.databases import create_database
from embedded.layout import default_home
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import Stack, default_workers
from embedded.supervisor import CrashLimit, Process
from executors.registry import Registry
from orchestrator.app import load_registry
from orchestrator.domain.errors import ConfigError, Unavailable
from orchestrator.hints import CORE_QUEUES
from orchestrator.settings import PREFIX, Settings
from store.db import Database
from store.migrate import migrate

Kind = Literal["up", "run", "demo"]
DATABASE_URL, BROKER_URL = f"{PREFIX}DATABASE_URL", f"{PREFIX}BROKER_URL"
MODULES, PROFILES, QUEUE_PREFIX = f"{PREFIX}MODULES", f"{PREFIX}PROFILES", f"{PREFIX}QUEUE_PREFIX"
# A worker that a test or a person kills a few times is started again; one that cannot start is given up soon enough.
CRASHES = CrashLimit(deaths=6, seconds=20.0)


class Running(BaseModel):
    """What `local.json` tells another shell. `env` holds settings, never a tool's secrets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    pid: int
    cwd: Path  # where the modules of `env` can be imported
    env: Mapping[str, str]


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
        place = started.enter_context(_place(home))
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
            _announce(place, plan.kind, env)
        yield Local(servers, embedded, stack, settings, registry, logs, found=place is not None)


def registered(environ: Mapping[str, str], extra_path: Sequence[Path] = ()) -> Registry:
    """The tools and profiles that `environ` names; modules may lie in the current directory, as workers see them."""
    for path in (Path.cwd(), *extra_path):
        if str(path) not in sys.path:
            sys.path.append(str(path))
    return load_registry(Settings.from_env(environ))


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
        raise _bad_home(home, error) from error
    return logs


def _bad_home(home: Path, error: OSError) -> ConfigError:
    return ConfigError("BAD_HOME", f"cannot use the data directory {home}: {error}; set TURNQUEUE_HOME to one you own")


# --- finding it from another shell ---------------------------------------------------------------------------------


@contextmanager
def _place(home: Path) -> Iterator[Path | None]:
    """Be the one that other shells find, as long as the block lasts; None when that is somebody else."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o711)
        lock = keeper.open_lock(home / "local.lock")
    except OSError as error:
        raise _bad_home(home, error) from error
    with lock:
        if not keeper.try_lock(lock, fcntl.LOCK_EX):
            yield None
            return
        note = home / "local.json"
        note.unlink(missing_ok=True)
        try:
            yield note
        finally:
            note.unlink(missing_ok=True)


_TOLD = (DATABASE_URL, BROKER_URL, MODULES, PROFILES, QUEUE_PREFIX)


def _announce(note: Path, kind: Kind, env: Mapping[str, str]) -> None:
    """Written beside its place and renamed: nobody reads half of it. The URL may hold a password."""
    told = {name: env[name] for name in _TOLD if env.get(name)}
    running = Running(kind=kind, pid=os.getpid(), cwd=Path.cwd(), env=told)
    fresh = note.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(running.model_dump_json())
    fresh.rename(note)


def running(environ: Mapping[str, str]) -> Running | None:
    """What runs in the data directory of `environ`, if anything does."""
    home = default_home(environ)
    try:
        with (home / "local.lock").open("rb") as lock:
            if _is_free(lock):
                return None
        return Running.model_validate_json((home / "local.json").read_bytes())
    except (OSError, ValidationError):
        return None


def _is_free(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Target:
    """Which installation a command works on; modules lie in `path`."""

    environ: Mapping[str, str]
    path: Sequence[Path] = ()

    @property
    def settings(self) -> Settings:
        return Settings.from_env(self.environ)

    @property
    def registry(self) -> Registry:
        return registered(self.environ, self.path)


def target(environ: Mapping[str, str]) -> Target:
    """The environment's servers, completed by those that run in its data directory. Nothing is started.

    Raises Unavailable NO_SERVERS.
    """
    found = running(environ)
    asked = environ.get(DATABASE_URL)
    if found is not None and asked in (None, "", found.env[DATABASE_URL]):
        chosen = {name: value for name, value in environ.items() if value}
        return Target({**found.env, **chosen}, (found.cwd,))
    if not asked:
        raise Unavailable(
            "NO_SERVERS",
            f"nothing runs in {default_home(environ)}: start `turnqueue up` in another shell, "
            f"or set {DATABASE_URL} and {BROKER_URL}",
        )
    return Target(environ)
