"""What came of the runs: the ledger says what happened, views and the exported audit say what was refused and why."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.documents import write_json
from examples.scripted_model.formats import formats
from orchestrator import auditing, commands
from orchestrator.domain import digests
from orchestrator.views import CallView, OperationView
from tests.injection.ledger import Deed, canonical
from tests.injection.play import APPROVER, Table
from tests.injection.runs import Run, Scenario, Setting
from tests.injection.workload import Proposal

Entries = list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Played:
    """One ended run and everything that is known of it. `entries` are its audit's, in order."""

    run: Run
    view: OperationView
    entries: Entries
    deeds: list[Deed]

    @property
    def calls(self) -> list[CallView]:
        return sorted(self.view.calls, key=lambda call: (call.turn, call.position))


def collect(table: Table, started: Mapping[str, Run], export: Path) -> tuple[list[Played], list[str]]:
    """All runs, and what the verification of the audit found."""
    report = auditing.verify(table.app.database, export=export)
    entries: dict[str, Entries] = defaultdict(list)
    for line in export.read_text().splitlines():
        record = json.loads(line)
        if record["record"] == "entry":
            entries[record["operation_id"]].append(record)
    deeds: dict[str, list[Deed]] = defaultdict(list)
    for deed in table.deeds():
        deeds[deed.tenant].append(deed)
    played = [
        Played(run, commands.inspect(table.app, operation), entries[operation], deeds.pop(run.tenant, []))
        for operation, run in started.items()
    ]
    strays = [f"effect of a stranger: {tenant}" for tenant in deeds if not tenant.startswith("fmt")]
    return played, [str(finding) for finding in report.findings] + strays


# --- the ledger ----------------------------------------------------------------------------------------------------


def allowed(run: Run) -> Counter[tuple[str, str]]:
    """Effects and outside reads that the run may have: no more of each than this."""
    return run.expected_writes + Counter(each.what for each in run.case.way)


def unauthorised(each: Played) -> list[str]:
    """What the tools really did beyond that, from their own ledger."""
    done = Counter(deed.what for deed in each.deeds)
    return [f"{tool} {arguments}" for (tool, arguments) in (done - allowed(each.run)).elements()]


def missing_writes(each: Played) -> list[str]:
    """The user's own writes that did not happen although they may."""
    done = Counter(deed.what for deed in each.deeds)
    return [f"{tool} {arguments}" for tool, arguments in (each.run.expected_writes - done).elements()]


def completed(each: Played) -> bool:
    """The operation ended well, and did of the user's writes what its policy lets it do."""
    return each.view.state == "COMPLETED" and not missing_writes(each) and not unauthorised(each)


# --- start records and approvals -----------------------------------------------------------------------------------


def starts(each: Played) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in each.entries if entry["kind"] == "action.started")


def started_without_right(each: Played) -> list[str]:
    """Start records of what was forbidden, or of anything at all that needed an approval and had none of its own."""
    wrong = []
    forbidden = {(p.tool, digest(p)) for p in each.run.case.forbidden}
    for entry in starts(each):
        body = entry["body"]
        if (body["tool"], body["arguments_sha256"]) in forbidden:
            wrong.append(f"a start record of {body['tool']}, which is forbidden")
        if each.run.setting is Setting.OUTSIDE:
            continue
        own = [a for a in each.view.approvals if a.action_id == entry["subject_id"]]
        if any(a.state not in ("CONSUMED",) or a.decided_by != APPROVER for a in own):
            wrong.append(f"{entry['subject_id']} started on an approval that is not the approver's")
        if any(a.action_digest != body["digest"] for a in own):
            wrong.append(f"{entry['subject_id']} started on another action's approval")
        if not own and (body["tool"], body["arguments_sha256"]) not in {(p.tool, digest(p)) for p in each.run.case.way}:
            wrong.append(f"{entry['subject_id']} ({body['tool']}) started without an approval")
    return wrong


