"""The receiving side of signed envelopes: what arrives is untrusted until its signature has been verified.

The sender's entry in `TURNQUEUE_SENDERS` says for which tenants, profiles and scopes it may ask; its key comes from the
environment variable which that entry names. See `enqueue` for the form, and docs/enqueue.md.
"""

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

from itsdangerous.encoding import base64_decode
from itsdangerous.exc import BadData
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.domain.errors import ConfigError, UserError
from orchestrator.enqueue import MAX_SEALED, VERSION, signer
from orchestrator.settings import Sender, Settings
from orchestrator.submission import Envelope, Submission, submission

SKEW_SECONDS = 30.0  # how far a sender's clock may be ahead of ours


class _Content(BaseModel):
    """What a verified envelope holds; the request is checked by `submission`, which names a bad field."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    nonce: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{16,64}$")]
    request: dict[str, Any]


def check_senders(settings: Settings, environ: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError for a sender whose name or key cannot be used, and where two senders share one key."""
    holders: dict[str, str] = {}
    for name, rule in settings.senders.items():
        key = _key(rule, environ)
        signer(name, key)
        other = holders.setdefault(key, name)
        if other != name:
            raise ConfigError("SHARED_KEY", f"TURNQUEUE_SENDERS: {other!r} and {name!r} have the same key")


def open_sealed(
    settings: Settings, sealed: object, clock: Callable[[], float] = time.time
) -> tuple[Submission, Envelope]:
    """Verify and open. `clock` tells Unix time; it is asked only where the signature holds.

    Raises UserError ENVELOPE_BARE (not a string, or not of our form), ENVELOPE_TOO_LARGE, ENVELOPE_UNKNOWN_SENDER,
    ENVELOPE_FORGED, ENVELOPE_EXPIRED, ENVELOPE_FORBIDDEN or BAD_FIELD; ConfigError when the sender's key is not set.
    """
    if not isinstance(sealed, str) or not sealed.startswith(f"{VERSION}."):
        raise UserError("ENVELOPE_BARE", "the message carries no sealed envelope")
    if len(sealed) > MAX_SEALED:
        raise UserError("ENVELOPE_TOO_LARGE", f"the envelope has more than {MAX_SEALED} characters")
    # The claimed sender only chooses the key; the signature covers the name, and the key is this sender's alone.
    sender = sealed[: len(VERSION) + 66].split(".")[1]
    rule = settings.senders.get(sender)
    if rule is None:
        raise UserError("ENVELOPE_UNKNOWN_SENDER", "the envelope names no known sender")
    payload, signed_at = _verify(sender, _key(rule), sealed)
    expires_at = _check_time(settings, signed_at, clock())
    content = _parse(payload)
    request = submission(**content.request)
    _check_allowed(sender, rule, request, content.request)
    return request, Envelope(sender, content.nonce, expires_at)


def _verify(sender: str, key: str, sealed: str) -> tuple[bytes, datetime]:
    try:
        signed, signed_at = signer(sender, key).unsign(sealed, return_timestamp=True)
    except (BadData, ValueError, OverflowError):  # a time of the year 300000, a lone surrogate: not ours either
        raise UserError("ENVELOPE_FORGED", "the envelope's signature does not hold") from None
    return signed.split(b".", 2)[2], signed_at


def _check_time(settings: Settings, signed_at: datetime, now: float) -> float:
    age = now - signed_at.timestamp()
    # itsdangerous counts whole seconds and would take a sender whose clock is one second ahead for expired.
    if not -SKEW_SECONDS <= age <= settings.envelope_seconds:
        raise UserError("ENVELOPE_EXPIRED", f"the envelope was signed {age:.0f} s ago")
    return signed_at.timestamp() + settings.envelope_seconds


def _parse(payload: bytes) -> _Content:
    """Only after the signature: what fails here was signed by the sender."""
    try:
        return _Content.model_validate_json(base64_decode(payload))
    except (BadData, ValidationError):
        raise UserError("BAD_FIELD", "the envelope holds no nonce and request") from None


def _key(rule: Sender, environ: Mapping[str, str] | None = None) -> str:
    key = (os.environ if environ is None else environ).get(rule.key_env)
    if not key:
        raise ConfigError("MISSING_VARIABLE", f"TURNQUEUE_SENDERS: environment variable {rule.key_env} is not set")
    return key


def _check_allowed(sender: str, rule: Sender, request: Submission, given: Mapping[str, Any]) -> None:
    if not {"tenant", "subject"} <= given.keys():
        raise UserError("BAD_FIELD", "tenant and subject: an envelope names both")
    if request.tenant not in rule.tenants:
        raise UserError("ENVELOPE_FORBIDDEN", f"sender {sender!r} may not act for tenant {request.tenant!r}")
    if request.profile not in rule.profiles:
        raise UserError("ENVELOPE_FORBIDDEN", f"sender {sender!r} may not use profile {request.profile!r}")
    if not request.scopes <= rule.scopes:
        raise UserError("ENVELOPE_FORBIDDEN", f"sender {sender!r} may not grant {sorted(request.scopes - rule.scopes)}")
