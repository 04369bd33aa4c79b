"""The only module that imports Celery: a few lines per task, ids only, all decisions elsewhere.

Started by `celery -A orchestrator.tasks worker -Q <queues>`. A message is a hint: its task claims the named row if that
is due, then goes on claiming due rows of its queue until its time slice is used or nothing is due.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import structlog
from celery import Celery, bootsteps, signals
from celery.exceptions import Reject
from celery.utils.log import get_task_logger
from celery.worker import consumer, state

from orchestrator import commands, dispatch, envelope, inbound, turn
from orchestrator.app import App, load_registry
from orchestrator.auditing import check_anchors
from orchestrator.domain.errors import ConfigError, TurnqueueError, Unavailable, UserError
from orchestrator.drain import drain
from orchestrator.engine import Wake
from orchestrator.heartbeat import BEAT_SECONDS, beat
from orchestrator.hints import CORE_QUEUES, queue
from orchestrator.logs import configure
from orchestrator.settings import Settings
from orchestrator.watchdog import Seen, Watchdog
from store import actions, calls, operations
from store.revisions import check_migrated

log = structlog.get_logger()
celery_log = get_task_logger(__name__)
app = Celery("turnqueue")
app.config_from_object("celeryconfig")
app.Task.max_retries = 0

DEFER_SECONDS = 2.0  # between two tries to store an envelope
DATABASE_SECONDS = 60.0  # for the database's first answer; then the restart policy's turn has come
AGAIN_SECONDS = 1.0  # a second SIGTERM this much later is meant
EXIT_LEFT = 76  # told to stop a second time


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


def _drain(step: Callable[[str | None], bool], hint: str, more: Callable[[], Wake | None]) -> None:
    try:
        failure = drain(process_app(), step, hint, more)
    except Exception as error:  # noqa: BLE001 - its text may hold what a message must not
        raise _unexpected(error) from None
    if failure is not None:
        raise TaskFailed(type(failure).__name__)


@app.task(name="turnqueue.advance")
def advance(operation_id: str) -> None:
    """Advance the named operation, or the ones longest due, by one model turn each."""
    root = process_app()

    def more() -> Wake | None:
        with root.database.autocommit() as connection:
            rows = operations.due(connection, 1)
        return Wake("orchestrator", rows[0]) if rows else None

    _drain(lambda hint: turn.advance(root, hint), str(operation_id), more)


@app.task(name="turnqueue.submit")
def submit(*args: Any, **kwargs: Any) -> None:
    """Create an operation from one signed envelope. Anything else creates nothing and is logged with its code."""
    root = process_app()
    sealed = args[0] if len(args) == 1 and not kwargs else None
    try:
        request, proof = envelope.open_sealed(root.settings, sealed, root.clock)
        created = commands.submit(root, request, proof)
    except UserError as error:
        log.warning("envelope.refused", code=error.code, reason=error.message)
        return
    except TurnqueueError as error:
        # Unlike a hint, an envelope is not in the database yet: it goes back to the broker until it expires.
        log.warning("envelope.deferred", code=error.code)
        root.stopping.wait(DEFER_SECONDS)
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

    _drain(lambda hint: dispatch.run_one(root, queue_name, hint), str(row_id), more)


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
            check_anchors(root.database, root.settings)
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


@signals.worker_process_init.connect
def _own_app(**_: Any) -> None:
    """A child of the prefork pool must not share its parent's connections."""
    process_app.cache_clear()


_told: list[float] = []  # when this process was told to stop


@signals.worker_shutting_down.connect
def _stop(**_: Any) -> None:
    """Claim nothing more, finish the steps at hand. Told again, end at once: what is in flight then is what a dead
    worker leaves behind, and is swept up."""
    process_app().stopping.set()
    _told.append(time.monotonic())
    if _told[-1] - _told[0] > AGAIN_SECONDS:
        os.write(2, b"worker.left: told to stop again, the steps in flight are left to the sweeper\n")
        os._exit(EXIT_LEFT)


@signals.worker_shutdown.connect
def _close(**_: Any) -> None:
    if process_app.cache_info().currsize:
        process_app().close()


class Consumer(consumer.Consumer):
    """Celery's consumer behind `inbound`: what is not one of our messages is dropped and logged by its code."""

    received = 0  # messages so far

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        handle = super().create_task_handler(*args, **kwargs)
        tasks = frozenset(name for name in self.app.tasks if not name.startswith("celery."))  # not its built-in ones

        def judged(message: Any) -> None:
            self.received += 1
            problem = inbound.problem(
                message.headers, message.content_type, message.content_encoding, message.body, tasks
            )
            if problem is None:
                handle(message)
            else:
                log.warning("message.dropped", code=problem)
                message.reject_log_error(celery_log, self.connection_errors)  # type: ignore[attr-defined]

        return judged


@signals.worker_ready.connect
def _watch(sender: Any, **_: Any) -> None:
    """`sender` is the consumer, which outlives its connections."""

    def look() -> Seen:
        places = sender.controller.concurrency
        return Seen(
            received=sender.received,
            connected=sender.connection is not None,
            # Right after a reconnect Celery takes fewer messages than it has places for.
            room=len(state.reserved_requests) < min(places, sender.qos.value or places),
            queues=tuple(sender.app.amqp.queues.consume_from),
            busy=len(state.active_requests),
        )

    Watchdog(process_app(), look).start()


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
