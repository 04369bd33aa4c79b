"""What an attacker, or a sender gone wrong, can put together: envelopes with any content, key, name and time."""

import hashlib
import json
import secrets
import time
from typing import Any

import itsdangerous
from itsdangerous.encoding import base64_encode

from orchestrator.enqueue import VERSION

KEY = "desk-key-of-a-test-0123456789abcdef"
OTHER_KEY = "shop-key-of-a-test-0123456789abcdef"
SENDERS = {
    "desk": {
        "key_env": "DESK_ENVELOPE_KEY",
        "tenants": ["acme"],
        "profiles": ["support"],
        "scopes": ["orders:read", "refunds:draft", "refunds:submit"],
    },
    "shop": {"key_env": "SHOP_ENVELOPE_KEY", "tenants": ["globex"], "profiles": ["support"]},
}
ENVIRON = {"DESK_ENVELOPE_KEY": KEY, "SHOP_ENVELOPE_KEY": OTHER_KEY}


class _At(itsdangerous.TimestampSigner):
    at = 0

    def get_timestamp(self) -> int:
        return self.at


def request(**changes: Any) -> dict[str, Any]:
    """A request that the sender `desk` may make, with changes."""
    return {"profile": "support", "input": "Hello", "tenant": "acme", "subject": "customer-7", "scopes": []} | changes


def content(**changes: Any) -> dict[str, Any]:
    return {"nonce": secrets.token_urlsafe(16), "request": request(**changes)}


def sealed(body: Any, *, sender: str = "desk", key: str = KEY, age: float = 0, salted: str | None = None) -> str:
    """An envelope signed `age` seconds ago. `body`: the content, or bytes to take as they are."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    salt = f"turnqueue.submit.{VERSION}.{salted or sender}"
    signer = _At(key, salt=salt, digest_method=hashlib.sha512, key_derivation="hmac")
    signer.at = int(time.time() - age)
    return signer.sign(f"{VERSION}.{sender}.{base64_encode(raw).decode()}").decode()
