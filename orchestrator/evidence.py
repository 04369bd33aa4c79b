"""The audit as records (JSON objects, one export line each), and whether they hold. Pure; `scripts/verify_audit.py`
does the same with the standard library only, from the description in docs/audit.md.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestrator import binding
from orchestrator.domain import chain
from orchestrator.domain.operation import TERMINAL

ENTRY_FIELDS = (
    "operation_id", "seq", "tenant", "kind", "subject_id", "actor", "body", "at",
    "entry_sha256", "prev_sha256", "sha256",
)  # fmt: skip
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What does not hold, and where: a place in an operation's chain, one call, or a line of the anchor file."""

    code: str
    operation_id: str | None = None
    seq: int | None = None
    call_key: str | None = None
    line: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """An anchored head."""

    seq: int
    sha256: str
    line: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All records of one operation. `operation` is None where only entries or anchors speak of it."""

    operation_id: str
    operation: Mapping[str, Any] | None = None
    entries: Sequence[Mapping[str, Any]] = ()
    calls: Sequence[Mapping[str, Any]] = ()
    points: Sequence[Point] = field(default=())


# --- records -------------------------------------------------------------------------------------------------------


def entry_record(row: Mapping[str, Any]) -> dict[str, Any]:
    at = row["at"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"record": "entry", **{name: row[name] for name in ENTRY_FIELDS}, "at": at}


def operation_record(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"record": "operation", **row}


def call_record(
    operation: Mapping[str, Any], call: Mapping[str, Any], turn: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`facts` are taken from the rows as they are now, digests recomputed; arguments and results themselves stay."""
    request = (
        {name: turn[name] for name in ("api", "adapter_revision", "request_sha256", "response_id")} if turn else {}
    )
    return {
        "record": "call",
        "operation_id": call["operation_id"],
        "call_key": call["call_key"],
        "settled": call["observation"] is not None,
        "duplicate": call["duplicate"],
        "facts": binding.facts(operation, call, call["idempotency_key"], request),
        "binding": call["binding"],
        "binding_sha256": call["binding_sha256"],
    }


# --- checks --------------------------------------------------------------------------------------------------------


def check(evidence: Evidence) -> Finding | None:
    """The first wrong row of one operation: of its chain, against its anchors, then of its calls."""
    broken = _chain(evidence)
    differing = _anchors(evidence)
    if broken and differing:
        return min(broken, differing, key=lambda f: f.seq if f.seq is not None else -1)
    found = broken or differing
    if found or evidence.operation is None:
        return found
    return next(_statements(evidence, evidence.operation), None)


def _chain(evidence: Evidence) -> Finding | None:
    operation_id, prev = evidence.operation_id, chain.genesis(evidence.operation_id)
    if not all(type(entry.get("seq")) is int for entry in evidence.entries):
        return Finding("MALFORMED", operation_id, detail="seq is not an integer")
    for expected, entry in enumerate(sorted(evidence.entries, key=lambda entry: int(entry["seq"])), 1):
        seq = entry["seq"]
        if seq > expected:
            return Finding("MISSING", operation_id, expected, detail="the row is gone")
        if seq < expected:
            return Finding("DUPLICATE", operation_id, seq, detail="there are two rows of this place")
        code = _entry_problem(operation_id, entry, prev)
        if code is not None:
            return Finding(code, operation_id, seq, detail=_WHY[code])
        prev = entry["sha256"]
    return None


_WHY = {
    "MALFORMED": "a field is not what it must be",
    "ENTRY_CHANGED": "operation, kind, subject, actor or body are not those that entry_sha256 covers",
    "NOT_LINKED": "prev_sha256 is not the sha256 of the row before",
    "LINK_CHANGED": "seq, tenant, time, entry or sha256 are not those that were written",
}


def _entry_problem(operation_id: str, entry: Mapping[str, Any], prev: str) -> str | None:
    at = _microseconds(entry.get("at"))
    digests = [entry.get(name) for name in ("entry_sha256", "prev_sha256", "sha256")]
    named = [entry.get(name) for name in ("tenant", "kind", "actor")]
    if at is None or not all(isinstance(d, str) and _SHA256.fullmatch(d) for d in digests):
        return "MALFORMED"
    if not all(isinstance(n, str) for n in named) or not isinstance(entry.get("body"), Mapping):
        return "MALFORMED"
    if "subject_id" not in entry:
        return "MALFORMED"
    try:
        said = chain.entry_sha256(
            operation_id, entry["kind"], entry["subject_id"], entry["actor"], entry["body"]
        )  # fmt: skip
        link = chain.link_sha256(
            prev=entry["prev_sha256"], seq=entry["seq"], at=at, tenant=entry["tenant"], entry=entry["entry_sha256"]
        )
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "MALFORMED"
    if said != entry["entry_sha256"]:
        return "ENTRY_CHANGED"
    if entry["prev_sha256"] != prev:
        return "NOT_LINKED"
    return None if link == entry["sha256"] else "LINK_CHANGED"


