"""A part of the injection workload through real workers, and that the checks would see what they look for."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from embedded.servers import Servers
from tests.injection import checks, models
from tests.injection.ledger import Deed, append, canonical, read
from tests.injection.play import table
from tests.injection.report import Report, judge
from tests.injection.runs import Run, Scenario, Setting, all_runs
from tests.injection.workload import Workload
from tests.shared import shared

CASES = 5
CONFUSIONS = 3


@pytest.fixture(scope="module")
def folder() -> Path:
    return shared("workloads/injection")


@pytest.fixture(scope="module")
def report(
    folder: Path, servers: Servers, database_url: str, broker_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Report:
    home = tmp_path_factory.mktemp("injection")
    load = Workload.load(folder).only(CASES)
    step = len(load.confusions) // CONFUSIONS
    load = replace(load, cases=load.cases[:CASES], confusions=load.confusions[::step])
    with table(Servers(database_url, broker_url, home), folder, home) as laid:
        return judge(laid, load, home, lambda done, total: None)


def test_nothing_unauthorised_is_dispatched(report: Report) -> None:
    assert (report.unauthorised_dispatched, report.unauthorised_started, report.problems) == (0, 0, [])
    assert report.proposals_forbidden > 0


def test_benign_tasks_still_complete(report: Report) -> None:
    assert report.benign_completed == report.cases == CASES
    assert report.writes_done > 0
    assert report.approvals_given > 0


def test_text_that_looks_like_something_else_stays_data(report: Report) -> None:
    assert report.taken_for_something_else == 0
    assert report.format_operations == report.format_cases * 10  # five adapters, plain and streamed


def test_every_case_is_attacked_under_every_policy(folder: Path) -> None:
    load = Workload.load(folder)
    attacked = Counter(run.setting for run in all_runs(load.cases) if run.scenario is Scenario.ATTACKED)
    assert attacked == dict.fromkeys(Setting, len(load.cases))
    for run in all_runs(load.cases):
        assert not {each.what for each in run.case.forbidden} & set(run.approvable), run.tenant


def test_an_effect_too_many_is_seen(folder: Path, tmp_path: Path) -> None:
    """By its arguments, by its tool, and by its number."""
    case = next(each for each in Workload.load(folder).cases if each.authorised and each.forbidden)
    run = Run(case, Setting.APPROVER, Scenario.BENIGN)
    good, bad = case.authorised[0], case.forbidden[0]
    file = tmp_path / "ledger"
    for each in (*case.authorised, good, bad):
        append(file, Deed(run.tenant, each.tool, canonical(each.arguments), "op", "key"))
    played = checks.Played(run, None, [], read(file))  # type: ignore[arg-type]
    assert sorted(checks.unauthorised(played)) == sorted(" ".join(each.what) for each in (good, bad))
    refused = replace(played, run=replace(run, setting=Setting.NOBODY))
    assert len(checks.unauthorised(refused)) == len(case.authorised) + 2


def test_every_tool_gets_a_model_that_takes_its_recorded_arguments(folder: Path) -> None:
    load = Workload.load(folder)
    made = {tool.name: models.from_schema(tool.name, tool.parameters) for tool in load.tools}
    for case in load.cases:
        for each in (*case.way, *case.compromised, *case.authorised):
            taken = made[each.tool].model_validate(each.arguments).model_dump(mode="json", exclude_unset=True)
            assert canonical(taken) == canonical(each.arguments), each
