"""Which provider each acceptance test runs on (see `conftest.py`)."""

import os
import re
import subprocess
import sys

from adapters.registry import ADAPTERS
from tests.shared import ROOT

MODES = [f"{api}{way}" for api in ADAPTERS for way in ("", "-stream")]
_ID = re.compile(rf"(\w+\.py::\w+)\[(?:({'|'.join(ADAPTERS)})(-stream)?)?-?(.*)\]$")


def collected(wanted: str | None) -> dict[str, dict[str, set[str]]]:
    """Test -> provider (with `-stream` where it is one) -> its cases."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
    plain = ("--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "tests/acceptance")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain], cwd=ROOT, env=env | ({"LAB_API": wanted} if wanted else {}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, dict[str, set[str]]] = {}
    for line in done.stdout.splitlines():
        named = _ID.search(line)
        if named and named[2]:
            found.setdefault(named[1], {}).setdefault(named[2] + (named[3] or ""), set()).add(named[4])
    return found


def test_every_test_meets_every_provider_and_every_case_is_run() -> None:
    everything, daily = collected("all"), collected(None)
    assert daily.keys() == everything.keys()
    assert len(daily) > 90
    for test, modes in daily.items():
        assert sorted(mode.removesuffix("-stream") for mode in modes) == sorted(ADAPTERS), test
        assert 2 <= sum(mode.endswith("-stream") for mode in modes) <= 3, test
        assert set(everything[test]) == set(MODES)
        assert set.union(*modes.values()) == everything[test][MODES[0]], test