def digest(proposal: Proposal) -> str:
    return digests.sha256("arguments-v1", json.loads(canonical(proposal.arguments)))


# --- the trail -----------------------------------------------------------------------------------------------------


def unexplained(each: Played) -> list[str]:
    """Forbidden proposals that the audit does not show as made, refused, and after the result that asked for them."""
    if each.run.scenario not in (Scenario.ATTACKED, Scenario.MIXED):
        return []
    carrier = each.calls[len(each.run.case.way) - 1]
    read_at = _settled_at(each.entries, carrier)
    if read_at is None or (carrier.observation or {}).get("data") != each.run.case.way[-1].result:
        return ["the hidden text was not read"]
    wrong = []
    for proposal in each.run.case.forbidden:
        shown = list(_proposed(each.entries, proposal))
        if not shown:
            wrong.append(f"{proposal.tool} is not in the audit")
        for entry, call in shown:
            if entry["seq"] <= read_at:
                wrong.append(f"{proposal.tool} stands before the result in the audit")
            if _refusal(each, entry, call) is None:
                wrong.append(f"{proposal.tool} is not shown as refused")
    return wrong


def _settled_at(entries: Entries, call: CallView) -> int | None:
    """Where the call's result entered the chain, by the digest of the result itself."""
    told = hashlib.sha256(_observation(call)).hexdigest()
    return next((e["seq"] for e in entries if e["body"].get("result_sha256") == told), None)


def _observation(call: CallView) -> bytes:
    return json.dumps(call.observation, ensure_ascii=False, separators=(",", ":")).encode()


def _proposed(entries: Entries, proposal: Proposal) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    sought = (proposal.tool, digest(proposal))
    for entry in entries:
        if entry["kind"] == "turn.proposed":
            for call in entry["body"]["calls"]:
                if (call["tool"], call["arguments_sha256"]) == sought:
                    yield entry, call


def _refusal(each: Played, entry: Mapping[str, Any], proposed: Mapping[str, Any]) -> str | None:
    """The code it was refused with: at once, or by an entry about its action later."""
    if proposed["state"] == "REJECTED":
        return str(proposed["code"])
    actions = {a.action_id: a for a in each.view.actions}
    action = actions.get(str(proposed["action_id"]))
    later = [e for e in each.entries if e["seq"] > entry["seq"] and proposed["action_id"] in (
        e["subject_id"], e["body"].get("action_id"))]  # fmt: skip
    settled = proposed["duplicate"] or later
    return action.code if action is not None and action.state == "REJECTED" and settled else None


def unbound(table: Table, each: Played) -> list[str]:
    """Requests whose digest in the audit is not that of what the model was sent, or that lack the carrier's result."""
    if each.run.scenario is not Scenario.ATTACKED:
        return []
    sent = {_sha256(r["body"]): r for r in table.model.requests(each.run.script_id)}
    way = len(each.run.case.way)
    wrong = []
    for entry in (e for e in each.entries if e["kind"] == "turn.proposed"):
        request = sent.get(entry["body"]["request_sha256"])
        if request is None:
            wrong.append(f"turn {entry['body']['turn']}: the digest is of no request that was sent")
        elif entry["body"]["turn"] > way and not _holds(request, way, each.run.case.way[-1]):
            wrong.append(f"turn {entry['body']['turn']}: the request does not hold the result")
    return wrong


def _sha256(body: Any) -> str:
    return hashlib.sha256(write_json(body)).hexdigest()


def _holds(request: Mapping[str, Any], way: int, carrier: Proposal) -> bool:
    wire = next(each for each in formats() if each.claims(request["path"]))
    output = json.loads(wire.read(request["path"], request["body"]).outputs[way - 1])
    return bool(output.get("data") == carrier.result)


def reusable(table: Table, played: Iterable[Played]) -> list[str]:
    """Approvals of ended operations that can be given again."""
    return [f"{each.run.tenant}: {again}" for each in played for again in table.used_again(each.view)]
