"""docs/incidents.md: every report of the collection is there, with a test of its own."""

import json
import re

from tests.acceptance.references import referenced
from tests.shared import ROOT, shared

PAGE = "docs/incidents.md"


def rows() -> dict[str, str]:
    """Report -> what the page says about it."""
    found = re.findall(r"^\| (inc-\d\d) \| (.+) \|$", (ROOT / PAGE).read_text(), re.M)
    assert len(found) == len(dict(found)), "a report stands there twice"
    return dict(found)


def test_every_report_is_there() -> None:
    reports = json.loads((shared("workloads/incidents") / "incidents.json").read_text())
    assert {report["id"] for report in reports} == rows().keys()


def test_every_report_names_a_test_of_its_own() -> None:
    """By its number in the test's name; so a report cannot be ticked off with another one's test."""
    without = [report for report, said in rows().items() if f"test_{report.replace('-', '_')}_" not in said]
    assert without == []
    named = {name.split("::")[1][5:11] for name in referenced(PAGE) if "::test_inc_" in name}
    assert {f"inc_{report[4:]}" for report in rows()} == named
