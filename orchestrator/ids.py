"""Our own ids: a prefix that says what it names, the time (so that they sort by age), and 80 random bits."""

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


def new_id(prefix: str) -> str:
    """For example `op_06dz3k8w9q6g0f7t2v5r1x4y8m`: 26 characters after the prefix."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
