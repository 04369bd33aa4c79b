"""What a test does to a broker behind Turnqueue's back: empty it, put anything into a queue, see what waits there."""

import amqp

from tests.brokers.rabbitmq import channel, clean
from tests.conftest import redis_client

PREFIX = "turnqueue:"  # of the keys in Redis


def is_amqp(url: str) -> bool:
    return url.startswith("amqp")


def forget(url: str) -> None:
    """All that this broker holds is gone: messages, queues, who consumes them."""
    if is_amqp(url):
        clean(url)
    else:
        with redis_client(url) as broker:
            broker.flushall()


def put(url: str, queue: str, raw: bytes) -> None:
    """These bytes as they are: an entry of Redis' list, or a message of RabbitMQ without properties."""
    if is_amqp(url):
        with channel(url) as opened:
            opened.basic_publish(amqp.Message(raw), exchange="", routing_key=queue, mandatory=True)
    else:
        with redis_client(url) as broker:
            broker.lpush(PREFIX + queue, raw)


def waiting(url: str, queue: str) -> int:
    """Messages that nobody has taken."""
    if is_amqp(url):
        with channel(url) as opened:
            declared = opened.queue_declare(queue, passive=True)
            return int(declared.message_count)  # type: ignore[union-attr]
    with redis_client(url) as broker:
        return int(broker.llen(PREFIX + queue))
