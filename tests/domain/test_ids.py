"""Our own ids: readable prefix, sortable by age, never twice."""

import re
import time

import pytest

from orchestrator.ids import new_id


@pytest.mark.parametrize("prefix", ["op", "call", "act", "apr"])
def test_form(prefix: str) -> None:
    assert re.fullmatch(prefix + r"_[0-9a-hjkmnp-tv-z]{26}", new_id(prefix))


def test_ids_of_the_same_moment_differ() -> None:
    assert len({new_id("op") for _ in range(10_000)}) == 10_000


def test_ids_sort_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for millisecond in (0, 1, 1_000, 1_772_366_400_000, 1_772_366_400_001, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda at=millisecond: at * 1_000_000)
        ids.append(new_id("op"))
    assert ids == sorted(ids)
