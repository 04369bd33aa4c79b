"""Keeps one process of the run alive by forking: `python -m tests.chaos.nursery PIDFILE KIND [ARGUMENT...]`.

Python starts and imports everything once; what is killed is a fork, and the next one is there within a fraction of a
second. KIND is `worker` (the real Celery worker, with Celery's arguments), `sweeper` or `client`. The fork's process
id is in PIDFILE. SIGTERM ends the fork and then this.
"""

import ctypes
import os
import runpy
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType

import orchestrator.sweeper
import orchestrator.tasks
import tests.chaos.client  # noqa: F401

PR_SET_PDEATHSIG = 1
# What each fork would import by itself otherwise: half a second of `celery worker`.
LATER = (
    "celery.bin.celery", "celery.apps.worker", "celery.worker.autoscale", "celery.worker.components",
    "celery.worker.strategy", "celery.app.control", "celery.concurrency.thread", "billiard.pool",
    "kombu.transport.redis", "kombu.transport.pyamqp", "sqlalchemy.dialects.postgresql.psycopg",
)  # fmt: skip


def become(kind: str, arguments: list[str]) -> None:
    """In the fork: run until the end."""
    match kind:
        case "worker":
            orchestrator.tasks.app.worker_main(["worker", *arguments])
        case "sweeper":
            sys.exit(orchestrator.sweeper.main())
        case "client":
            sys.argv = ["client", *arguments]
            runpy.run_module("tests.chaos.client", run_name="__main__")


def fork(pid_file: Path, kind: str, arguments: list[str]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            become(kind, arguments)
        os._exit(0)
    new = pid_file.with_suffix(".new")
    new.write_text(str(child))
    new.rename(pid_file)
    return child


def main() -> None:
    pid_file, kind, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    state = {"child": 0}

    def stop(_number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            if state["child"]:  # 0 would be our whole process group
                os.kill(state["child"], signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    for name in LATER:
        import_module(name)
    while True:
        state["child"] = fork(pid_file, kind, arguments)
        os.waitpid(state["child"], 0)


if __name__ == "__main__":
    main()
