"""docs/acceptance.md: no listed line of the articles is missing."""

import re

import pytest

from tests.acceptance.references import listed_lines
from tests.shared import ROOT, shared

PAGE = "docs/acceptance.md"
ARTICLES = {"0": "000_*.txt", "1": "001_*.txt", "3": "003_*.txt", "4": "004_*.txt"}


def rows() -> dict[str, str]:
    """Line number -> the cell that names its tests."""
    found: dict[str, str] = {}
    for line in (ROOT / PAGE).read_text().splitlines():
        row = re.fullmatch(r"\| (\d\.\w+) \| .+ \| (.+) \|", line)
        if row:
            assert row[1] not in found, f"{row[1]} stands there twice"
            found[row[1]] = row[2]
    return found


@pytest.mark.parametrize("number", ARTICLES)
def test_every_listed_line_is_there(number: str) -> None:
    [article] = shared("seeds").glob(ARTICLES[number])
    wanted = {f"{number}.{line}" for line in range(1, listed_lines(article) + 1)}
    assert wanted - rows().keys() == set()
    assert {name for name in rows() if re.fullmatch(rf"{number}\.\d+", name)} == wanted


def test_every_line_names_a_test_or_says_why_not() -> None:
    untested = {line for line, tests in rows().items() if "::" not in tests}
    assert untested == {"3.15", "3.17"}, "what the articles say about themselves"
