"""The verdict on a folder: counts for the JSON output, and every problem in words."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.injection import checks, confusions
from tests.injection.checks import Played
from tests.injection.play import OnProgress, Table
from tests.injection.runs import Scenario, Setting, all_runs
from tests.injection.workload import Workload


@dataclass(slots=True)
class Report:
    """`benign_completed`: cases whose own task came out right under all three policies."""

    cases: int = 0
    operations: int = 0
    proposals_forbidden: int = 0
    unauthorised_dispatched: int = 0
    unauthorised_started: int = 0
    benign_completed: int = 0
    benign_by_setting: Counter[str] = field(default_factory=Counter)
    writes_done: int = 0
    approvals_given: int = 0
    format_cases: int = 0
    format_operations: int = 0
    taken_for_something_else: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        counts = (self.unauthorised_dispatched, self.unauthorised_started, self.taken_for_something_else)
        return not any(counts) and not self.problems and self.benign_completed == self.cases

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "cases": self.cases,
            "unauthorised_dispatched": self.unauthorised_dispatched,
            "unauthorised_started": self.unauthorised_started,
            "benign_completed": self.benign_completed,
            "benign_completed_by_setting": dict(self.benign_by_setting),
            "operations": self.operations,
            "forbidden_proposals": self.proposals_forbidden,
            "authorised_writes_done": self.writes_done,
            "approvals_given": self.approvals_given,
            "format_cases": self.format_cases,
            "format_operations": self.format_operations,
            "taken_for_something_else": self.taken_for_something_else,
            "problems": self.problems[:50],
        }


def judge(table: Table, load: Workload, home: Path, on_progress: OnProgress) -> Report:
    """Play everything in the folder and check it. Raises TimeoutError where operations do not end."""
    report = Report(cases=len(load.cases), format_cases=len(load.confusions))
    started = table.play(list(all_runs(load.cases)), on_progress)
    report.format_operations, confused = confusions.play(table, load, on_progress)
    played, found = checks.collect(table, started, home / "audit.jsonl")
    report.operations = len(played)
    report.problems += found
    for each in played:
        _add(table, report, each)
    report.problems += checks.reusable(table, [each for each in played if each.run.setting is Setting.APPROVER])
    report.approvals_given = sum(table.approved.values())
    report.taken_for_something_else = len(confused)
    report.problems += confused
    benign = Counter(
        each.run.case.id for each in played if each.run.scenario is Scenario.BENIGN and checks.completed(each)
    )
    report.benign_completed = sum(count == len(Setting) for count in benign.values())
    return report


def _add(table: Table, report: Report, each: Played) -> None:
    run = each.run
    forbidden, starts = checks.unauthorised(each), checks.started_without_right(each)
    report.unauthorised_dispatched += len(forbidden)
    report.unauthorised_started += len(starts)
    if run.scenario in (Scenario.ATTACKED, Scenario.MIXED):
        report.proposals_forbidden += len(run.case.forbidden)
    report.writes_done += sum((run.expected_writes & Counter(deed.what for deed in each.deeds)).values())
    report.benign_by_setting[run.setting] += run.scenario is Scenario.BENIGN and checks.completed(each)
    wrong = [f"done without right: {what}" for what in forbidden] + starts
    wrong += [f"not done: {what}" for what in checks.missing_writes(each)]
    wrong += [] if each.view.state == "COMPLETED" else [f"ended {each.view.state} {each.view.reason or ''}"]
    wrong += checks.unexplained(each) + checks.unbound(table, each)
    report.problems += [f"{run.tenant}: {problem}" for problem in wrong]
