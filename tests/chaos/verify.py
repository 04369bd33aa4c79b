"""Checks what a run left behind, after it has come to rest. Reads only, and shares no code with the system.

    python -m tests.chaos.verify --database URL --ledger FILE --accepted FILE [--limits JSON] [--attempts N]

From the database, the ledger's file and the client's log of accepted operations; prints one JSON object:
{"violations": [{"invariant", "what", ...}], "counts": {...}}. Exit status 1 when there is a violation.
The invariants are those of docs/reliability.md.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

Row = dict[str, Any]
ENDED = {"COMPLETED", "REFUSED", "INCOMPLETE", "FAILED", "CANCELLED"}
FINAL = {"succeeded", "failed", "rejected"}
# What may follow what in an action's audit. A start follows only what says that it may be started.
EDGES = {
    "new": {"ready", "started", "rejected"},
    "ready": {"started", "rejected", "unknown"},
    "started": {"succeeded", "failed", "unknown", "pending", "ready"},
    "unknown": {"unknown", "ready", "succeeded", "failed", "pending"},
    "pending": {"pending", "succeeded", "failed"},
    "succeeded": set(),
    "failed": set(),
    "rejected": set(),
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLOCKS = 0.05  # seconds by which two clock readings of one machine may disagree


class Evidence:
    """Everything that was left behind, read once."""

    def __init__(self, database: str, ledger: Path, accepted: Path) -> None:
        with psycopg.connect(database, row_factory=dict_row) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

            def rows(statement: Any) -> list[Row]:
                return connection.execute(statement).fetchall()

            self.operations = {row["operation_id"]: row for row in rows("SELECT * FROM operations")}
            self.actions = {row["action_id"]: row for row in rows("SELECT * FROM actions")}
            self.calls = {row["call_key"]: row for row in rows("SELECT * FROM calls")}
            self.attempts = rows("SELECT * FROM attempts ORDER BY number")
            self.approvals = rows("SELECT * FROM approvals")
            self.decisions = rows("SELECT * FROM decisions")
            self.audit = rows("SELECT * FROM audit ORDER BY operation_id, seq")
            self.slots = rows("SELECT *, lease_until > clock_timestamp() AS held FROM slots")
        self.ledger = lines(ledger)
        self.accepted = lines(accepted)
        self.effects = [line for line in self.ledger if line["event"] == "effect"]
        self.by_key = Counter(line["key"] for line in self.effects)
        self.action_of = {row["idempotency_key"]: row for row in self.actions.values()}


def lines(path: Path) -> list[Row]:
    """A line that its writer left half-written when it was killed was never acknowledged."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def violation(invariant: str, what: str, **details: Any) -> Row:
    return {"invariant": invariant, "what": what, **details}


def duplicates(seen: Evidence) -> Iterator[Row]:
    """I1, by the action's key and, whatever keys were made, by what the client's script asked for."""
    by_intent = Counter((line["tool"], json.dumps(line["arguments"], sort_keys=True)) for line in seen.effects)
    for key, count in seen.by_key.items():
        if count > 1:
            yield violation("I1", "more than one effect under a key", key=key, effects=count)
    for intent, count in by_intent.items():
        if count > 1:
            yield violation("I1", "more than one effect of an intent", intent=intent, effects=count)


def lost(seen: Evidence) -> Iterator[Row]:
    """I2: every accepted operation is there, and has ended or waits for somebody."""
    pending = {row["operation_id"] for row in seen.approvals if row["state"] == "PENDING"}
    review = {row["operation_id"] for row in seen.actions.values() if row["state"] == "UNKNOWN" and row["review"]}
    for line in seen.accepted:
        operation = seen.operations.get(line["operation_id"])
        if operation is None:
            yield violation("I2", "accepted and not there", operation_id=line["operation_id"])
            continue
        state, name = operation["state"], operation["operation_id"]
        waits = (state == "WAITING_APPROVAL" and name in pending) or (state == "RECONCILING" and name in review)
        if state not in ENDED and not waits and state != "WAITING_INPUT":
            yield violation("I2", "neither ended nor waiting for a person", operation_id=name, state=state)


def unresolved(seen: Evidence) -> Iterator[Row]:
    """I3: nothing is left in mid-air, and what is unknown has somebody to look into it."""
    for row in seen.actions.values():
        if row["state"] in ("STARTED", "PENDING"):
            yield violation("I3", "still in mid-air", action_id=row["action_id"], state=row["state"])
        if row["state"] == "UNKNOWN" and not row["review"]:
            yield violation("I3", "unknown without review", action_id=row["action_id"])
    for row in seen.calls.values():
        if row["state"] == "RUNNING":
            yield violation("I3", "still running", call_key=row["call_key"])
    for row in seen.attempts:
        if row["ended_at"] is None:
            yield violation("I3", "an attempt without end", attempt_id=row["attempt_id"])


