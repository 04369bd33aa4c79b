"""When to try again: a value computed from the failure and the count, never a loop of its own."""

from datetime import datetime, timedelta

_FIRST = 0.5  # seconds; doubled each time
_MOST = 60.0


def backoff(attempts: int, asked: float | None = None, jitter: float = 0.0) -> timedelta:
    """Wait after `attempts` tries: exponential, at least what the other side asked for.

    `jitter` in [0, 1) spreads many waiters over up to half as long again.
    """
    wait = max(min(_MOST, _FIRST * 2 ** min(attempts - 1, 10)), asked or 0.0)
    return timedelta(seconds=wait * (1 + jitter / 2))


def apart(lost: int, lease: float, jitter: float) -> timedelta:
    """Wait after a turn was lost `lost` times in a row, of which the first costs nothing.

    What was in flight in a worker that died was lost together, and one of it may be what the worker died of: spread
    over a time that doubles (from two leases on, to two minutes), it meets the others less and less.
    """
    return timedelta(seconds=0.0 if lost < 2 else jitter * min(120.0, lease * 2 ** min(lost - 1, 10)))


def retry_at(
    now: datetime, attempts: int, limit: int, deadline: datetime, asked: float | None = None, jitter: float = 0.0
) -> datetime | None:
    """When the retry owner may try again, or None: too often, or not before the deadline."""
    if attempts >= limit:
        return None
    at = now + backoff(attempts, asked, jitter)
    return at if at < deadline else None


def may_send_again(
    *,
    key_retention: timedelta | None,
    repeatable_overwrite: bool,
    first_started: datetime | None,
    now: datetime,
    attempts: int,
    limit: int,
) -> bool:
    """Whether an uncertain write may be sent once more: only where a second arrival is harmless.

    That is so where the downstream enforces the idempotency key and still remembers it, or where the write is a
    declared repeatable overwrite. That the downstream does not know of it is no proof by itself: a late request can
    still arrive.
    """
    if attempts >= limit or first_started is None:
        return False
    if key_retention is not None and now < first_started + key_retention:
        return True
    return repeatable_overwrite