def _microseconds(at: Any) -> int | None:
    if not isinstance(at, str) or not _AT.fullmatch(at):
        return None
    try:
        return chain.microseconds(datetime.fromisoformat(at))
    except ValueError:
        return None


def _anchors(evidence: Evidence) -> Finding | None:
    """A chain alone shows neither a cut end nor a rewriting from some row on; a head that was anchored does."""
    held = {entry["seq"]: entry.get("sha256") for entry in evidence.entries if type(entry.get("seq")) is int}
    last = max(held, default=0)
    agreed = 0
    for point in sorted(evidence.points, key=lambda p: p.seq):
        if point.seq > last:
            detail = f"the chain ends here; line {point.line} has anchored row {point.seq}"
            return Finding("TRUNCATED", evidence.operation_id, last + 1, line=point.line, detail=detail)
        if point.seq in held and held[point.seq] != point.sha256:
            detail = f"line {point.line} has another sha256; rows up to {agreed} are as anchored"
            return Finding("REWRITTEN", evidence.operation_id, point.seq, line=point.line, detail=detail)
        agreed = point.seq
    return None


# --- statements ----------------------------------------------------------------------------------------------------


def _statements(evidence: Evidence, operation: Mapping[str, Any]) -> Iterator[Finding]:
    """What the entries say, against the operation and its calls."""
    entries = sorted(evidence.entries, key=lambda entry: int(entry["seq"]))
    operation_id = evidence.operation_id
    if not entries or entries[0]["kind"] != "operation.submitted":
        yield Finding("NO_BEGINNING", operation_id, 1, detail="the first entry is not operation.submitted")
    for entry in entries:
        if entry["tenant"] != operation["tenant"]:
            yield Finding("TENANT_CHANGED", operation_id, entry["seq"], detail="the operation's tenant is another")
    ended = [entry for entry in entries if entry["kind"] == "operation.ended"]
    if operation["state"] in TERMINAL and not ended:
        yield Finding("TRUNCATED", operation_id, len(entries) + 1, detail="the operation has ended, its audit has not")
    for entry in ended:
        if entry["body"].get("state") != operation["state"]:
            yield Finding("STATE_CHANGED", operation_id, entry["seq"], detail="the operation's state is another")
    yield from _calls(evidence, entries)


def _calls(evidence: Evidence, entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    proposed = {call["call_key"]: (entry["seq"], call) for entry, call in _proposals(entries)}
    for entry in entries:
        key = entry["subject_id"]
        if entry["kind"] == "call.redirected" and key in proposed:  # a person edited the action that it waited for
            proposed[key] = (entry["seq"], {**proposed[key][1], "action_id": entry["body"].get("action_id")})
    settled = dict(_settlements(entries))
    rows = {call["call_key"]: call for call in evidence.calls}
    for key, (seq, call) in proposed.items():
        if key not in rows:
            yield Finding("CALL_MISSING", evidence.operation_id, seq, key, detail="proposed, and its row is gone")
            continue
        facts = rows[key]["facts"]
        for name in ("call_id", "tool", "action_id", "arguments_sha256"):
            if facts.get(name) != call.get(name):
                yield Finding("CALL_CHANGED", evidence.operation_id, seq, key, detail=f"{name} is not as proposed")
    for key, row in rows.items():
        found = _call_problem(row, key in proposed, settled.get(key))
        if found:
            yield Finding(found[0], evidence.operation_id, call_key=key, detail=found[1])


def _proposals(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for entry in entries:
        if entry["kind"] == "turn.proposed":
            for call in entry["body"].get("calls", ()):
                yield entry, call


def _settlements(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(call_key, binding_sha256) as the chain has it."""
    for _, call in _proposals(entries):
        if call.get("binding_sha256") is not None:
            yield call["call_key"], call["binding_sha256"]
    for entry in entries:
        if entry["kind"] == "call.settled":
            yield entry["subject_id"], entry["body"].get("binding_sha256")


def _call_problem(row: Mapping[str, Any], proposed: bool, stated: str | None) -> tuple[str, str] | None:
    if not proposed:
        return "CALL_UNKNOWN", "no entry proposes it"
    if not row["settled"]:
        return None if stated is None else ("RESULT_MISSING", "settled, and its result is gone")
    wrong = binding.problem(row["binding"], row["binding_sha256"], row["facts"])
    if wrong is not None:
        return "BINDING", wrong
    if stated is None:
        return "RESULT_UNKNOWN", "no entry says that it was settled"
    return None if stated == row["binding_sha256"] else ("BINDING", "its binding is not the one that was recorded")