def unfounded(seen: Evidence) -> Iterator[Row]:
    """I4: no effect without an earlier `started` of exactly these arguments, approved where that was needed."""
    attempts = {row["attempt_id"]: row for row in seen.attempts}
    started = {row["body"].get("attempt_id"): row for row in seen.audit if row["kind"] == "action.started"}
    for line in seen.effects:
        attempt, action = attempts.get(line["attempt"]), seen.action_of.get(line["key"])
        record = started.get(line["attempt"])
        if attempt is None or action is None or record is None or attempt["action_id"] != action["action_id"]:
            yield violation("I4", "effect without its start", n=line["n"], key=line["key"], attempt=line["attempt"])
            continue
        if record["at"].timestamp() > line["at"] + CLOCKS:
            yield violation("I4", "effect before its start", n=line["n"], key=line["key"])
        if not line["digest"] == action["arguments_sha256"] == record["body"]["arguments_sha256"]:
            yield violation("I4", "other arguments than were started", n=line["n"], key=line["key"])
        if record["body"]["digest"] != action["digest"]:
            yield violation("I4", "another action than was started", n=line["n"], key=line["key"])
        if action["needs_approval"]:
            yield from _unapproved(seen, action)


def _unapproved(seen: Evidence, action: Row) -> Iterator[Row]:
    for row in seen.approvals:
        if row["action_id"] == action["action_id"] and row["state"] == "CONSUMED":
            said = {d["decision"] for d in seen.decisions if d["approval_id"] == row["approval_id"]}
            if row["action_digest"] == action["digest"] and said == {"APPROVE"}:
                return
    yield violation("I4", "effect without its approval", action_id=action["action_id"])


def untrue(seen: Evidence) -> Iterator[Row]:
    """I5: success is exactly one effect, failure and rejection none, unknown at most one."""
    allowed = {"SUCCEEDED": (1,), "UNKNOWN": (0, 1), "STARTED": (0, 1), "PENDING": (0, 1)}
    for key, action in seen.action_of.items():
        if action["tool"] not in {"look", "narrow"} and seen.by_key[key] not in allowed.get(action["state"], (0,)):
            yield violation("I5", "state and effects disagree", key=key, tool=action["tool"],
                            state=action["state"], code=action["code"], effects=seen.by_key[key])  # fmt: skip
    for row in seen.calls.values():
        behind = seen.actions.get(row["action_id"] or "")
        if behind and row["settled_at"] and row["state"] != behind["state"]:
            yield violation("I5", "call and action disagree", call_key=row["call_key"], state=row["state"])


def overruns(seen: Evidence, limits: dict[str, int]) -> Iterator[Row]:
    """I6: as the ledger counted, and no slot is left behind."""
    for line in seen.ledger:
        if line["event"] == "arrived" and line["in_flight"] > limits.get(line["tool"], line["in_flight"]):
            yield violation("I6", "over the limit", tool=line["tool"], in_flight=line["in_flight"], n=line["n"])
    for row in seen.slots:
        if row["held"] or (row["holder"] is not None and row["lease_until"] is None):
            yield violation("I6", "a slot is held at rest", tool=row["tool"], slot=row["slot"], holder=row["holder"])


def repeats(seen: Evidence, most: int) -> Iterator[Row]:
    """I7: only the retry owner sends again, and each time as an attempt of its own."""
    tries = Counter(line["attempt"] for line in seen.ledger if line["event"] == "arrived")
    for attempt, count in tries.items():
        if count > 1:
            yield violation("I7", "one attempt was sent more than once", attempt=attempt, arrivals=count)
    known = {row["attempt_id"] for row in seen.attempts}
    for attempt in tries:
        if attempt not in known:
            yield violation("I7", "a request without attempt", attempt=attempt)
    keys = Counter(line["key"] for line in seen.ledger if line["event"] == "arrived" and line["key"])
    for key, count in keys.items():
        if count > most:
            yield violation("I7", "sent too often", key=key, arrivals=count)


# --- the audit -----------------------------------------------------------------------------------------------------


