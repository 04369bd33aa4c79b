"""Which installation a command works on: that of the environment, or the one that runs in the data directory.

Whoever starts one on this machine holds `HOME/local.lock` and writes `HOME/local.json`; a command without server
settings of its own reads where to go from there. The lock says whether the file is true: the kernel drops it when its
holder dies.
"""

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from embedded import keeper
from embedded.layout import default_home
from executors.registry import Registry
from orchestrator.app import load_registry
from orchestrator.domain.errors import ConfigError, Unavailable
from orchestrator.settings import PREFIX, Settings

Kind = Literal["up", "run", "demo"]
DATABASE_URL, BROKER_URL = f"{PREFIX}DATABASE_URL", f"{PREFIX}BROKER_URL"
MODULES, PROFILES, QUEUE_PREFIX = f"{PREFIX}MODULES", f"{PREFIX}PROFILES", f"{PREFIX}QUEUE_PREFIX"


class Running(BaseModel):
    """What `local.json` tells another shell. `env` holds settings, never a tool's secrets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    pid: int
    cwd: Path  # where the modules of `env` can be imported
    env: Mapping[str, str]


def registered(environ: Mapping[str, str], extra_path: Sequence[Path] = ()) -> Registry:
    """The tools and profiles that `environ` names; modules may lie in the current directory, as workers see them."""
    for path in (Path.cwd(), *extra_path):
        if str(path) not in sys.path:
            sys.path.append(str(path))
    return load_registry(Settings.from_env(environ))


@contextmanager
def place_for(home: Path) -> Iterator[Path | None]:
    """Be the one that other shells find, as long as the block lasts; None when that is somebody else."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o711)
        lock = keeper.open_lock(home / "local.lock")
    except OSError as error:
        raise bad_home(home, error) from error
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


def announce(note: Path, kind: Kind, env: Mapping[str, str]) -> None:
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


def bad_home(home: Path, error: OSError) -> ConfigError:
    return ConfigError("BAD_HOME", f"cannot use the data directory {home}: {error}; set TURNQUEUE_HOME to one you own")
