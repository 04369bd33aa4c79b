#!/usr/bin/env python3
"""Check an export of Turnqueue's audit without Turnqueue: Python's standard library only, no database.

    python verify_audit.py EXPORT [--anchors FILE [--key-env NAME | --key-file FILE]] [--operation ID] [--json]

EXPORT is what `turnqueue audit verify --export EXPORT` wrote. Exit code 0: everything holds; 1: something does not, and
the first wrong row of each operation is printed; 2: wrong usage or a file that cannot be read. The formats are
described in docs/audit.md.
"""

import argparse
import hashlib
import hmac
import json
import os
import re
import sys
from collections import defaultdict
from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - also for Python 3.9
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
HEX = re.compile(r"[0-9a-f]{64}")
ANCHOR_GENESIS = hashlib.sha256(b"audit-anchor-genesis-v1").hexdigest()
TERMINAL = {"COMPLETED", "REFUSED", "INCOMPLETE", "FAILED", "CANCELLED"}
BINDING = {
    "provider", "api", "model", "response_id", "call_id", "adapter_revision", "request_sha256", "operation_id",
    "tenant", "subject", "revision", "profile_digest", "tool", "tool_version", "effect", "action_id",
    "idempotency_key", "arguments_sha256", "policy_version", "input_revision", "output_revision", "effect_revision",
    "handler_revision", "producer_revision", "result_sha256", "result_state",
}  # fmt: skip


class Wrong(Exception):
    """One thing that does not hold."""

    def __init__(self, code, seq=None, call=None, line=None, detail=""):
        super().__init__(code)
        self.found = {"code": code, "seq": seq, "call_key": call, "line": line, "detail": detail}


# --- RFC 8785 for what occurs: text, integers up to 2^53 - 1, booleans, null, lists, objects -----------------------


def canonical(value):
    if plain(value):  # names in ASCII sort the same by code point and by UTF-16 unit
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return "{" + ",".join(canonical(name) + ":" + canonical(value[name]) for name in names) + "}"


