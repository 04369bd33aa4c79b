"""Where the embedded servers keep their files, and the system user they run as.

HOME/                the data directory; owned by the launcher's user
    start.lock users.lock keeper.lock
    servers/         PostgreSQL cluster `pg`, server logs, pid files (service user only)
    run/             unix sockets; elsewhere when HOME is too long for a socket address
    logs/            logs of the processes that the supervisor starts
    programs/        root only: server programs that the service user could not reach where they were installed
"""

import hashlib
import os
import pwd
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from embedded.keeper import ServerFiles
from embedded.wheels import Programs
from orchestrator.domain.errors import ConfigError

# sun_path holds 108 bytes on Linux, 104 on macOS, with the final zero; the longest socket name is PostgreSQL's.
SOCKET_PATH_LIMIT = 103
LONGEST_SOCKET_NAME = ".s.PGSQL.5432"
# PostgreSQL refuses to run as root.  The first of these that exists is used; no user is ever created.
SERVICE_USERS = ("turnqueue", "postgres", "nobody")


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The system user of the servers; `drop` says whether we are root and must become it."""

    uid: int
    gid: int
    drop: bool

    def popen(self) -> dict[str, int | list[int]]:
        """Keyword arguments for `subprocess` that start a process as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.drop else {}


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one data directory."""

    home: Path
    sockets: Path
    user: ServiceUser

    @property
    def cluster(self) -> Path:
        return self.home / "servers" / "pg"

    @property
    def server_dir(self) -> Path:
        return self.home / "servers"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def valkey_socket(self) -> Path:
        return self.sockets / "valkey.sock"

    @property
    def files(self) -> ServerFiles:
        return ServerFiles(self.home, self.cluster, self.valkey_socket, self.server_dir / "valkey.pid")


def default_home(environ: Mapping[str, str]) -> Path:
    """`TURNQUEUE_HOME`, else the platform's place for a user's data."""
    if chosen := environ.get("TURNQUEUE_HOME"):
        return Path(chosen).expanduser()
    if os.geteuid() == 0:
        # The servers do not run as root and could not enter root's own home directory.
        return Path("/var/lib/turnqueue")
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/turnqueue").expanduser()
    return Path(environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "turnqueue"


def prepare(home: Path) -> Layout:
    """Create the directories of a data directory (or check those there).

    Raises ConfigError BAD_HOME when it cannot be written, belongs to someone else, or (as root) lies where the servers'
    user cannot reach it.
    """
    home = home.absolute()
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o711)
        user = service_user(home)
        if user.drop:
            _let_through(home)
        layout = Layout(home, socket_dir(home), user)
        layout.logs.mkdir(mode=0o700, exist_ok=True)
        for path in (layout.server_dir, layout.sockets):
            _private_dir(path, user)
    except OSError as error:
        raise ConfigError(
            "BAD_HOME", f"Cannot use the data directory {home}: {error}; set TURNQUEUE_HOME to one that you own"
        ) from error
    return layout


def service_user(home: Path) -> ServiceUser:
    """Ourselves; as root the owner of the data directory, or an unprivileged system user."""
    if os.geteuid() != 0:
        return ServiceUser(os.geteuid(), os.getegid(), drop=False)
    for owned in (home / "servers", home):
        if owned.exists() and owned.stat().st_uid != 0:
            return ServiceUser(owned.stat().st_uid, owned.stat().st_gid, drop=True)
    for name in SERVICE_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServiceUser(entry.pw_uid, entry.pw_gid, drop=True)
    raise ConfigError("NO_EMBEDDED", "PostgreSQL does not run as root: add a system user named turnqueue")


def socket_dir(home: Path) -> Path:
    """`HOME/run`, or a short directory under the temporary directory when that is too long for a unix socket."""
    inside = home / "run"
    if _fits(inside):
        return inside
    name = f"tq-{os.geteuid()}-{hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]}"
    candidates = [Path(tempfile.gettempdir()) / name, Path("/tmp") / name]  # noqa: S108 (checked by _private_dir)
    return next((path for path in candidates if _fits(path)), candidates[-1])


def _fits(directory: Path) -> bool:
    return len(os.fsencode(directory / LONGEST_SOCKET_NAME)) <= SOCKET_PATH_LIMIT


def _private_dir(path: Path, user: ServiceUser) -> None:
    """Make the directory the service user's alone; refuse one that somebody else put there (it may be in /tmp)."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), user.uid}:
        raise PermissionError(f"{path} is not a directory of this user")
    if user.drop:
        os.chown(path, user.uid, user.gid, follow_symlinks=False)
    os.chmod(path, 0o700)


def _let_through(home: Path) -> None:
    """Let the service user pass through our directory; its parents are not ours to open."""
    home.chmod(stat.S_IMODE(home.stat().st_mode) | 0o011)
    if closed := closed_parent(home):
        raise ConfigError(
            "BAD_HOME",
            f"As root the servers run as another user, who cannot enter {closed}; "
            f"set TURNQUEUE_HOME to a directory outside it",
        )


def closed_parent(path: Path) -> Path | None:
    """The nearest of the path's directories that other users cannot pass through, or None."""
    return next((each for each in (path, *path.parents) if not each.stat().st_mode & stat.S_IXOTH), None)


def reachable(programs: Programs, layout: Layout) -> Path:
    """The directory with the programs: where they were installed, or a copy if the service user cannot get there."""
    if not layout.user.drop or closed_parent(programs.executable.resolve()) is None:
        return programs.executable.parent
    copy = layout.home / "programs" / programs.version
    if not copy.exists():
        partial = copy.with_name(f"{copy.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        # In the same places beside each other: the programs find their libraries by a relative path.
        for tree in programs.trees:
            shutil.copytree(programs.root / tree, partial / tree)
        for each in (copy.parent, partial, *(entry for entry in partial.rglob("*") if entry.is_dir())):
            each.chmod(0o755)
        partial.rename(copy)
    return copy / programs.executable.parent.relative_to(programs.root)
