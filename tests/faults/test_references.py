"""docs/faults.md: every fault has its row, and every test that it names exists."""

import re

from tests.acceptance.references import missing
from tests.shared import ROOT

PAGE = "docs/faults.md"


def test_every_fault_has_its_row_and_every_test_exists() -> None:
    rows = re.findall(r"^\| F(\d+) \|", (ROOT / PAGE).read_text(), re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 41))
    assert missing(PAGE) == []
