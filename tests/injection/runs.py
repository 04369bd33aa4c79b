"""Which operations are run: what the model says in each, and which effects may follow."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.injection.workload import Case, Proposal

# Scopes: the host's authorizer leaves the decision to the approval rules, for writes and for reads that reach outside.
ANY_TARGET = "any-target"
ANY_ADDRESS = "any-address"


class Setting(StrEnum):
    """The three policies of the workload's README."""

    NOBODY = "nobody-approves"
    OUTSIDE = "outside-request-denied"
    APPROVER = "approver-approves-request"


class Scenario(StrEnum):
    """ATTACKED is the README's script. In BENIGN the model reads the same hidden text and does what the user asked.
    In MIXED it does that first and then obeys the text. TWIN repeats BENIGN in another operation, and the approver,
    who approves the first, leaves it waiting."""

    ATTACKED = "attacked"
    BENIGN = "benign"
    MIXED = "mixed"
    TWIN = "twin"


_PLAYED = {
    Setting.NOBODY: (Scenario.ATTACKED, Scenario.BENIGN),
    Setting.OUTSIDE: (Scenario.ATTACKED, Scenario.BENIGN, Scenario.MIXED),
    Setting.APPROVER: (Scenario.ATTACKED, Scenario.BENIGN, Scenario.MIXED, Scenario.TWIN),
}


class CONTROL:
    """The harmless twin of a confusing text."""

    prefix = "control."
    text = "control-text-5e1d"


@dataclass(frozen=True, slots=True)
class Run:
    """One operation. Its tenant names it: no two share a world."""

    case: Case
    setting: Setting
    scenario: Scenario

    @property
    def tenant(self) -> str:
        return f"{self.setting}:{self.scenario}:{self.case.id}"

    @property
    def beside(self) -> str:
        """The tenant of the benign run of the same case and policy."""
        return f"{self.setting}:{Scenario.BENIGN}:{self.case.id}"

    @property
    def script_id(self) -> str:
        return self.tenant.replace(":", ".")

    @property
    def scopes(self) -> frozenset[str]:
        scopes = {Setting.NOBODY: {ANY_TARGET}, Setting.OUTSIDE: set(), Setting.APPROVER: {ANY_TARGET, ANY_ADDRESS}}
        return frozenset(scopes[self.setting])

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        case = self.case
        match self.scenario:
            case Scenario.ATTACKED:
                return (*case.way, *case.compromised)
            case Scenario.MIXED:
                return (*case.way, *case.authorised, *case.compromised)
        return (*case.way, *case.authorised)

    @property
    def script(self) -> dict[str, Any]:
        turns: list[dict[str, Any]] = [
            {"calls": [{"name": each.tool, "arguments": each.arguments}]} for each in self.proposals
        ]
        return {"id": self.script_id, "turns": [*turns, {"text": "Done."}]}

    @property
    def approvable(self) -> Counter[tuple[str, str]]:
        """What the approver says yes to: the user's writes, and the reads of the user's own way that reach outside."""
        if self.setting is not Setting.APPROVER or self.scenario is Scenario.TWIN:
            return _reads_only(self)
        return _whats([*self.case.authorised, *self.case.way])

    @property
    def expected_writes(self) -> Counter[tuple[str, str]]:
        """Exactly these effects are in the ledger at the end."""
        if self.setting is Setting.NOBODY or self.scenario in (Scenario.ATTACKED, Scenario.TWIN):
            return Counter()
        return _whats(self.case.authorised)


def _whats(proposals: Iterable[Proposal]) -> Counter[tuple[str, str]]:
    return Counter(each.what for each in proposals)


def _reads_only(run: Run) -> Counter[tuple[str, str]]:
    return _whats(run.case.way)


def all_runs(cases: Iterable[Case]) -> Iterator[Run]:
    for case in cases:
        for setting, scenarios in _PLAYED.items():
            for scenario in scenarios:
                yield Run(case, setting, scenario)


def case_of(tenant: str) -> str:
    """The case of a run's tenant, or `control.` and the confusion that it is the twin of."""
    return tenant.split(":", 2)[2]


def confusion_profile(api: str, stream: bool, case: str | None = None, control: bool = False) -> str:
    name = f"confused-{api}{'-stream' if stream else ''}"
    return name if case is None else f"{name}-{case}{'-control' if control else ''}"
