"""The real `turnqueue` as a subprocess, on data directories of its own or on the session's servers."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from embedded.servers import Servers
from store.db import Database
from store.migrate import migrate
from tests.cli.forked import forks
from tests.embedded.conftest import assert_stopped, embedded_environ

PROGRAM = Path(sys.executable).with_name("turnqueue")
# Commands that start nothing: forked.
QUICK = {
    "submit", "show", "list", "approve", "deny", "answer", "amend", "cancel", "resolve", "complete", "compensate",
    "release", "reviews", "audit",
}  # fmt: skip
PATIENCE = 120  # seconds until a hung program fails its test


def environ(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """No Turnqueue setting but those given."""
    kept = {name: value for name, value in embedded_environ().items() if not name.startswith("TURNQUEUE_")}
    return {**kept, "TURNQUEUE_HOME": str(home), "COLUMNS": "120", **(extra or {})}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must hold exactly one JSON object."""
        assert len(self.out.strip().splitlines()) == 1, self
        return json.loads(self.out)

    def failed(self, code: int, name: str) -> str:
        """It ended with this exit code and one line `NAME: message`, which is returned."""
        assert self.code == code, self
        lines = [line for line in self.err.splitlines() if line.startswith(f"{name}: ")]
        assert len(lines) == 1, self
        assert "Traceback" not in self.out + self.err
        return lines[0]


class Shell:
    """Runs `turnqueue` as a person at one machine would."""

    def __init__(self, home: Path, extra: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.environ = environ(home, extra)

    def __call__(self, *arguments: str, **extra: str) -> Result:
        if arguments[:1] and arguments[0] in QUICK and "PYTHONPATH" not in extra:
            path = self.environ["PYTHONPATH"]
            result = Result(*forks(path).run(arguments, {**self.environ, **extra}))
        else:
            result = self._program(arguments, extra)
        assert "Traceback" not in result.out + result.err, result
        return result

    def _program(self, arguments: tuple[str, ...], extra: Mapping[str, str]) -> Result:
        done = subprocess.run(
            [PROGRAM, *arguments],
            env={**self.environ, **extra},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> "Program":
        return Program(arguments, self.environ)


class Program:
    """A `turnqueue` that goes on; read its stderr line by line, end it by a signal."""

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, *arguments],
            env={**env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: list[str] = []

    def until(self, text: str) -> str:
        """The first line of stderr that holds this text; fails when the program ends before."""
        for line in _stream(self.process.stderr):
            self.seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended ({self.process.wait()}) without {text!r}: {''.join(self.seen)}")

    def end(self, number: int | None = None) -> Result:
        """Send a signal, if one is given, and wait for the end."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE)
        result = Result(self.process.returncode, out, "".join(self.seen) + err)
        assert "Traceback" not in result.out + result.err, result
        return result


def _stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A data directory that the servers' user can enter; at the end nothing of it runs any more."""
    made = Path(tempfile.mkdtemp(prefix="tq-"))
    yield made
    assert_stopped(made)
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def shell(home: Path) -> Shell:
    """A shell with no server setting: it finds what runs in `home`."""
    return Shell(home)


@pytest.fixture(scope="module")
def starting(shell: Shell) -> Iterator[Callable[..., Program]]:
    """Start programs that are stopped at the end of the module, the last first."""
    started: list[Program] = []

    def start(*arguments: str) -> Program:
        started.append(shell.start(*arguments))
        return started[-1]

    yield start
    for each in reversed(started):
        if each.process.poll() is None:
            each.end(signal.SIGTERM)


@pytest.fixture
def deployed(servers: Servers, database_url: str, broker_url: str, tmp_path: Path) -> Shell:
    """A shell whose environment names migrated servers with no worker at all."""
    database = Database(database_url)
    migrate(database)
    database.close()
    urls = {"TURNQUEUE_DATABASE_URL": database_url, "TURNQUEUE_BROKER_URL": broker_url}
    return Shell(tmp_path, {**urls, "TURNQUEUE_MODULES": "examples.support"})


def submit_options(tenant: str = "acme") -> list[str]:
    """What the support example needs."""
    scopes = [part for scope in ("orders:read", "refunds:draft", "refunds:submit") for part in ("--scope", scope)]
    text = "My order ORD-123456 arrived broken; please refund EUR 24.50."
    return ["--profile", "support", "--tenant", tenant, "--subject", "customer-7", *scopes, "--input", text]


def wait_for_approval(shell: Shell, operation_id: str) -> str:
    """The approval id, once the operation waits for one."""
    for _ in range(PATIENCE):
        view = shell("show", operation_id, "--json").json
        if view["state"] == "WAITING_APPROVAL":
            return str(view["approvals"][0]["approval_id"])
        assert view["ended_at"] is None, view
    raise AssertionError(f"no approval was asked for: {view}")
