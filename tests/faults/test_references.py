"""docs/faults.md: every fault has its row."""

import re

from tests.shared import ROOT

PAGE = "docs/faults.md"


def test_every_fault_has_its_row() -> None:
    rows = re.findall(r"^\| F(\d+) \|", (ROOT / PAGE).read_text(), re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 41))
