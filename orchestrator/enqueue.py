"""The sending side of signed envelopes: how another service enqueues an operation through a broker that nobody trusts.

Imports neither Celery nor the store and reads no settings. An envelope is one line of text:

    tq1.<sender>.<base64url of UTF-8 JSON {"nonce", "request"}>.<time>.<signature>

The signature (itsdangerous, HMAC-SHA512, the sender's shared key) covers everything before it, so that the receiver
parses nothing but the sender's name before it has verified the rest.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from typing import Any, Protocol

import itsdangerous
from itsdangerous.encoding import base64_encode

from orchestrator.domain.errors import ConfigError, UserError
from orchestrator.hints import SUBMIT_QUEUE, queue
from orchestrator.submission import Submission, submission

TASK = "turnqueue.submit"
VERSION = "tq1"
MAX_SEALED = 2 * 1024 * 1024  # characters: MAX_INPUT of the widest text in UTF-8 and base64, and some room
MIN_KEY = 32  # characters; `python -c "import secrets; print(secrets.token_urlsafe(48))"` makes a good one
SENDER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SendsTasks(Protocol):
    """What `Enqueuer` needs of a Celery app."""

    def send_task(self, name: str, args: Any = ..., **options: Any) -> Any: ...


class Enqueuer:
    """Seals a submission and sends it with any Celery app that is connected to Turnqueue's broker.

    app = Celery(broker=..., broker_transport_options={"global_keyprefix": "turnqueue:"})  # Redis: Turnqueue's prefix
    enqueuer = Enqueuer(app, sender="desk", key=os.environ["DESK_ENVELOPE_KEY"])
    enqueuer.submit(profile="support", input="Where is my parcel?", tenant="acme", subject="customer-7",
                    idempotency_key="ticket-4711")

    Raises ConfigError where the sender's name or the key cannot be used.
    """

    def __init__(self, app: SendsTasks, *, sender: str, key: str) -> None:
        signer(sender, key)
        self._app = app
        self._sender = sender
        self._key = key

    def submit(
        self, *, profile: str, input: str, tenant: str, subject: str, scopes: Iterable[str] = (),
        idempotency_key: str | None = None,
    ) -> None:  # fmt: skip
        """Send one request. Raises UserError that names the field, and what the Celery app raises for its broker.

        After any error send it again with the same `idempotency_key`: that makes one operation, however often it
        arrives. The result is read from Turnqueue, not from the broker.

        RabbitMQ confirms and drops what no queue takes, so it is told to hand that back (`mandatory`): the app needs
        `confirm_publish` in its `broker_transport_options` to hear of it, and of a message that was not taken at all.
        """
        request = submission(
            profile=profile, input=input, tenant=tenant, subject=subject, scopes=frozenset(scopes),
            idempotency_key=idempotency_key,
        )  # fmt: skip
        sealed = seal(request, sender=self._sender, key=self._key)
        self._app.send_task(
            TASK, args=[sealed], queue=queue(SUBMIT_QUEUE), serializer="json", argsrepr="('<sealed>',)",
            ignore_result=True, mandatory=True,
        )  # fmt: skip


def seal(request: Submission, *, sender: str, key: str) -> str:
    """The envelope's text. Raises ConfigError for an unusable sender or key, UserError when it would be too long."""
    body = request.model_dump(mode="json") | {"scopes": sorted(request.scopes)}
    content = {"nonce": secrets.token_urlsafe(16), "request": body}
    payload = base64_encode(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()).decode()
    sealed = signer(sender, key).sign(f"{VERSION}.{sender}.{payload}").decode()
    if len(sealed) > MAX_SEALED:
        raise UserError("BAD_FIELD", f"input: too long for an envelope ({len(sealed)} of {MAX_SEALED} characters)")
    return sealed


def signer(sender: str, key: str) -> itsdangerous.TimestampSigner:
    """Signs and verifies one sender's envelopes; the salt keeps the key's other uses apart."""
    if not SENDER_NAME.fullmatch(sender):
        raise ConfigError("BAD_SENDER", "sender: 1 to 64 letters, digits, _ or -")
    if len(key) < MIN_KEY:
        raise ConfigError("BAD_KEY", f"the envelope key of sender {sender!r} has fewer than {MIN_KEY} characters")
    return itsdangerous.TimestampSigner(
        key, salt=f"turnqueue.submit.{VERSION}.{sender}", digest_method=hashlib.sha512, key_derivation="hmac"
    )
