"""The audit's hash chain, one per operation: what every link covers. Pure.

    entry_sha256 = SHA-256("audit-entry-v1" 00 JCS{operation_id, kind, subject_id, actor, body})
    sha256       = SHA-256("audit-link-v1" 00 prev[32] seq[8] at[8] SHA-256(tenant)[32] entry_sha256[32])
    prev of seq 1 = SHA-256("audit-genesis-v1" 00 operation_id)

The writer knows the entry; seq, prev, tenant and `at` are the database's to say, so it computes the link, with the
same bytes, in the statement that inserts the row (`store.audit`). Integers are big-endian; `at` is microseconds since
1970 in UTC.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.domain import digests

ENTRY, LINK, GENESIS = "audit-entry-v1", "audit-link-v1", "audit-genesis-v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def entry_sha256(operation_id: str, kind: str, subject_id: str | None, actor: str, body: Mapping[str, Any]) -> str:
    """Digest of what the writer says. Raises ValueError for a body with anything but text, integers, booleans, nulls,
    lists and objects: a fraction would come back from the database in another form than it went in."""
    entry = {
        "operation_id": operation_id, "kind": kind, "subject_id": subject_id, "actor": actor, "body": dict(body),
    }  # fmt: skip
    if not _plain(entry):
        return digests.sha256(ENTRY, entry)
    # Of such values this is the canonical form, made in C: entries are written on the hot path.
    text = json.dumps(entry, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(ENTRY.encode() + b"\0" + text.encode()).hexdigest()


def _plain(value: object) -> bool:
    """Whether all names are ASCII, which sort the same by code point and by UTF-16 unit. Raises ValueError, see above.

    All of the value is looked at, whatever comes first.
    """
    if isinstance(value, Mapping):
        plain = True
        for name, inner in value.items():
            plain = _plain(inner) and isinstance(name, str) and name.isascii() and plain
        return plain
    if isinstance(value, list | tuple):
        found = [_plain(inner) for inner in value]
        return all(found)
    if value is not None and not isinstance(value, str | int):
        raise ValueError(f"an audit body holds no {type(value).__name__}")
    if isinstance(value, int) and abs(value) >= 2**53:
        raise ValueError("an audit body holds no integer beyond 2^53 - 1")
    return True


def link_sha256(*, prev: str, seq: int, at: int, tenant: str, entry: str) -> str:
    """Digest of one link; `at` in microseconds since 1970. Raises ValueError or OverflowError for impossible values."""
    return hashlib.sha256(
        LINK.encode()
        + b"\0"
        + bytes.fromhex(prev)
        + seq.to_bytes(8, "big")
        + at.to_bytes(8, "big", signed=True)
        + hashlib.sha256(tenant.encode()).digest()
        + bytes.fromhex(entry)
    ).hexdigest()


def genesis(operation_id: str) -> str:
    """What the first link of an operation follows."""
    return hashlib.sha256(GENESIS.encode() + b"\0" + operation_id.encode()).hexdigest()


def microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
