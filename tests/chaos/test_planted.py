"""Bugs planted in the real code: each is found, for a reason that the table gives; without one nothing is found.

The hunts are a campaign (`TQ_CAMPAIGN=1`): those of a few scenarios, or with `TQ_PLANTED=all` every one.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.planted import LANES, SECONDS, ground, hunt
from tests.chaos.planted_bugs import BUGS
from tests.chaos.planted_hook import VARIABLE, Edit, OutOfDate, Planted, edited, install, source_of
from tests.chaos.planted_scenarios import SCENARIOS
from tests.shared import ROOT

QUICK = {"uncertain", "zombies", "hints_only", "approvals", "altered", "stale_sweeper"}
CHOSEN = sorted(SCENARIOS.keys() if os.environ.get("TQ_PLANTED") == "all" else QUICK)
SOUGHT = [name for name, bug in BUGS.items() if bug.scenario in CHOSEN]
KINDS = {f"I{number}" for number in range(1, 12)} | {"crash", "rest"}
Finding = dict[str, Any]

pytestmark = pytest.mark.timeout(2400)  # for all of them, of which the first test to ask waits for its own


@pytest.fixture(scope="module")
def findings() -> Iterator[dict[str, "Future[Finding]"]]:
    """All runs, several at a time: by the name of the bug, and by that of the scenario for one without a bug."""
    with ground(LANES) as here, ThreadPoolExecutor(LANES + 1) as runs:
        found = {name: runs.submit(hunt, here, "", name, 1, 0.0) for name in CHOSEN}
        found |= {name: runs.submit(hunt, here, name, BUGS[name].scenario, 1, SECONDS) for name in SOUGHT}
        yield found
        runs.shutdown(cancel_futures=True)


@pytest.mark.campaign
@pytest.mark.parametrize("scenario", CHOSEN)
def test_nothing_is_found_without_a_bug(scenario: str, findings: dict[str, "Future[Finding]"]) -> None:
    finding = findings[scenario].result()
    assert not finding["by"], finding["what"]
    assert finding["counts"]["accepted"] > 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", SOUGHT)
def test_a_planted_bug_is_found(name: str, findings: dict[str, "Future[Finding]"]) -> None:
    finding = findings[name].result()
    assert finding["caught"], f"found {finding['by']} instead of {sorted(BUGS[name].shows)}: {finding['what']}"


# --- the table -----------------------------------------------------------------------------------------------------


def test_the_table_is_long_enough_and_every_scenario_is_for_something() -> None:
    assert len(BUGS) >= len(SOUGHT) >= 20
    assert {bug.scenario for bug in BUGS.values()} == SCENARIOS.keys()
    assert not BUGS.keys() & SCENARIOS.keys()


def test_the_page_has_all_of_them() -> None:
    page = (ROOT / "docs/planted-bugs.md").read_text()
    rows = [f"| `{name}` | {bug.what} | {', '.join(sorted(bug.shows))} |" for name, bug in sorted(BUGS.items())]
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


@pytest.mark.parametrize("name", BUGS)
def test_the_snippets_stand_in_the_source_and_what_takes_their_place_compiles(name: str) -> None:
    bug = BUGS[name]
    assert bug.what.endswith(".")
    assert bug.shows
    assert bug.shows <= KINDS
    for module in {edit.module for edit in bug.edits}:
        source = source_of(module).read_text()
        planted = edited(source, [edit for edit in bug.edits if edit.module == module])
        compile(planted, module, "exec")
        assert planted != source


# --- the hook ------------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of its own in a place from which it can be imported, with its bytecode cached already."""
    name = "planted_example"
    (tmp_path / f"{name}.py").write_text("def answer() -> int:\n    return 40 + 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    subprocess.run([sys.executable, "-m", "compileall", "-q", tmp_path], check=True)
    before = list(sys.meta_path)
    yield name
    sys.meta_path[:] = before
    sys.modules.pop(name, None)


def plant(module: str, old: str, new: str) -> Planted:
    return install({"it": (Edit(module, old, new),)}, {VARIABLE: "it"})


def test_a_module_is_edited_as_it_is_imported_and_its_file_and_cache_stay_as_they_are(module: str) -> None:
    finder = plant(module, "40 + 2", "40 - 2")
    assert importlib.import_module(module).answer() == 38
    assert finder.loaded == finder.modules == {module}
    sys.meta_path.remove(finder)
    del sys.modules[module]
    assert importlib.import_module(module).answer() == 42


@pytest.mark.parametrize("old", ["40 + 3", "r"])
def test_a_snippet_that_is_not_there_exactly_once_fails_the_import(old: str, module: str) -> None:
    plant(module, old, "")
    with pytest.raises(OutOfDate, match=r"stands there \d times"):
        importlib.import_module(module)


def test_a_bug_cannot_be_planted_in_what_is_imported_already(module: str) -> None:
    importlib.import_module(module)
    with pytest.raises(RuntimeError, match="imported before"):
        plant(module, "40", "41")


def test_without_the_variable_nothing_is_planted_and_an_unknown_name_is_refused(module: str) -> None:
    assert install({"it": (Edit(module, "40", "41"),)}, {}).modules == set()
    with pytest.raises(KeyError):
        install({}, {VARIABLE: "it"})
