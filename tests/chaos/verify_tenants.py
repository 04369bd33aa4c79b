"""I9: no tenant reads, runs, decides or is counted with another. People of the runs are called TENANT/NAME."""

from collections.abc import Iterator

from tests.chaos.evidence import Evidence, Row, violation


def strangers(seen: Evidence) -> Iterator[Row]:
    tenant_of = {name: row["tenant"] for name, row in seen.operations.items()}
    for table in (seen.actions.values(), seen.calls.values(), seen.approvals, seen.questions, seen.audit):
        for row in table:
            if row["tenant"] != tenant_of.get(row["operation_id"]):
                yield violation("I9", "a row of another tenant than its operation", **_names(row))
    yield from _asked(seen, tenant_of)
    yield from _ran(seen, tenant_of)
    yield from _decided(seen, tenant_of)


def _names(row: Row) -> Row:
    return {name: row[name] for name in ("operation_id", "action_id", "call_key", "seq") if name in row}


def _asked(seen: Evidence, tenant_of: dict[str, str]) -> Iterator[Row]:
    """Whoever submitted got an operation of their own, and was shown no other."""
    for line in seen.accepted:
        name = line["operation_id"]
        if name in tenant_of and line.get("tenant", tenant_of[name]) != tenant_of[name]:
            yield violation("I9", "given the operation of another tenant", operation_id=name, tenant=line["tenant"])
    for line in seen.seen:
        if line["tenant"] != tenant_of.get(line["operation_id"]):
            yield violation("I9", "shown the operation of another tenant", **line)


def _ran(seen: Evidence, tenant_of: dict[str, str]) -> Iterator[Row]:
    """Every request carried the tenant whose attempt it was."""
    owner = {row["attempt_id"]: tenant_of.get(row["operation_id"]) for row in seen.attempts}
    for line in seen.arrived:
        if line.get("tenant") and line["attempt"] in owner and line["tenant"] != owner[line["attempt"]]:
            yield violation("I9", "ran as another tenant", n=line["n"], tenant=line["tenant"])


def _decided(seen: Evidence, tenant_of: dict[str, str]) -> Iterator[Row]:
    approval_of = {row["approval_id"]: row["operation_id"] for row in seen.approvals}
    said = [(row["by"], approval_of[row["approval_id"]], row["decision"]) for row in seen.decisions]
    for row in seen.audit:
        by = row["body"].get("by") or row["actor"].partition(":")[2]
        if not row["kind"].endswith(".refused") and not row["actor"].startswith("worker:"):
            said.append((by, row["operation_id"], row["kind"]))
    for by, operation_id, what in said:
        tenant, slash, _ = by.partition("/")
        if slash and tenant != tenant_of[operation_id]:
            yield violation("I9", f"{what} by somebody of another tenant", operation_id=operation_id, by=by)
