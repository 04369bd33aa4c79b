"""Test names that a page of the documentation refers to, and which of them exist."""

import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from tests.shared import ROOT

PAGES = ("docs/acceptance.md", "docs/incidents.md", "docs/faults.md")
_REFERENCE = re.compile(r"`([a-z_/]+/test_\w+\.py::test_\w+)`")
_LISTED = re.compile(r"^\s*(?:•|\d+\.)\s")
_END = re.compile(r"^(?:References|Sources)$")


def referenced(page: str) -> set[str]:
    """Every `folder/test_file.py::test_name` of the page, its path below tests/."""
    return set(_REFERENCE.findall((ROOT / page).read_text()))


@lru_cache(maxsize=1)
def collected() -> frozenset[str]:
    """What pytest finds in the files that any page refers to, without parameters. Collected once."""
    files = sorted({f"tests/{name.split('::')[0]}" for page in PAGES for name in referenced(page)})
    there = [file for file in files if (ROOT / file).exists()]
    plain = ("--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts=")
    command = [sys.executable, "-m", "pytest", *plain, *there]
    env = os.environ | {"TQ_CAMPAIGN": "1"}  # the long ones are there, too
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = (line for line in done.stdout.splitlines() if "::" in line)
    return frozenset(line.removeprefix("tests/").split("[")[0] for line in lines)


def missing(page: str) -> list[str]:
    return sorted(referenced(page) - collected())


def listed_lines(article: Path) -> int:
    """How many bullets and numbered lines an article has before its references."""
    count = 0
    for line in article.read_text().splitlines():
        if _END.match(line):
            break
        count += bool(_LISTED.match(line))
    return count
