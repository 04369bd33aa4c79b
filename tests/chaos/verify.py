"""Checks what a run left behind, after it has come to rest. Reads only, and shares no code with the system.

    python -m tests.chaos.verify --database URL --ledger FILE --accepted FILE [--limits JSON] [--attempts N]
                                 [--lease SECONDS] [--fired FILE] [--seen FILE]

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

from tests.chaos.evidence import Evidence, Row, violation
from tests.chaos.verify_starts import belated, unfounded, untimely
from tests.chaos.verify_tenants import strangers

ENDED = {"COMPLETED", "REFUSED", "INCOMPLETE", "FAILED", "CANCELLED"}
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
        if line.get("input", seen.requests[name]) != seen.requests[name]:
            yield violation("I2", "answered with the operation of another request", operation_id=name)
        if state in ("FAILED", "INCOMPLETE"):  # no script and no budget of these runs gives a reason for it
            yield violation("I2", "given up", operation_id=name, state=state, reason=operation["reason"])
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


def untrue(seen: Evidence) -> Iterator[Row]:
    """I5: success is exactly one effect, failure and rejection none, unknown at most one."""
    allowed = {"SUCCEEDED": (1,), "UNKNOWN": (0, 1), "STARTED": (0, 1), "PENDING": (0, 1)}
    for key, action in seen.action_of.items():
        if action["tool"] not in {"look", "narrow"} and seen.by_key[key] not in allowed.get(action["state"], (0,)):
            yield violation("I5", "state and effects disagree", key=key, tool=action["tool"],
                            state=action["state"], code=action["code"], effects=seen.by_key[key])  # fmt: skip
    for row in seen.attempts:
        arrivals = seen.tries[row["attempt_id"]]
        if row["action_id"] and row["state"] == "NOT_SENT" and arrivals:
            yield violation("I5", "said not to have been sent, and it arrived", attempt=row["attempt_id"])
        answered = ("SUCCEEDED", "FAILED", "PENDING") if row["action_id"] else ("SUCCEEDED",)
        if row["state"] in answered and not arrivals:
            yield violation("I5", "an answer to what never arrived", attempt=row["attempt_id"], state=row["state"])
    for row in seen.calls.values():
        behind = seen.actions.get(row["action_id"] or "")
        if behind and row["settled_at"] and row["state"] != behind["state"]:
            yield violation("I5", "call and action disagree", call_key=row["call_key"], state=row["state"])


def overruns(seen: Evidence, limits: dict[str, int]) -> Iterator[Row]:
    """I6: as the ledger counted."""
    for line in seen.ledger:
        if line["event"] == "arrived" and line["in_flight"] > limits.get(line["tool"], line["in_flight"]):
            yield violation("I6", "over the limit", tool=line["tool"], in_flight=line["in_flight"], n=line["n"])


def leaks(seen: Evidence) -> Iterator[Row]:
    """I6: no slot is left behind."""
    for row in seen.slots:
        gone = (row["holder"] or "").endswith("#lost")  # a dead worker's: taken until its deadline, as it should be
        if (row["held"] and not gone) or (row["holder"] is not None and row["lease_until"] is None):
            yield violation("I6", "a slot is held at rest", tool=row["tool"], slot=row["slot"], holder=row["holder"])


def repeats(seen: Evidence, most: int) -> Iterator[Row]:
    """I7: only the retry owner sends again, and each time as an attempt of its own."""
    for attempt, count in seen.tries.items():
        if count > 1:
            yield violation("I7", "one attempt was sent more than once", attempt=attempt, arrivals=count)
    known = {row["attempt_id"] for row in seen.attempts}
    for attempt in seen.tries:
        if attempt not in known:
            yield violation("I7", "a request without attempt", attempt=attempt)
    keys = Counter(line["key"] for line in seen.arrived if line["key"])
    for key, count in keys.items():
        if count > most:
            yield violation("I7", "sent too often", key=key, arrivals=count)
    for row in seen.attempts:
        if row["number"] > most:
            yield violation("I7", "tried too often", attempt=row["attempt_id"], number=row["number"])


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


def holders(seen: Evidence, lease: float) -> Iterator[Row]:
    """I11: only who holds the fence records an outcome, and it is taken from nobody before the lease has run out."""
    started: dict[str, str] = {}
    for row in seen.audit:
        if row["kind"] == "action.started":
            started[row["subject_id"]] = row["actor"]
        elif row["kind"] in _OUTCOMES:
            by = started.pop(row["subject_id"], row["actor"])
            if row["actor"].startswith("worker:") and row["actor"] != by:
                yield violation(
                    "I11", "an outcome recorded by another worker", seq=row["seq"], action=row["subject_id"]
                )
    for row in seen.attempts:
        if row["state"] == "LOST" and (row["ended_at"] - row["started_at"]).total_seconds() < lease:
            yield violation("I11", "taken from its worker before its lease ran out", attempt=row["attempt_id"])
    last = {row["call_key"]: f"worker:{row['worker']}" for row in seen.attempts}
    for row in seen.audit:
        by = last.get(row["subject_id"], "") if row["kind"] == "call.settled" else ""
        if by and row["actor"].startswith("worker:") and row["actor"] != by:
            yield violation("I11", "a result recorded by another worker", seq=row["seq"], call=row["subject_id"])
    for earlier, later in pairwise(seen.turns):
        if earlier["operation_id"] == later["operation_id"] and later["fence"] <= earlier["fence"]:
            yield violation("I11", "the fence of a turn did not grow", operation_id=later["operation_id"])


_OUTCOMES = {f"action.{state}" for state in EDGES["started"]}


def always(seen: Evidence, limits: dict[str, int], attempts: int, lease: float = 0.0) -> list[Row]:
    """What must hold at every moment. `lease` of the workers, in seconds; 0 leaves out what depends on it."""
    whole = [duplicates, unfounded, untimely, chains, strangers, edges, fences]
    found = [each for one in whole for each in one(seen)]
    timed = [*holders(seen, lease), *(belated(seen, lease) if lease else [])]
    return [*found, *overruns(seen, limits), *repeats(seen, attempts), *timed]


def check(seen: Evidence, limits: dict[str, int], attempts: int, lease: float = 0.0) -> list[Row]:
    """What must hold at rest."""
    found = [each for one in (lost, unresolved, untrue, entries, leaks) for each in one(seen)]
    return [*always(seen, limits, attempts, lease), *found]


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
    parser.add_argument("--lease", type=float, default=0.0, help="seconds, of the workers")
    parser.add_argument("--fired", type=Path, help="the failpoints' own list of whom they stopped")
    parser.add_argument("--seen", type=Path, help="what the client was shown: a line {tenant, operation_id} for each")
    options = parser.parse_args()
    seen = Evidence(options.database, options.ledger, options.accepted, fired=options.fired, seen=options.seen)
    violations = check(seen, options.limits, options.attempts, options.lease)
    print(json.dumps({"violations": violations, "counts": counts(seen)}, default=str))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
