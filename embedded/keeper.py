"""Stops the embedded servers when their last user is gone, however it went.

Every launcher holds `users.lock` shared while it needs the servers; the kernel drops that when the launcher dies.  The
keeper waits for the same lock exclusively, so it wakes exactly when nobody is left: after a clean exit (it then finds
nothing to do) and after SIGKILL.  Starting also needs the shared lock, so nobody attaches to servers that are being
stopped.

Standard library only, and run by path: it must start fast and work whatever the launcher's import path was.

    python keeper.py HOME CLUSTER VALKEY_SOCKET VALKEY_PID_FILE
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

FAST_STOP_SECONDS = 30.0
VALKEY_STOP_SECONDS = 5.0
POLL_SECONDS = 0.02


class ServerFiles(NamedTuple):
    """Where a running pair of servers can be found; all absolute paths."""

    home: Path
    cluster: Path
    valkey_socket: Path
    valkey_pid: Path


def users_lock(home: Path) -> Path:
    """Held shared by each launcher, exclusively by whoever stops the servers."""
    return home / "users.lock"


def keeper_lock(home: Path) -> Path:
    """Held by the one keeper of this directory."""
    return home / "keeper.lock"


def open_lock(path: Path) -> IO[bytes]:
    """An open lock file, not locked yet; closing it releases the lock."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)


def try_lock(file: IO[bytes], kind: int) -> bool:
    """Take `LOCK_SH` or `LOCK_EX` if that is possible at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def first_line_number(path: Path) -> int | None:
    """The process id at the top of a pid file, or None when there is none."""
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def runs(pid: int, mark: str) -> bool:
    """Is `pid` a live process with `mark` in its command line?  A zombie has none; a reused number has another one."""
    if Path("/proc/self/cmdline").exists():
        try:
            return os.fsencode(mark) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
    # No /proc (macOS).
    found = subprocess.run(  # noqa: S603
        ["/bin/ps", "-ww", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return mark in found and not found.startswith("Z")


def live_postgres(cluster: Path) -> int | None:
    """The process id of the running server of this cluster, else None."""
    pid = first_line_number(cluster / "postmaster.pid")
    return pid if pid is not None and runs(pid, str(cluster)) else None


def live_valkey(path: Path, pid_file: Path) -> int | None:
    """The process id of the running server behind this socket, else None."""
    pid = first_line_number(pid_file)
    return pid if pid is not None and runs(pid, str(path)) else None


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until the condition holds; False when it did not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end_process(pid: int, mark: str, signals: list[tuple[int, float]]) -> None:
    """Send each signal in turn, waiting its number of seconds for the process to end."""
    for number, seconds in signals:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_until(lambda: not runs(pid, mark), seconds):
            return


def stop_postgres(cluster: Path) -> None:
    """Fast shutdown (open transactions roll back); immediate when that takes too long, which costs a recovery only."""
    pid = live_postgres(cluster)
    if pid is not None:
        end_process(
            pid, "postgres", [(signal.SIGINT, FAST_STOP_SECONDS), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)]
        )


def valkey_command(path: Path, command: bytes, seconds: float = 1.0) -> bytes:
    """The start of the reply to one inline command, or b"" when the server does not answer in time."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(command + b"\r\n")
            return connection.recv(256)
        except OSError:
            return b""


def stop_valkey(path: Path, pid_file: Path) -> None:
    """Nothing is saved: the broker holds hints only."""
    pid = live_valkey(path, pid_file)
    if pid is not None:
        patience = VALKEY_STOP_SECONDS
        end_process(pid, str(path), [(signal.SIGTERM, patience), (signal.SIGKILL, patience)])
    for left_over in (path, pid_file):
        left_over.unlink(missing_ok=True)


def stop_servers(files: ServerFiles) -> None:
    """Stop both servers; harmless when they do not run.  The caller holds `users.lock` exclusively."""
    stop_valkey(files.valkey_socket, files.valkey_pid)
    stop_postgres(files.cluster)


def main(arguments: list[str]) -> None:
    """Wait for the last user to go, then stop the servers and exit."""
    files = ServerFiles(*map(Path, arguments))
    with open_lock(keeper_lock(files.home)) as mine, open_lock(users_lock(files.home)) as users:
        if not try_lock(mine, fcntl.LOCK_EX):
            return
        fcntl.flock(users, fcntl.LOCK_EX)
        stop_servers(files)
        # Before `users`: a launcher that starts next must find the keeper's place free.
        fcntl.flock(mine, fcntl.LOCK_UN)


if __name__ == "__main__":
    main(sys.argv[1:])
