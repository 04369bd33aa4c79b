"""The local stack: migration, workers, sweeper and whatever the caller adds, against given servers.

    with EmbeddedServers() as servers, Stack(servers, modules=["examples.support"]) as stack:
        stack.wait_ready()

`turnqueue up`, `turnqueue demo`, the tests, the replay and the bench all start Turnqueue through this.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from embedded.servers import Servers
from embedded.supervisor import GRACE_SECONDS, CrashLimit, Process, Supervisor, start_guarded
from orchestrator.domain.errors import ConfigError

MIGRATE_SECONDS = 120.0
CELERY_APP = "orchestrator.tasks"
MIGRATE: tuple[str, ...] = (sys.executable, "-m", "store.migrate")
SWEEPER: tuple[str, ...] = (sys.executable, "-m", "orchestrator.sweeper")
# Celery logs this at INFO once a worker takes messages.
CELERY_READY = " ready."


@dataclass(frozen=True, slots=True)
class Worker:
    """One Celery worker process: its name, the queues it serves, its threads.

    A level above INFO hides Celery's ready line, on which `wait_ready` goes.
    """

    name: str
    queues: Sequence[str]
    concurrency: int = 8
    pool: str = "threads"
    log_level: str = "INFO"

    def process(self, app: str = CELERY_APP) -> Process:
        """The command that runs this worker."""
        argv = [sys.executable, "-m", "orchestrator.worker", "-A", app, "-Q", ",".join(self.queues), "-P", self.pool]
        argv += ["-c", str(self.concurrency), "-n", f"{self.name}@%h", "-l", self.log_level]
        return Process(self.name, tuple(argv), ready=CELERY_READY)


def default_workers(extra_queues: Sequence[str] = (), concurrency: int = 8) -> tuple[Worker, ...]:
    """One orchestrator worker, for submissions by message too, and one executor worker for all other queues."""
    return (
        Worker("orchestrator", ("orchestrator", "submit"), concurrency),
        Worker("executors", ("reads", "writes", *extra_queues), concurrency),
    )


class Stack(Supervisor):
    """The processes of one Turnqueue installation; `Supervisor` has stop, kill, restart, pid, wait_ready and more.

    `modules`: TURNQUEUE_MODULES, the modules that register tools and profiles.  `env`: what all processes get besides.
    `extra`: further processes, for example a downstream service of the demo; with `support=True` they stop last.
    `migrate` and `sweeper` are commands, or None to leave them out.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        modules: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        workers: Sequence[Worker] | None = None,
        extra: Sequence[Process] = (),
        migrate: Sequence[str] | None = MIGRATE,
        sweeper: Sequence[str] | None = SWEEPER,
        app: str = CELERY_APP,
        grace: float = GRACE_SECONDS,
        crash_limit: CrashLimit | None = None,
    ) -> None:
        self._migrate = migrate
        processes = [*extra, *(each.process(app) for each in (default_workers() if workers is None else workers))]
        if sweeper is not None:
            processes.append(Process("sweeper", tuple(sweeper)))
        shared = {"TURNQUEUE_DATABASE_URL": servers.database_url, "TURNQUEUE_BROKER_URL": servers.broker_url}
        if modules:
            shared["TURNQUEUE_MODULES"] = ",".join(modules)
        super().__init__(
            processes,
            log_dir=log_dir or servers.data_dir / "logs",
            env={**shared, **(env or {})},
            grace=grace,
            crash_limit=crash_limit,
        )

    def start(self) -> None:
        """Migrate the database, then start every process; see `wait_ready`.

        Raises ConfigError MIGRATE_FAILED with the end of its output.
        """
        if self._migrate is not None:
            self._run_migration(self._migrate)
        super().start()

    def _run_migration(self, command: Sequence[str]) -> None:
        self._log_dir.mkdir(parents=True, exist_ok=True)
        log = self._log_dir / "migrate.log"
        log.unlink(missing_ok=True)
        with start_guarded(command, self._env, log) as running:
            try:
                status: int | str = running.wait(MIGRATE_SECONDS)
            except subprocess.TimeoutExpired:
                status = f"not done after {MIGRATE_SECONDS:g} s"
            finally:
                running.kill()
        if status != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise ConfigError("MIGRATE_FAILED", f"The database could not be migrated ({status}); see {log}\n{tail}")


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within the block SIGTERM ends the program like Ctrl-C does, so that `with` blocks stop what they started.

    For a program's main thread; raises SystemExit(143) there.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
