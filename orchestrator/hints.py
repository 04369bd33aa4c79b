"""Wake-up messages. A hint carries one row id, may be lost, doubled or late, and is not sent where enough are waiting.

Written with kombu in Celery's documented message protocol (version 2): one batch per commit costs less than half of
`apply_async` per message, and the publishing side needs no Celery app.
"""

import json
import threading
import time
import uuid
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import structlog
from kombu import Connection, Exchange, Producer, Queue

from orchestrator.failpoints import failpoint
from orchestrator.settings import Settings

log = structlog.get_logger()
Hint = tuple[str, str, str]  # queue, task name, row id

SUBMIT_QUEUE = "submit"
# Nobody must wait for a broker that is away or hangs: the row is committed, the sweeper publishes it again. So long
# an answer of the broker is waited for, and no further one is asked for after that.
PUBLISH_SECONDS = 3
REST_SECONDS = 2.0  # after a failure nothing is published, so that not every thread finds out for itself
CORE_QUEUES = ("orchestrator", SUBMIT_QUEUE, "reads", "writes")


def transport_options(settings: Settings) -> dict[str, Any]:
    """Bounds that keep a hung broker from hanging us; the same for publishers and workers."""
    if _is_amqp(settings):
        return {"confirm_publish": True, "read_timeout": 10, "write_timeout": 10}
    return {
        "visibility_timeout": 900,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "socket_timeout": 10,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        "health_check_interval": 15,
        "priority_steps": [0],
        "global_keyprefix": settings.queue_prefix,
    }


def publisher_options(settings: Settings) -> dict[str, Any]:
    """The same for whoever only sends: it waits at most PUBLISH_SECONDS for an answer, and connects anew once."""
    names = ("read_timeout", "write_timeout") if _is_amqp(settings) else ("socket_timeout",)
    bounds = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    return transport_options(settings) | bounds | dict.fromkeys(names, PUBLISH_SECONDS)


def _is_amqp(settings: Settings) -> bool:
    return (settings.broker_url or "").startswith("amqp")


def queue(name: str) -> Queue:
    """A durable queue on the default exchange, which routes by queue name without a binding.

    A binding would live in the broker: emptying Redis would lose it, and messages to it would be dropped silently.
    """
    return Queue(name, Exchange(""), routing_key=name, durable=True)


class HintPublisher:
    """One broker connection per process, used under a lock; a failure is logged and left to the sweeper."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._rest_until = 0.0
        self.sent = 0  # messages, for the benchmark
        self.failed = 0  # publishes that the broker did not take

    @cached_property
    def _connection(self) -> Connection:
        options = publisher_options(self._settings)
        return Connection(self._settings.require_broker(), connect_timeout=2, transport_options=options)

    def publish(self, hints: Sequence[Hint]) -> int:
        """Send what is needed; returns how many messages went out."""
        with self._lock:
            if time.monotonic() < self._rest_until:
                return 0
            try:
                return self._publish(hints)
            except Exception as error:  # noqa: BLE001 - transports raise what they like; the sweeper repairs
                log.warning("hint.publish_failed", error=type(error).__name__, hints=len(hints))
                self.failed += 1
                self._reset()
                self._rest_until = time.monotonic() + REST_SECONDS
                return 0

    def filled(self, queue_names: Sequence[str]) -> list[str]:
        """Those of the queues that hold messages; none when the broker does not answer."""
        with self._lock:
            try:
                return [name for name in queue_names if self.waiting(name)]
            except Exception as error:  # noqa: BLE001 - transports raise what they like
                log.warning("hint.look_failed", error=type(error).__name__)
                self._reset()
                return []

    def waiting(self, queue_name: str) -> int:
        """How many messages wait in the queue."""
        declared = self._channel.queue_declare(queue=queue_name, durable=True, auto_delete=False)
        return int(declared.message_count)

    def _publish(self, hints: Sequence[Hint]) -> int:
        until = time.monotonic() + PUBLISH_SECONDS
        wanted: list[Hint] = []
        for name in dict.fromkeys(hint[0] for hint in hints):
            mine = [hint for hint in hints if hint[0] == name]
            room = self._settings.hint_limit - self.waiting(name)
            wanted += mine[: max(0, room)]
            if time.monotonic() > until:
                raise TimeoutError("the broker answers too slowly")
        if not wanted:
            return 0
        with self._producer.batch():
            for name, task, row_id in wanted:
                failpoint("hint.publishing")
                self._send(self._producer, name, task, row_id)
        self.sent += len(wanted)
        return len(wanted)

    def _send(self, producer: Any, name: str, task: str, row_id: str) -> None:
        task_id = str(uuid.uuid4())
        producer.publish(
            json.dumps([[row_id], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]),
            exchange="",
            routing_key=name,
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id=task_id,
            delivery_mode=2,
            headers={
                "lang": "py", "task": task, "id": task_id, "root_id": task_id, "parent_id": None, "group": None,
                "retries": 0, "eta": None, "expires": None, "timelimit": [None, None], "ignore_result": True,
                "argsrepr": f"('{row_id}',)", "kwargsrepr": "{}", "origin": "turnqueue",
            },
        )  # fmt: skip

    @cached_property
    def _channel(self) -> Any:
        return self._connection.default_channel  # unlike channel(), it keeps to the bounds above

    @cached_property
    def _producer(self) -> Any:
        return Producer(self._channel, auto_declare=False)

    def _reset(self, *, polite: bool = False) -> None:
        """Forget a connection that is broken; the next publish opens a new one."""
        for name in ("_producer", "_channel"):
            self.__dict__.pop(name, None)
        broken = self.__dict__.pop("_connection", None)
        if broken is not None:
            try:
                # AMQP takes leave with two questions, and a broker that hangs answers neither.
                broken.collect() if _is_amqp(self._settings) and not polite else broken.release()
            except Exception:  # noqa: BLE001 - it is broken already
                log.debug("hint.release_failed")

    def close(self) -> None:
        with self._lock:
            self._reset(polite=True)
