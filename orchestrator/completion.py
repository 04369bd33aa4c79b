"""Completion tokens: how a downstream that answered "accepted" reports the outcome later.

A token names one action, is signed with a key that workers hold by reference, and is worth something once: the first
report that settles the action. It is handed to the tool handler (`ctx.completion_token`), never to a model.
"""

import hashlib
import os
import time

import itsdangerous
from itsdangerous.exc import BadData

from orchestrator.domain.errors import ConfigError, UserError
from orchestrator.settings import Settings

_SALT = "turnqueue.complete.v1"


def token(settings: Settings, action_id: str, idempotency_key: str) -> str | None:
    """The action's token, or None where no signing key is configured."""
    if settings.completion_key_env is None:
        return None
    return str(_signer(settings).dumps([action_id, idempotency_key]))


def opened(settings: Settings, sealed: str) -> tuple[str, str]:
    """(action_id, idempotency_key). Raises UserError TOKEN_BAD or TOKEN_EXPIRED, ConfigError without a key."""
    if len(sealed) > 1024:
        raise UserError("TOKEN_BAD", "token: this is no completion token")
    try:
        content, signed_at = _signer(settings).loads(sealed, return_timestamp=True)
    except BadData:
        raise UserError("TOKEN_BAD", "token: its signature does not hold") from None
    # itsdangerous' own check also refuses a token of a worker whose clock is ahead of ours; its signature says enough.
    if time.time() - signed_at.timestamp() > settings.completion_seconds:
        raise UserError("TOKEN_EXPIRED", "token: it is too old; ask an operator to resolve the action")
    match content:
        case [str(action_id), str(key)]:
            return action_id, key
    raise UserError("TOKEN_BAD", "token: this is no completion token")


def _signer(settings: Settings) -> itsdangerous.URLSafeTimedSerializer:
    """Signs with the first key that is named; those after it are earlier ones, whose tokens are still good."""
    names = [name.strip() for name in (settings.completion_key_env or "").split(",") if name.strip()]
    keys = [os.environ.get(name, "") for name in names]
    if not keys or not all(keys):
        raise ConfigError("MISSING_SETTING", "TURNQUEUE_COMPLETION_KEY_ENV must name a variable that holds the key")
    for name, key in zip(names, keys, strict=True):
        if len(key) < 32:
            raise ConfigError("BAD_SETTING", f"{name}: a signing key has at least 32 characters")
    oldest_first = keys[::-1]
    return itsdangerous.URLSafeTimedSerializer(
        oldest_first, salt=_SALT, signer_kwargs={"digest_method": hashlib.sha512, "key_derivation": "hmac"}
    )
