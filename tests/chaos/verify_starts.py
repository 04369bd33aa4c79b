"""I4: nothing reached the downstream but what had been started, as it was approved, in time and in its turn.

Like `verify`, this shares no code with the system: the digests are computed here from what arrived.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.evidence import CLOCKS, Evidence, Row, violation


def unfounded(seen: Evidence) -> Iterator[Row]:
    """No effect without an earlier `started` of exactly this action, approved where that was needed."""
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
        if not record["body"]["digest"] == action["digest"] == _digest(seen, action, line["arguments"]):
            yield violation("I4", "another action than was started", n=line["n"], key=line["key"])
        if action["needs_approval"]:
            yield from _unapproved(seen, action, record)


def _digest(seen: Evidence, action: Row, arguments: Row) -> str:
    """What an approval approves, from what arrived. RFC 8785 for ASCII names, texts, small integers and nulls."""
    value = {
        "operation": action["operation_id"], "subject": seen.operations[action["operation_id"]]["subject"],
        "arguments": arguments,
    } | {name: action[name] for name in _OF_ACTION}  # fmt: skip
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(b"action-v1\0" + text.encode()).hexdigest()


_OF_ACTION = ("tenant", "revision", "tool", "tool_version", "idempotency_key", "policy_version", "resource_version")


def _unapproved(seen: Evidence, action: Row, record: Row) -> Iterator[Row]:
    """One approval of this action, by enough people who said nothing but yes to exactly it, in time, used up by it."""
    problem = "effect without its approval"
    for row in seen.approvals:
        if row["action_id"] != action["action_id"] or row["state"] != "CONSUMED":
            continue
        problem = _flaw(row, action, [d for d in seen.decisions if d["approval_id"] == row["approval_id"]], record)
        if not problem:
            return
    yield violation("I4", problem, action_id=action["action_id"])


def _flaw(approval: Row, action: Row, decisions: list[Row], record: Row) -> str:
    people = {
        d["by"] for d in decisions if d["decision"] == "APPROVE" and d["bound_sha256"] == approval["bound_sha256"]
    }
    if approval["action_digest"] != action["digest"]:
        return "the approval is of another action"
    if any(d["decision"] != "APPROVE" for d in decisions):
        return "somebody had refused it"
    if approval["separate"]:
        people.discard(approval["requester"])
    if len(people) < approval["approvers"]:
        return "too few had approved it"
    late = (approval["consumed_at"] - approval["expires_at"]).total_seconds() > CLOCKS
    if late or any(d["at"] > approval["expires_at"] for d in decisions):
        return "its approval had expired"
    if record["at"] < max(d["at"] for d in decisions):
        return "started before it was approved"
    return ""


def untimely(seen: Evidence) -> Iterator[Row]:
    """Nothing is started after its operation's end or for an earlier request, nor before what comes before it.

    Writes of a turn come one at a time, in order, after its reads, and none after one that was not done.
    """
    by_operation: dict[str, list[Row]] = defaultdict(list)
    for row in seen.audit:
        by_operation[row["operation_id"]].append(row)
    places = _places(seen)
    for rows in by_operation.values():
        ended, revision = False, 1
        states: dict[str, str] = {}
        for row in rows:
            kind, subject = row["kind"], row["subject_id"]
            ended = ended or kind == "operation.ended"
            revision = row["body"]["revision"] if kind == "operation.amended" else revision
            if kind == "action.started":
                action = seen.actions[subject]
                if action["compensates"] is None and (ended or action["revision"] != revision):
                    what = "started after its operation's end" if ended else "started for an earlier request"
                    yield violation("I4", what, action_id=subject, seq=row["seq"])
                yield from _out_of_turn(action, states, places)
            if kind in _STATES:
                states[subject] = kind


# Other entries about an action, such as a zombie's late result, are no state of it.
_STATES = {f"action.{state}" for state in ("ready", "started", "unknown", "pending", "succeeded", "failed", "rejected")}
_STATES |= {"call.settled"}


def _places(seen: Evidence) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """(position, id) by turn: what a write waits for. -1 for reads; what a person replaced is not waited for."""
    replaced = {row["replaces"] for row in seen.actions.values()}
    places: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for action in seen.actions.values():
        if not action["independent"] and action["action_id"] not in replaced:
            places[action["operation_id"], action["turn"]].append((action["position"], action["action_id"]))
    for call in seen.calls.values():
        if call["effect"] == "read" and call["action_id"] is None and call["attempts"]:
            places[call["operation_id"], call["turn"]].append((-1, call["call_key"]))
    return places


def _out_of_turn(
    action: Row, states: dict[str, str], places: dict[tuple[str, int], list[tuple[int, str]]]
) -> Iterator[Row]:
    if action["independent"]:
        return
    for position, subject in places[action["operation_id"], action["turn"]]:
        done = "call.settled" if position < 0 else "action.succeeded"
        if position < action["position"] and states.get(subject) != done:
            what = f"started while what comes before it was {states.get(subject)}"
            yield violation("I4", what, action_id=action["action_id"], earlier=subject)


def belated(seen: Evidence, lease: float) -> Iterator[Row]:
    """Who was stopped between `started` and its last look at the lease, which then ran out, sent nothing any more."""
    stopped = [[pid] for point, _, pid, action in seen.fired if action == "stop" and point == "write.after_started"]
    attempts = {row["attempt_id"]: row for row in seen.attempts}
    for line in seen.arrived:
        attempt = attempts.get(line["attempt"])
        if attempt is None or attempt["action_id"] is None or attempt["worker"].split(":")[1:-1] not in stopped:
            continue  # a worker is HOST:PID:BOOT
        if line["at"] > attempt["started_at"].timestamp() + lease:
            yield violation("I4", "sent without a lease", n=line["n"], attempt=line["attempt"])
