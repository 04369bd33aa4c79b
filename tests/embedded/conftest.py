"""Data directories and launcher processes for the embedded servers' own tests."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from embedded.keeper import live_postgres, live_valkey, wait_until
from embedded.layout import socket_dir

REPOSITORY = Path(__file__).parents[2]
LAUNCHER = """
import json, os, sys
from pathlib import Path
from embedded.servers import EmbeddedServers

with EmbeddedServers(Path(sys.argv[1])) as servers:
    print(json.dumps({"database_url": servers.database_url, "broker_url": servers.broker_url, "uid": os.geteuid()}))
    sys.stdout.flush()
    sys.stdin.read()
"""


def embedded_environ() -> dict[str, str]:
    """For a program run elsewhere: this repository importable, nothing set that would replace the embedded servers."""
    replaced = {"TURNQUEUE_DATABASE_URL", "TURNQUEUE_BROKER_URL", "TURNQUEUE_HOME"}
    kept = {name: value for name, value in os.environ.items() if name not in replaced}
    return kept | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [kept.get("PYTHONPATH")])])}


class Launcher:
    """A process that holds the embedded servers of one data directory until told to go."""

    def __init__(self, home: Path, python: str, env: Mapping[str, str], user: str | None) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [python, "-c", LAUNCHER, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**embedded_environ(), **env},
            user=user,
            group=None if user is None else _group_of(user),
            extra_groups=None if user is None else [],
            cwd="/",
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"launcher ended with {self.process.wait()}"
        self.servers: dict[str, Any] = json.loads(line)

    def leave(self) -> int:
        """End normally; the exit status."""
        self.process.communicate(timeout=60)
        return self.process.returncode

    def kill(self, number: int) -> int:
        """End by a signal; the exit status."""
        self.process.send_signal(number)
        return self.leave()


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def postgres_pid(home: Path) -> int | None:
    """The live postmaster of a data directory."""
    return live_postgres(home / "servers" / "pg")


def valkey_pid(home: Path) -> int | None:
    """The live Valkey of a data directory."""
    return live_valkey(socket_dir(home) / "valkey.sock", home / "servers" / "valkey.pid")


def server_pids(home: Path) -> tuple[int | None, int | None]:
    return postgres_pid(home), valkey_pid(home)


def keeper_pids(home: Path) -> list[int]:
    """Keepers of this data directory."""
    listing = subprocess.run(["ps", "-wweo", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    return [
        int(pid) for pid, state, args in rows if "keeper.py" in args and f" {home} " in args and state[0] not in "ZX"
    ]


def assert_stopped(home: Path) -> None:
    """Both servers and the keeper go away without anybody's help."""
    assert wait_until(lambda: server_pids(home) == (None, None), 60), server_pids(home)
    assert wait_until(lambda: keeper_pids(home) == [], 10), keeper_pids(home)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty data directory with a short path that the servers' user can enter."""
    home = Path(tempfile.mkdtemp(prefix="tq-"))
    yield home
    assert_stopped(home)
    shutil.rmtree(home)


@pytest.fixture
def launch() -> Iterator[Callable[..., Launcher]]:
    """Start a launcher process: `launch(home, python=..., env=..., user=...)`."""
    started: list[Launcher] = []

    def start(
        home: Path, *, python: str = sys.executable, env: Mapping[str, str] | None = None, user: str | None = None
    ) -> Launcher:
        started.append(Launcher(home, python, env or {}, user))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.leave()