def _sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def _entry(row: Row) -> bytes:
    """RFC 8785 for what the audit holds: texts, integers, booleans, nulls, ASCII names."""
    entry = {name: row[name] for name in ("operation_id", "kind", "subject_id", "actor", "body")}
    text = json.dumps(entry, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return _sha256(b"audit-entry-v1\0", text.encode())


def chains(seen: Evidence) -> Iterator[Row]:
    """I8: each chain from its genesis, without a gap."""
    by_operation: dict[str, list[Row]] = defaultdict(list)
    for row in seen.audit:
        by_operation[row["operation_id"]].append(row)
    for name in seen.operations.keys() - by_operation.keys():
        yield violation("I8", "no audit", operation_id=name)
    for name, rows in by_operation.items():
        prev = _sha256(b"audit-genesis-v1\0", name.encode())
        for number, row in enumerate(rows, 1):
            at = (row["at"] - EPOCH) // timedelta(microseconds=1)
            link = _sha256(
                b"audit-link-v1\0", prev, number.to_bytes(8, "big"), at.to_bytes(8, "big", signed=True),
                _sha256(row["tenant"].encode()), _entry(row),
            )  # fmt: skip
            if row["seq"] != number or row["prev_sha256"] != prev.hex() or row["sha256"] != link.hex():
                yield violation("I8", "the chain is broken", operation_id=name, seq=row["seq"])
                break
            prev = link


def _one_each(seen: Evidence, kind: str, wanted: dict[str, int], named: Any) -> Iterator[Row]:
    found = Counter(named(row) for row in seen.audit if row["kind"] == kind)
    for name in wanted.keys() | found.keys():
        if found[name] != wanted.get(name, 0):
            yield violation("I8", f"{found[name]} entries {kind}", subject=name)


def entries(seen: Evidence) -> Iterator[Row]:
    """I8: one entry for each thing that happened, for it is written in the same transaction."""
    attempts = {row["attempt_id"]: 1 for row in seen.attempts if row["action_id"]}
    yield from _one_each(seen, "action.started", attempts, lambda row: row["body"]["attempt_id"])
    settled = {key: 1 for key, row in seen.calls.items() if row["settled_at"] and row["started_at"]}
    entered = {row["subject_id"] for row in seen.audit if row["kind"] == "call.settled"}
    for key in settled.keys() - entered:
        yield violation("I8", "a settled call without entry", call_key=key)
    operations = seen.operations.items()
    ended = {name: 1 for name, row in operations if row["ended_at"]}
    yield from _one_each(seen, "operation.ended", ended, lambda row: row["operation_id"])
    yield from _one_each(seen, "operation.submitted", dict.fromkeys(seen.operations, 1), lambda r: r["operation_id"])


def edges(seen: Evidence) -> Iterator[Row]:
    """I10: every action went a way that the table allows, and the audit's last word is its state."""
    states: dict[str, str] = {}
    for row in seen.audit:
        domain, _, state = row["kind"].partition(".")
        if domain != "action" or state not in EDGES:
            continue
        before = states.get(row["subject_id"], "new")
        if state not in EDGES[before]:
            yield violation("I10", f"{before} -> {state}", action_id=row["subject_id"], seq=row["seq"])
        states[row["subject_id"]] = state
    for action_id, state in states.items():
        if seen.actions[action_id]["state"].lower() != state:
            yield violation("I10", "the audit ends elsewhere", action_id=action_id, audit=state)


def fences(seen: Evidence) -> Iterator[Row]:
    """I11: attempts are numbered without a gap and their fences grow."""
    by_subject: dict[str, list[Row]] = defaultdict(list)
    for row in seen.attempts:
        by_subject[row["action_id"] or row["call_key"]].append(row)
    for subject, rows in by_subject.items():
        if [row["number"] for row in rows] != list(range(1, len(rows) + 1)):
            yield violation("I11", "attempts are not numbered in order", subject=subject)
        held = [row["fence"] for row in rows]
        if any(later <= earlier for earlier, later in pairwise(held)):
            yield violation("I11", "a fence did not grow", subject=subject, fences=held)
        record = seen.actions.get(subject) or seen.calls.get(subject)
        if record is None or record["fence"] < held[-1] or record["attempts"] != len(rows):
            yield violation("I11", "the row lags behind its attempts", subject=subject)


def check(seen: Evidence, limits: dict[str, int], attempts: int) -> list[Row]:
    whole = [duplicates, lost, unresolved, unfounded, untrue, chains, entries, edges, fences]
    found = [each for one in whole for each in one(seen)]
    return [*found, *overruns(seen, limits), *repeats(seen, attempts)]


def counts(seen: Evidence) -> Row:
    unknown = {row["subject_id"] for row in seen.audit if row["kind"] == "action.unknown"}
    return {
        "accepted": len({line["operation_id"] for line in seen.accepted}),
        "operations": Counter(row["state"] for row in seen.operations.values()),
        "reasons": Counter(row["reason"] for row in seen.operations.values() if row["reason"]),
        "actions": Counter(f"{row['tool']}:{row['state']}" for row in seen.actions.values()),
        "attempts": Counter(row["state"] for row in seen.attempts),
        "effects": len(seen.effects),
        "ledger_faults": Counter(line["fault"] for line in seen.ledger if line.get("fault")),
        "audit_rows": len(seen.audit),
        "late_results": sum(row["kind"] == "action.late_result" for row in seen.audit),
        "unknown_resolved": sum(seen.actions[each]["state"] in ("SUCCEEDED", "FAILED") for each in unknown),
        "unknown_open": sum(row["state"] == "UNKNOWN" for row in seen.actions.values()),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--accepted", type=Path, required=True)
    parser.add_argument("--limits", type=json.loads, default={})
    parser.add_argument("--attempts", type=int, default=60)
    options = parser.parse_args()
    seen = Evidence(options.database, options.ledger, options.accepted)
    violations = check(seen, options.limits, options.attempts)
    print(json.dumps({"violations": violations, "counts": counts(seen)}, default=str))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
