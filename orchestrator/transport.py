"""kombu's transports for workers, with what they need besides. `celeryconfig` puts them in place of kombu's own.

Redis: it survives what is no message at all.

A list in Redis can hold any bytes. Of what it cannot read as a message kombu raises on the worker's own event loop,
which ends the worker or makes it connect anew, so that whoever can write to the broker could keep all workers busy
with starting. Here it is logged and gone: the pop that brought it has taken it from the list. `inbound` judges the
rest. RabbitMQ checks the form of its messages itself.
"""

from queue import Empty
from typing import Any

import structlog
from kombu.transport import pyamqp, redis

log = structlog.get_logger()

# What says that the broker is in trouble and not the message. kombu counts KeyError among it; the messages cause it.
_ERRORS = (*redis.Transport.connection_errors, *redis.Transport.channel_errors)
_TROUBLE: tuple[type[Exception], ...] = tuple(each for each in _ERRORS if each is not KeyError)
_NO_MESSAGE: tuple[type[Exception], ...] = (Empty, *_TROUBLE)


def _dropped(error: Exception | None = None) -> None:
    log.warning("message.dropped", code="MESSAGE_UNREADABLE", error=type(error).__name__ if error else None)


def _is_message(raw: Any) -> bool:
    """Whether it has what kombu relies on, and is not packed: what it unpacks to could be of any size."""
    match raw:
        case {
            "body": str(),
            "headers": dict(headers),
            "properties": {
                "delivery_tag": str(),
                "delivery_info": {"exchange": str(), "routing_key": str()},
            },
        }:
            return not headers.get("compression")
        case _:
            return False


class QoS(redis.QoS):
    """The hash of messages that are not acknowledged yet can hold anything, too, and is read when a worker starts."""

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client, leftmost)
        except _TROUBLE:
            raise
        except Exception as error:  # noqa: BLE001 - whatever its bytes made kombu raise
            _dropped(error)
            self.ack(tag)  # nobody would ever be able to take it


class Channel(redis.Channel):
    QoS = QoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except _NO_MESSAGE:
            raise
        except Exception as error:  # noqa: BLE001 - whatever its bytes made kombu raise
            _dropped(error)
            return True  # as if it had been delivered


class Transport(redis.Transport):
    Channel = Channel

    def _deliver(self, message: Any, queue: str | None) -> None:
        if _is_message(message):
            super()._deliver(message, queue)
        else:
            _dropped()


class _PerConsumer:
    """RabbitMQ counts prefetched messages per consumer. Quorum queues refuse to be consumed with a limit per channel,
    which Celery would set, as it cannot know that a virtual host makes such queues by default.
    """

    def qos_semantics_matches_spec(self, connection: Any) -> bool:
        return True


class AmqpTransport(_PerConsumer, pyamqp.Transport):
    pass


class AmqpsTransport(_PerConsumer, pyamqp.SSLTransport):
    pass
