"""Retrying is a value: when, or not any more."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.retry import backoff, may_send_again, retry_at

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 0.5), (2, 1), (3, 2), (8, 60), (9, 60), (10_000, 60)])
def test_backoff_doubles_up_to_a_minute(attempts: int, seconds: float) -> None:
    assert backoff(attempts) == timedelta(seconds=seconds)


def test_backoff_waits_at_least_what_was_asked() -> None:
    assert backoff(1, asked=30) == timedelta(seconds=30)
    assert backoff(8, asked=30) == timedelta(seconds=60)
    assert backoff(1, asked=3600) == timedelta(hours=1)


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_jitter_spreads_over_up_to_half_as_long_again(attempts: int, jitter: float) -> None:
    assert backoff(attempts) <= backoff(attempts, jitter=jitter) <= backoff(attempts) * 1.5


@given(st.floats(0, 1, exclude_max=True))
def test_those_who_were_told_the_same_wait_are_spread_too(jitter: float) -> None:
    told = timedelta(seconds=600)
    assert told <= backoff(1, asked=600, jitter=jitter) <= told * 1.5
    assert backoff(1, asked=600, jitter=0.5) == told * 1.25


def test_retry_stops_at_the_limit() -> None:
    far = NOW + timedelta(days=1)
    assert retry_at(NOW, 2, 3, far) == NOW + SECOND
    assert retry_at(NOW, 3, 3, far) is None
    assert retry_at(NOW, 4, 3, far) is None


def test_retry_stops_at_the_deadline() -> None:
    assert retry_at(NOW, 1, 3, NOW + timedelta(seconds=0.51)) == NOW + timedelta(seconds=0.5)
    assert retry_at(NOW, 1, 3, NOW + timedelta(seconds=0.5)) is None


AGAIN: dict[str, Any] = {
    "key_retention": timedelta(hours=1), "repeatable_overwrite": False, "first_started": NOW, "now": NOW + SECOND,
    "attempts": 1, "limit": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),  # the downstream enforces the key and remembers it
        ({"key_retention": None}, False),  # "absent" alone is no proof: a late request can still arrive
        ({"key_retention": None, "repeatable_overwrite": True}, True),
        ({"now": NOW + timedelta(hours=1)}, False),  # the very end of the retention is too late
        ({"now": NOW + timedelta(hours=1) - timedelta(microseconds=1)}, True),
        ({"now": NOW + timedelta(hours=2), "repeatable_overwrite": True}, True),
        ({"attempts": 2}, True),
        ({"attempts": 3}, False),
        ({"attempts": 3, "repeatable_overwrite": True}, False),
        ({"first_started": None}, False),  # it never started, so nothing is uncertain
    ],
)
def test_may_send_again(changed: dict[str, Any], expected: bool) -> None:
    assert may_send_again(**(AGAIN | changed)) is expected
