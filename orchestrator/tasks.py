"""The only module that imports Celery: a few lines per task, ids only, all decisions elsewhere.

Started by `celery -A orchestrator.tasks worker -Q <queues>`. A message is a hint: its task claims the named row if that
is due, then goes on claiming due rows of its queue until its time slice is used or nothing is due.
"""

import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import structlog
from celery import Celery, bootsteps, signals
from celery.exceptions import Reject

from orchestrator import commands, dispatch, envelope, turn
from orchestrator.app import App, load_registry
from orchestrator.domain.errors import ConfigError, TurnqueueError, Unavailable, UserError
from orchestrator.engine import Wake
from orchestrator.failpoints import failpoint
from orchestrator.heartbeat import BEAT_SECONDS, beat
from orchestrator.hints import CORE_QUEUES, queue
from orchestrator.logs import configure
from orchestrator.settings import Settings
from store import actions, calls, operations
from store.revisions import check_migrated

log = structlog.get_logger()
app = Celery("turnqueue")
app.config_from_object("celeryconfig")
app.Task.max_retries = 0

DEFER_SECONDS = 2.0  # between two tries to store an envelope
DATABASE_SECONDS = 60.0  # for the database's first answer; then the restart policy's turn has come


@cache
def process_app() -> App:
    """This process's composition root: opened when the worker is ready for its first task."""
    settings = Settings.from_env()
    return App(settings, load_registry(settings))


class TaskFailed(Exception):
    """All that Celery's events, and so Flower, get of an unexpected error: its type. The log has the rest."""


def _unexpected(error: Exception) -> TaskFailed:
    log.error("task.failed", exc_info=error)
    return TaskFailed(type(error).__name__)


def drain(step: Callable[[str | None], bool], hint: str, more: Callable[[], Wake | None]) -> None:
    """Claim and work until the slice is used or nothing is due; leave a hint behind where work is left."""
    root = process_app()
    until = time.monotonic() + root.settings.slice_seconds
    failpoint("task.received")
    try:
        worked = step(hint)
        while time.monotonic() < until:
            if not step(None):
                worked = False
                break
            worked = True
        left = more() if worked else None
    except TurnqueueError as error:
        # Unreachable server: the row keeps its lease or its wake_at, the sweeper publishes it again.
        log.warning("task.unavailable", code=error.code)
        return
    except Exception as error:  # noqa: BLE001 - its text may hold what a message must not
        raise _unexpected(error) from None
    if left is not None:
        root.publish([left])
    failpoint("task.done")


@app.task(name="turnqueue.advance")
def advance(operation_id: str) -> None:
    """Advance the named operation, or the ones longest due, by one model turn each."""
    root = process_app()

    def more() -> Wake | None:
        with root.database.autocommit() as connection:
            rows = operations.due(connection, 1)
        return Wake("orchestrator", rows[0]) if rows else None

    drain(lambda hint: turn.advance(root, hint), str(operation_id), more)


@app.task(name="turnqueue.submit")
def submit(*args: Any, **kwargs: Any) -> None:
    """Create an operation from one signed envelope. Anything else creates nothing and is logged with its code."""
    root = process_app()
    sealed = args[0] if len(args) == 1 and not kwargs else None
    try:
        request, proof = envelope.open_sealed(root.settings, sealed)
        created = commands.submit(root, request, proof)
    except UserError as error:
        log.warning("envelope.refused", code=error.code, reason=error.message)
        return
    except TurnqueueError as error:
        # Unlike a hint, an envelope is not in the database yet: it goes back to the broker until it expires.
        log.warning("envelope.deferred", code=error.code)
        time.sleep(DEFER_SECONDS)
        raise Reject(error.code, requeue=True) from None
    except Exception as error:  # noqa: BLE001 - its text may hold what a message must not
        raise _unexpected(error) from None
    if created.replayed:
        log.info("envelope.repeated", code="ENVELOPE_REPLAYED", operation_id=created.operation_id, sender=proof.sender)
        return
    log.info("envelope.accepted", operation_id=created.operation_id, sender=proof.sender, created=created.created)


def _run_tool(queue_name: str, row_id: str) -> None:
    root = process_app()

    def more() -> Wake | None:
        with root.database.autocommit() as connection:
            rows = [row for row in calls.due(connection, 16) if row[2] == queue_name]
            rows = rows or [row for row in actions.due(connection, 16) if row[2] == queue_name]
        return Wake(queue_name, rows[0][0], rows[0][1]) if rows else None

    drain(lambda hint: dispatch.run_one(root, queue_name, hint), str(row_id), more)


def register_tools() -> None:
    """One task per tool, so that Flower shows a name per tool; ids only in the messages."""
    for spec in load_registry(Settings.from_env()).tools:
        _register(spec.name, spec.queue)
        if spec.queue not in CORE_QUEUES and all(q.name != spec.queue for q in app.conf.task_queues):
            app.conf.task_queues.append(queue(spec.queue))


def _register(tool: str, queue_name: str) -> None:
    @app.task(name=f"tool.{tool}")
    def run(row_id: str) -> None:
        _run_tool(queue_name, row_id)


@signals.worker_init.connect
def _prepare(**_: Any) -> None:
    configure()
    root = process_app()
    try:
        envelope.check_senders(root.settings)
    except ConfigError as problem:  # now, not at the first envelope
        raise SystemExit(f"{problem.code}: {problem.message}") from None
    _wait_for_database(root)


def _wait_for_database(root: App) -> None:
    """No message is taken before the database has answered once, and has the schema that this release needs."""
    until = time.monotonic() + DATABASE_SECONDS
    while True:
        try:
            check_migrated(root.database)
            root.sync_slots()
        except Unavailable as problem:
            if time.monotonic() > until:
                raise SystemExit(f"{problem.code}: {problem.message}") from None
            log.warning("worker.waits", code=problem.code)
            time.sleep(1.0)
        except ConfigError as problem:
            raise SystemExit(f"{problem.code}: {problem.message}") from None
        else:
            return


@signals.worker_shutdown.connect
def _close(**_: Any) -> None:
    if process_app.cache_info().currsize:
        process_app().close()


class Heartbeat(bootsteps.StartStopStep):
    """Beats on the consumer's own loop, which is what can hang; starts anew with each connection to the broker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._path = Settings.from_env().heartbeat_file
        self._connected = threading.Event()

    def start(self, parent: Any) -> None:
        self._connected.set()
        beat(self._path)
        parent.timer.call_repeatedly(BEAT_SECONDS, beat, (self._path,))

    def stop(self, parent: Any) -> None:
        """The loop stands still until the broker is back: a restart would mend nothing and cost the calls in flight."""
        self._connected.clear()
        threading.Thread(target=self._wait_for_broker, name="heartbeat", daemon=True).start()

    def _wait_for_broker(self) -> None:
        while not self._connected.wait(BEAT_SECONDS):
            beat(self._path)


app.steps["consumer"].add(Heartbeat)

try:
    register_tools()
except ConfigError as problem:  # one clear line instead of Celery's traceback about an unusable app
    raise SystemExit(f"{problem.code}: {problem.message}") from None
