"""Signed, expiring envelopes: how another service enqueues an operation through a broker that nobody trusts.

Sealed with the sender's shared key (itsdangerous, HMAC-SHA512), valid for a short time, usable once. The sender's entry
in `TURNQUEUE_SENDERS` says for which tenants, profiles and scopes it may ask.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable
from typing import Any, Protocol

import itsdangerous
from itsdangerous.exc import BadData, SignatureExpired

from orchestrator.commands import Envelope, Submission, submission
from orchestrator.domain.errors import ConfigError, UserError
from orchestrator.settings import Sender, Settings

_SALT = "turnqueue.submit.v1"  # separates these signatures from any other use of the same key
TASK = "turnqueue.submit"


class SendsTasks(Protocol):
    """What `Enqueuer` needs of a Celery app."""

    def send_task(self, name: str, args: Any = ..., **options: Any) -> Any: ...


def _signer(key: str) -> itsdangerous.URLSafeTimedSerializer:
    return itsdangerous.URLSafeTimedSerializer(
        key, salt=_SALT, signer_kwargs={"digest_method": hashlib.sha512, "key_derivation": "hmac"}
    )


class Enqueuer:
    """The sending side: seals a submission and sends it with any Celery app connected to Turnqueue's broker.

    enqueuer = Enqueuer(celery_app, sender="shop", key=os.environ["SHOP_ENVELOPE_KEY"])
    enqueuer.submit(profile="support", input="Where is my parcel?", tenant="acme", subject="customer-7",
                    idempotency_key="ticket-4711")
    """

    def __init__(self, app: SendsTasks, *, sender: str, key: str, queue: str = "submit") -> None:
        self._app = app
        self._sender = sender
        self._key = key
        self._queue = queue

    def submit(
        self, *, profile: str, input: str, tenant: str, subject: str, scopes: Iterable[str] = (),
        idempotency_key: str | None = None,
    ) -> None:  # fmt: skip
        """Raises UserError that names the field. The result is read from Turnqueue, not from the broker."""
        request = submission(
            profile=profile, input=input, tenant=tenant, subject=subject, scopes=frozenset(scopes),
            idempotency_key=idempotency_key,
        )  # fmt: skip
        sealed = seal(request, sender=self._sender, key=self._key)
        self._app.send_task(TASK, args=[sealed], queue=self._queue, argsrepr="(sealed,)", ignore_result=True)


def seal(request: Submission, *, sender: str, key: str) -> str:
    """The envelope's text: sender, a nonce, the time, the request, and the signature over all of it."""
    body = request.model_dump(mode="json") | {"scopes": sorted(request.scopes)}
    content = {"sender": sender, "nonce": secrets.token_urlsafe(16), "request": body}
    return str(_signer(key).dumps(content))


def open_sealed(settings: Settings, sealed: str) -> tuple[Submission, Envelope]:
    """Verify and open. Raises UserError ENVELOPE_BAD, ENVELOPE_EXPIRED, ENVELOPE_FORBIDDEN or BAD_FIELD.

    Nothing of the content is used before the signature has been verified, but for the sender's name that chooses the
    key to verify with.
    """
    sender, rule = _claimed_sender(settings, sealed)
    signer = _signer(_key(rule))
    try:
        content, signed_at = signer.loads(sealed, max_age=int(settings.envelope_seconds), return_timestamp=True)
    except SignatureExpired:
        raise UserError("ENVELOPE_EXPIRED", "the envelope is too old") from None
    except BadData:
        raise UserError("ENVELOPE_BAD", "the envelope's signature does not hold") from None
    if not isinstance(content.get("request"), dict) or not isinstance(content.get("nonce"), str):
        raise UserError("ENVELOPE_BAD", "the envelope has no request")
    request = submission(**content["request"])
    _check_allowed(sender, rule, request)
    expires_at = signed_at.timestamp() + settings.envelope_seconds
    return request, Envelope(sender, content["nonce"], expires_at)


def _claimed_sender(settings: Settings, sealed: str) -> tuple[str, Sender]:
    valid, content = _signer("").loads_unsafe(sealed)
    sender = content.get("sender") if isinstance(content, dict) else None
    rule = settings.senders.get(sender) if isinstance(sender, str) else None
    if valid or rule is None or not isinstance(sender, str):
        raise UserError("ENVELOPE_BAD", "the envelope names no known sender")
    return sender, rule


def _key(rule: Sender) -> str:
    key = os.environ.get(rule.key_env)
    if not key:
        raise ConfigError("MISSING_VARIABLE", f"TURNQUEUE_SENDERS: environment variable {rule.key_env} is not set")
    return key


def _check_allowed(sender: str, rule: Sender, request: Submission) -> None:
    if request.tenant not in rule.tenants:
        raise UserError("ENVELOPE_FORBIDDEN", f"sender {sender!r} may not act for tenant {request.tenant!r}")
    if request.profile not in rule.profiles:
        raise UserError("ENVELOPE_FORBIDDEN", f"sender {sender!r} may not use profile {request.profile!r}")
    if not request.scopes <= rule.scopes:
        raise UserError("ENVELOPE_FORBIDDEN", f"sender {sender!r} may not grant {sorted(request.scopes - rule.scopes)}")