def plain(value):
    """Whether all names are ASCII. Raises ValueError for a value that does not occur or has no canonical form."""
    if isinstance(value, dict):
        return all(name.isascii() and plain(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(plain(inner) for inner in value)
    if value is not None and not isinstance(value, (str, int)):
        raise ValueError(f"no canonical form for {type(value).__name__}")
    if isinstance(value, int) and abs(value) >= 2**53:
        raise ValueError("integer out of range")
    return True


def digest(domain, value):
    return hashlib.sha256(domain + b"\0" + canonical(value).encode()).hexdigest()


# --- chain ---------------------------------------------------------------------------------------------------------


def microseconds(text):
    if not isinstance(text, str) or not TIME.fullmatch(text):
        raise ValueError("time")
    at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=EPOCH.tzinfo)
    return (at - EPOCH) // timedelta(microseconds=1)


def check_entry(operation_id, entry, prev):
    """Raise Wrong unless the entry says what was written and follows `prev`."""
    seq = entry["seq"]
    try:
        if not all(HEX.fullmatch(entry[name]) for name in ("entry_sha256", "prev_sha256", "sha256")):
            raise ValueError("digest")
        if not all(isinstance(entry[name], str) for name in ("tenant", "kind", "actor")):
            raise TypeError("text")
        if not isinstance(entry["body"], dict):
            raise TypeError("body")
        said = {name: entry[name] for name in ("kind", "subject_id", "actor", "body")}
        entry_digest = digest(b"audit-entry-v1", {**said, "operation_id": operation_id})
        link = hashlib.sha256(b"audit-link-v1\0" + bytes.fromhex(entry["prev_sha256"]))
        link.update(seq.to_bytes(8, "big") + microseconds(entry["at"]).to_bytes(8, "big", signed=True))
        link.update(hashlib.sha256(entry["tenant"].encode()).digest() + bytes.fromhex(entry["entry_sha256"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise Wrong("MALFORMED", seq, detail="a field is not what it must be") from None
    if entry_digest != entry["entry_sha256"]:
        raise Wrong("ENTRY_CHANGED", seq, detail="operation, kind, subject, actor or body were changed")
    if entry["prev_sha256"] != prev:
        raise Wrong("NOT_LINKED", seq, detail="it does not follow the row before")
    if link.hexdigest() != entry["sha256"]:
        raise Wrong("LINK_CHANGED", seq, detail="seq, tenant, time, entry or sha256 were changed")


def check_chain(operation_id, entries):
    """Raise Wrong at the first row that is not as written; `entries` in order of seq."""
    prev = hashlib.sha256(b"audit-genesis-v1\0" + operation_id.encode()).hexdigest()
    for expected, entry in enumerate(entries, 1):
        if entry["seq"] > expected:
            raise Wrong("MISSING", expected, detail="the row is gone")
        if entry["seq"] < expected:
            raise Wrong("DUPLICATE", entry["seq"], detail="there are two rows of this place")
        check_entry(operation_id, entry, prev)
        prev = entry["sha256"]


def check_points(entries, points):
    """Raise Wrong where the chain is not what the anchors saw. `points`: (seq, sha256, line of the anchor file)."""
    held = {entry["seq"]: entry.get("sha256") for entry in entries}
    last, agreed = max(held, default=0), 0
    for seq, sha256, line in sorted(points):
        if seq > last:
            raise Wrong("TRUNCATED", last + 1, line=line, detail=f"row {seq} was anchored")
        if seq in held and held[seq] != sha256:
            raise Wrong("REWRITTEN", seq, line=line, detail=f"rows up to {agreed} are as anchored")
        agreed = seq


# --- what the entries say of the operation and its calls -----------------------------------------------------------


def check_statements(operation, entries, calls):
    if not entries or entries[0]["kind"] != "operation.submitted":
        raise Wrong("NO_BEGINNING", 1, detail="the first entry is not operation.submitted")
    for entry in entries:
        if entry["tenant"] != operation["tenant"]:
            raise Wrong("TENANT_CHANGED", entry["seq"])
    ended = [entry for entry in entries if entry["kind"] == "operation.ended"]
    if operation["state"] in TERMINAL and not ended:
        raise Wrong("TRUNCATED", len(entries) + 1, detail="the operation has ended, its audit has not")
    for entry in ended:
        if entry["body"].get("state") != operation["state"]:
            raise Wrong("STATE_CHANGED", entry["seq"])
    check_calls(entries, {call["call_key"]: call for call in calls})


def check_calls(entries, calls):
    bindings, proposed = {}, set()
    # A person edited the action that a call waited for: from then on another one answers it.
    redirected = {
        entry["subject_id"]: entry["body"].get("action_id") for entry in entries if entry["kind"] == "call.redirected"
    }
    for entry in entries:
        if entry["kind"] == "turn.proposed":
            for said in entry["body"].get("calls", []):
                key = said["call_key"]
                proposed.add(key)
                now = {**said, "action_id": redirected[key]} if key in redirected else said
                check_proposal(entry["seq"], now, calls.get(key))
                if said.get("binding_sha256") is not None:
                    bindings[key] = said["binding_sha256"]
        elif entry["kind"] == "call.settled":
            bindings[entry["subject_id"]] = entry["body"].get("binding_sha256")
    for key, call in calls.items():
        if key not in proposed:
            raise Wrong("CALL_UNKNOWN", call=key, detail="no entry proposes it")
        check_call(key, call, bindings.get(key))


def check_proposal(seq, said, call):
    key = said["call_key"]
    if call is None:
        raise Wrong("CALL_MISSING", seq, key, detail="proposed, and its row is gone")
    for name in ("call_id", "tool", "action_id", "arguments_sha256"):
        if call["facts"].get(name) != said.get(name):
            raise Wrong("CALL_CHANGED", seq, key, detail=f"{name} is not as proposed")


def check_call(key, call, stated):
    """The binding against the facts, its digest, and the digest that the chain has of it."""
    if not call["settled"]:
        if stated is not None:
            raise Wrong("RESULT_MISSING", call=key, detail="settled, and its result is gone")
        return
    binding = call["binding"]
    if not isinstance(binding, dict) or BINDING - set(binding):
        raise Wrong("BINDING", call=key, detail="fields are missing")
    for name, value in call["facts"].items():
        if binding[name] != value:
            raise Wrong("BINDING", call=key, detail=f"{name} is not what was bound")
    try:
        same = digest(b"binding-v1", binding) == call["binding_sha256"]
    except ValueError:
        same = False
    if not same:
        raise Wrong("BINDING", call=key, detail="binding_sha256 is not its digest")
    if stated is None:
        raise Wrong("RESULT_UNKNOWN", call=key, detail="no entry says that it was settled")
    if stated != call["binding_sha256"]:
        raise Wrong("BINDING", call=key, detail="it is not the one that was recorded")


# --- anchors -------------------------------------------------------------------------------------------------------


def anchor_line(text):
    """The line as an object, or None."""
    try:
        line = json.loads(text)
        for head in line["heads"]:
            if type(head["seq"]) is not int or not isinstance(head["sha256"], str):
                return None
            if not isinstance(head["operation_id"], str):
                return None
        whole = all(isinstance(line[name], str) for name in ("at", "key_id", "prev_line_sha256", "signature"))
        return line if whole and type(line["through"]) is int else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def line_problem(line, prev, key):
    if key is not None:
        if line["key_id"] != hashlib.sha256(b"audit-anchor-key-v1\0" + key).hexdigest()[:16]:
            return "ANCHOR_OTHER_KEY"
        unsigned = {name: value for name, value in line.items() if name != "signature"}
        try:
            signed = hmac.new(key, b"audit-anchor-v1\0" + canonical(unsigned).encode(), hashlib.sha256).hexdigest()
            if not hmac.compare_digest(signed.encode(), line["signature"].encode()):
                return "ANCHOR_UNSIGNED"
        except ValueError:
            return "ANCHOR_UNSIGNED"
    return None if line["prev_line_sha256"] == prev else "ANCHOR_NOT_LINKED"


def read_anchors(lines, key):
    """(points by operation, findings) of the file's lines, as bytes."""
    points, findings = defaultdict(list), []
    prev, fragment = ANCHOR_GENESIS, None
    for number, raw in enumerate(lines, 1):
        text = raw[:-1] if raw.endswith(b"\n") else raw
        line = anchor_line(text)
        problem = line_problem(line, prev, key) if line is not None else None
        # A line that cannot be read is harmless where the next one was signed over it: its writer had died.
        if fragment is not None and (line is None or problem is not None):
            findings.append(Wrong("ANCHOR_UNREADABLE", line=fragment).found)
        fragment = number if line is None else None
        if problem is not None:
            findings.append(Wrong(problem, line=number).found)
        if line is not None and problem in (None, "ANCHOR_NOT_LINKED"):
            for head in line["heads"]:
                points[head["operation_id"]].append((head["seq"], head["sha256"], number))
        prev = hashlib.sha256(text).hexdigest()
    if fragment is not None:
        findings.append(Wrong("ANCHOR_UNREADABLE", line=fragment).found)
    return points, findings


# --- all of it -----------------------------------------------------------------------------------------------------


def check_operation(operation_id, operation, entries, calls, points):
    """The first wrong row of one operation, or None."""
    if not all(type(entry.get("seq")) is int for entry in entries):
        return {"operation_id": operation_id, **Wrong("MALFORMED", detail="seq is not an integer").found}
    entries = sorted(entries, key=lambda entry: entry["seq"])
    found = []
    for check in (lambda: check_chain(operation_id, entries), lambda: check_points(entries, points)):
        try:
            check()
        except Wrong as wrong:
            found.append(wrong.found)
    if not found and operation is not None:
        try:
            check_statements(operation, entries, calls)
        except Wrong as wrong:
            found.append(wrong.found)
        except (KeyError, TypeError, AttributeError):
            found.append(Wrong("MALFORMED", detail="an operation or call record is not what it must be").found)
    if not found:
        return None
    return {"operation_id": operation_id, **min(found, key=lambda f: -1 if f["seq"] is None else f["seq"])}


def verify(records, points=None, only=None):
    """Findings over the records of an export (its first and last line excluded), one per operation at most."""
    operations, entries, calls = {}, defaultdict(list), defaultdict(list)
    for record in records:
        if record.get("record") == "operation":
            operations[record["operation_id"]] = record
        elif record.get("record") == "entry":
            entries[record["operation_id"]].append(record)
        else:
            calls[record["operation_id"]].append(record)
    points = points or {}
    ids = dict.fromkeys([*operations, *entries, *calls, *points])
    found = (
        check_operation(i, operations.get(i), entries.get(i, []), calls.get(i, []), points.get(i, []))
        for i in ids
        if only in (None, i)
    )
    return [each for each in found if each is not None]


def read_export(lines):
    """The records between first and last line, and the operation to which the export is limited (None: it has all).

    Raises Wrong when the export is not whole.
    """
    records = []
    for number, text in enumerate(lines, 1):
        try:
            record = json.loads(text)
            if record["record"] in ("operation", "entry", "call"):
                str.encode(record["operation_id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise Wrong("EXPORT_UNREADABLE", line=number, detail="the line is no record") from None
        records.append(record)
    if not records or records[0].get("record") != "export" or records[0].get("version") != 1:
        raise Wrong("EXPORT_UNREADABLE", line=1, detail="not an export of version 1")
    if records[-1] != {"record": "end", "records": len(records) - 2}:
        raise Wrong("EXPORT_CUT", line=len(records), detail="the last line is missing or counts other records")
    return records[1:-1], records[0].get("only")


def key_of(options):
    if options.key_env:
        key = os.environ.get(options.key_env, "").encode()
    elif options.key_file:
        with open(options.key_file, "rb") as file:
            key = file.read()
    else:
        return None
    if not key.strip():
        raise OSError(f"the anchor key {options.key_env or options.key_file} is empty")
    return key.strip()


def run(options):
    findings, points, records = [], {}, []
    if options.anchors:
        key = key_of(options)
        if key is None:
            print("note: no key was given, so the signatures of the anchors are not checked", file=sys.stderr)
        with open(options.anchors, "rb") as file:
            points, findings = read_anchors(file, key)
    else:
        print("note: without anchors, a cut end and a full rewriting of a chain cannot be seen", file=sys.stderr)
    try:
        with open(options.export, encoding="utf-8") as file:
            records, only = read_export(file)
        findings += verify(records, points, options.operation or only)
    except Wrong as wrong:
        findings.append(wrong.found)
    return findings, sum(record["record"] == "operation" for record in records)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export")
    parser.add_argument("--anchors")
    parser.add_argument("--key-env")
    parser.add_argument("--key-file")
    parser.add_argument("--operation")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        findings, operations = run(options)
    except OSError as error:
        print(f"cannot read: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"ok": not findings, "operations": operations, "findings": findings}))
    else:
        for found in findings:
            print(", ".join(f"{name} {value}" for name, value in found.items() if value not in (None, "")))
        print(f"{operations} operations:", "everything holds" if not findings else f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
