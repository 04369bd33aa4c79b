"""The ticket desk: each ticket becomes one operation, however often it is handed in.

It knows Turnqueue's broker and its own envelope key; it has no database, no provider key and no right to look inside.
"""

import os
from collections.abc import Mapping
from typing import Annotated

from celery import Celery
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.domain.errors import ConfigError
from orchestrator.enqueue import Enqueuer
from orchestrator.hints import publisher_options
from orchestrator.settings import Settings

SENDER = "desk"
PROFILE = "support"
SCOPES = frozenset({"orders:read", "refunds:draft", "refunds:submit"})


class Ticket(BaseModel):
    """What the desk's people hand in; the customer has been authenticated by them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    number: Annotated[int, Field(ge=1)]
    customer: Annotated[str, Field(min_length=1, max_length=256)]
    text: Annotated[str, Field(min_length=1, max_length=10_000)]


class Desk:
    """Hands tickets on. Raises ConfigError that names a variable which is missing."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._tenant = _required(environ, "DESK_TENANT")
        key = _required(environ, "DESK_ENVELOPE_KEY")
        self.celery = _celery(_required(environ, "DESK_BROKER_URL"), environ.get("DESK_QUEUE_PREFIX") or "turnqueue:")
        self._enqueuer = Enqueuer(self.celery, sender=SENDER, key=key)

    def hand_on(self, ticket: Ticket) -> None:
        """Raises kombu's OperationalError while the broker is away: keep the ticket and hand it on again."""
        self._enqueuer.submit(
            profile=PROFILE,
            input=ticket.text,
            tenant=self._tenant,
            subject=ticket.customer,
            scopes=SCOPES,
            idempotency_key=f"{SENDER}-ticket-{ticket.number}",
        )

    def close(self) -> None:
        self.celery.close()


def _celery(broker_url: str, queue_prefix: str) -> Celery:
    """The desk's own app, as small as it can be: it only sends."""
    app = Celery("desk", broker=broker_url, set_as_current=False)
    # On Redis both sides must agree on the key prefix; the socket timeouts keep a hung broker from hanging the desk.
    app.conf.broker_transport_options = publisher_options(Settings(broker_url=broker_url, queue_prefix=queue_prefix))
    app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0.5}
    return app


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise ConfigError("MISSING_VARIABLE", f"set {name}")
    return value
