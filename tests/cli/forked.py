"""`turnqueue` as a process of its own, without the second that its imports take: forked from one that has made them.

    python -m tests.cli.forked        # orders on standard input, exit statuses on standard output, a line each

An order is {"argv", "env", "out", "err"}: arguments, the whole environment, and files for what is printed. Nothing of
the command itself has run in the process that is forked. What starts servers and workers, gets a signal, or has another
import path is a program from its first instruction instead (`conftest`).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

# What commands import once they run; no module that registers tools.
LATER = (
    "orchestrator.cli_verbs", "orchestrator.cli_people", "orchestrator.cli_settle", "orchestrator.cli_render",
    "kombu.transport.redis", "sqlalchemy.dialects.postgresql.psycopg",
)  # fmt: skip


class Forks:
    """The process that is forked, from outside."""

    def __init__(self, env: Mapping[str, str]) -> None:
        argv = [sys.executable, "-m", "tests.cli.forked"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(env))

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            order = {"argv": list(argv), "env": dict(env), "out": str(out), "err": str(err)}
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            status = int(self._process.stdout.readline())
            return status, out.read_text(), err.read_text()


@cache
def forks(path: str) -> Forks:
    """One for each test process. `path`: its PYTHONPATH."""
    return Forks({name: value for name, value in os.environ.items() if not name.startswith("TURNQUEUE_")} | {
        "PYTHONPATH": path, "COLUMNS": "120",
    })  # fmt: skip


def _become(order: dict[str, object]) -> None:
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    for number, path in ((1, order["out"]), (2, order["err"])):
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.argv = ["turnqueue", *order["argv"]]  # type: ignore[misc]


def main() -> None:
    cli = import_module("orchestrator.cli")
    for name in LATER:
        import_module(name)
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
            cli.main()  # raises SystemExit, as at the command line
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
