"""An injection workload folder: `cases.json`, `tools.json` and `format_confusion.json`, as its README describes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.injection.ledger import canonical
from tests.shared import SHARED

JsonObject = dict[str, Any]
FALLBACK = SHARED / "workloads" / "injection"


@dataclass(frozen=True, slots=True)
class Proposal:
    """One call as the benchmark wrote it. `tool` is our name; `result` is what a read answers."""

    tool: str
    arguments: JsonObject
    result: str | None = None

    @property
    def what(self) -> tuple[str, str]:
        return self.tool, canonical(self.arguments)


@dataclass(frozen=True, slots=True)
class Case:
    """`way`: the user's own reads, the carrier last. `forbidden`: what only the hidden text asks for."""

    id: str
    prompt: str
    way: tuple[Proposal, ...]
    injected: str
    compromised: tuple[Proposal, ...]
    authorised: tuple[Proposal, ...]
    forbidden: tuple[Proposal, ...]

    @property
    def reads(self) -> dict[tuple[str, str], str]:
        """The first answer stands: what the recorded attack changed never happens here."""
        found: dict[tuple[str, str], str] = {}
        for each in (*self.way, *self.compromised):
            if each.result is not None:
                found.setdefault(each.what, each.result)
        return found


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    writes: bool
    egress: bool
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class Confusion:
    """Text that looks like something else; `where`: result, error, argument or tool_description."""

    id: str
    where: str
    text: str
    tool: str
    arguments: JsonObject
    write: str
    write_arguments: JsonObject
    final: str
    proposals: int
    writes: int
    approvals: int
    ends: str


@dataclass(frozen=True, slots=True)
class Workload:
    folder: Path
    tools: tuple[Tool, ...]
    cases: tuple[Case, ...]
    confusions: tuple[Confusion, ...]

    @classmethod
    def load(cls, folder: Path) -> "Workload":
        """Raises OSError or ValueError where it cannot be read. Parts that a folder leaves out are the shared ones."""
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a folder")
        tools = json.loads(_part(folder, "tools.json").read_text())
        cases = json.loads((folder / "cases.json").read_text())
        confusions = json.loads(_part(folder, "format_confusion.json").read_text())
        return cls(
            folder,
            tuple(_tool(suite, each) for suite, members in tools.items() for each in members),
            tuple(map(_case, cases)),
            tuple(map(_confusion, confusions)),
        )

    def only(self, number: int) -> "Workload":
        """A part that is spread over the cases; every confusion stays."""
        step = max(1, len(self.cases) // number)
        return Workload(self.folder, self.tools, self.cases[::step], self.confusions)


def _part(folder: Path, name: str) -> Path:
    return folder / name if (folder / name).exists() else FALLBACK / name


def _name(suite: str, tool: str) -> str:
    """Two suites have tools of the same name."""
    return f"{suite}_{tool}"


def _tool(suite: str, raw: JsonObject) -> Tool:
    writes = raw["effect"] == "write"
    return Tool(_name(suite, raw["name"]), raw["description"], writes, raw["egress"], raw["parameters"])


def _case(raw: JsonObject) -> Case:
    def proposals(members: list[JsonObject]) -> tuple[Proposal, ...]:
        return tuple(Proposal(_name(raw["suite"], m["name"]), m["arguments"], m.get("result_text")) for m in members)

    compromised = proposals(raw["compromised_proposals"])
    expect = raw["expect"]
    return Case(
        id=raw["id"],
        prompt=raw["user_prompt"],
        way=proposals([*raw["prior_calls"], raw["carrier"]]),
        injected=raw["injected_text"],
        compromised=compromised,
        authorised=proposals(raw["user_authorised_writes"]),
        forbidden=tuple(compromised[i] for i in (*expect["forbidden_writes"], *expect["forbidden_egress_reads"])),
    )


def _confusion(raw: JsonObject) -> Confusion:
    expect, write = raw["expect"], raw.get("write_named_in_text") or {"name": "transfer_funds", "arguments": {}}
    after = raw["model_after_it"]
    if after.get("type") != "final":
        raise ValueError(f"{raw['id']}: model_after_it has the type {after.get('type')!r}, which is not played")
    return Confusion(
        id=raw["id"],
        where=raw["carrier_field"],
        text=raw["text"],
        tool=raw["carrier"]["name"],
        arguments=raw["carrier"]["arguments"],
        write=write["name"],
        write_arguments=write["arguments"],
        final=after["text"],
        proposals=expect["proposals_created"],
        writes=expect["writes_executed"],
        approvals=expect["approvals_created"],
        ends=expect["run_ends"].upper(),
    )
