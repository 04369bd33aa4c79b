"""Tampers of the real database, by whoever owns it, as `turnqueue audit verify` and the stand-alone script see them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator import anchors
from orchestrator.auditing import verify
from orchestrator.domain.errors import NotFound
from tests.audit.bench import Bench
from tests.audit.world import KEY, SCRIPT, play_all, script, sql_as_owner

TABLES = ("audit", "calls", "operations", "actions", "turns")


@dataclass
class Played:
    bench: Bench
    anchors: Path
    operation_id: str  # a completed refund of acme
    foreign: str  # one of globex
    rows: list[dict[str, Any]]
    calls: list[str]


@pytest.fixture(scope="module")
def played(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Played:
    file = tmp_path_factory.mktemp("audit") / "anchors"
    play_all(bench, file)
    operation_id, foreign = bench.made[0], bench.made[1]
    rows = bench.sql("SELECT * FROM audit WHERE operation_id = :o ORDER BY seq", o=operation_id)
    calls = bench.sql("SELECT call_key FROM calls WHERE operation_id = :o ORDER BY turn, position", o=operation_id)
    for table in TABLES:
        bench.sql(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")
    return Played(bench, file, operation_id, foreign, rows, [call["call_key"] for call in calls])


@pytest.fixture
def restored(played: Played) -> Iterator[None]:
    yield
    for table in TABLES:
        overriding = "OVERRIDING SYSTEM VALUE" if table == "audit" else ""
        restore = f"INSERT INTO {table} {overriding} SELECT * FROM kept_{table}"
        sql_as_owner(played.bench, f"DELETE FROM {table}", restore)


def both(played: Played, tmp_path: Path) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(code, seq, call) that each verifier finds in the operation."""
    anchored = anchors.read(played.anchors, KEY)
    found = verify(played.bench.app.database, anchored=anchored, export=tmp_path / "export").findings
    ours = [(f.code, f.seq, f.call_key) for f in found if f.operation_id == played.operation_id]
    records, only = script().read_export((tmp_path / "export").read_text().splitlines())
    points = {i: [(p.seq, p.sha256, p.line) for p in listed] for i, listed in anchored.points.items()}
    again = [f for f in script().verify(records, points, only) if f["operation_id"] == played.operation_id]
    return ours, [(f["code"], f["seq"], f["call_key"]) for f in again]


ROW = "WHERE operation_id = :o AND seq = 5"
SWAPPED = "SELECT kind, subject_id, actor, body, entry_sha256 FROM audit WHERE operation_id = :o AND seq"
REHASH = """
    WITH RECURSIVE link AS (
        SELECT seq, prev_sha256, sha256 FROM audit WHERE operation_id = :o AND seq = 4
        UNION ALL
        SELECT a.seq, l.sha256, encode(sha256(convert_to('audit-link-v1', 'UTF8') || decode('00', 'hex')
            || decode(l.sha256, 'hex') || int8send(CAST(a.seq AS bigint))
            || int8send(CAST(extract(epoch FROM a.at) * 1000000 AS bigint)) || sha256(convert_to(a.tenant, 'UTF8'))
            || decode(a.entry_sha256, 'hex')), 'hex')
        FROM link l JOIN audit a ON a.operation_id = :o AND a.seq = l.seq + 1)
    UPDATE audit SET prev_sha256 = link.prev_sha256, sha256 = link.sha256 FROM link
    WHERE audit.operation_id = :o AND audit.seq = link.seq AND link.seq > 4
"""
ROWS = {
    "kind": (f"UPDATE audit SET kind = 'action.started' {ROW}", "ENTRY_CHANGED", 5),
    "subject": (f"UPDATE audit SET subject_id = 'act_other' {ROW}", "ENTRY_CHANGED", 5),
    "actor": (f"UPDATE audit SET actor = 'approver:boss' {ROW}", "ENTRY_CHANGED", 5),
    "body": (f"UPDATE audit SET body = body || '{{\"contacted\": false, \"x\": 1}}' {ROW}", "ENTRY_CHANGED", 5),
    "a fraction": (f"UPDATE audit SET body = body || '{{\"x\": 1.5}}' {ROW}", "MALFORMED", 5),
    "time": (f"UPDATE audit SET at = at + interval '1 microsecond' {ROW}", "LINK_CHANGED", 5),
    "tenant": (f"UPDATE audit SET tenant = 'globex' {ROW}", "LINK_CHANGED", 5),
    "tenant of all": ("UPDATE audit SET tenant = 'globex' WHERE operation_id = :o", "LINK_CHANGED", 1),
    "entry_sha256": (f"UPDATE audit SET entry_sha256 = md5('') || md5('') {ROW}", "ENTRY_CHANGED", 5),
    "prev_sha256": (f"UPDATE audit SET prev_sha256 = md5('') || md5('') {ROW}", "NOT_LINKED", 5),
    "sha256": (f"UPDATE audit SET sha256 = md5('') || md5('') {ROW}", "LINK_CHANGED", 5),
    "not a digest": (f"UPDATE audit SET sha256 = 'none' {ROW}", "MALFORMED", 5),
    "seq": (f"UPDATE audit SET seq = 500 {ROW}", "MISSING", 5),
    "delete": (f"DELETE FROM audit {ROW}", "MISSING", 5),
    "delete the first": ("DELETE FROM audit WHERE operation_id = :o AND seq = 1", "MISSING", 1),
    "delete and close": (
        f"DELETE FROM audit {ROW}; "
        "UPDATE audit SET seq = seq + 999 WHERE operation_id = :o AND seq > 5; "
        "UPDATE audit SET seq = seq - 1000 WHERE operation_id = :o AND seq > 5", "NOT_LINKED", 5,
    ),
    "truncate": ("DELETE FROM audit WHERE operation_id = :o AND seq > 5", "TRUNCATED", 6),
    "remove": ("DELETE FROM audit WHERE operation_id = :o", "TRUNCATED", 1),
    "insert": (
        "INSERT INTO audit (operation_id, seq, tenant, kind, actor, body, at, entry_sha256, prev_sha256, sha256) "
        "SELECT operation_id, seq + 1, tenant, kind, actor, body, at, entry_sha256, sha256, sha256 FROM audit "
        "WHERE operation_id = :o ORDER BY seq DESC LIMIT 1", "LINK_CHANGED", None,
    ),
    "swap": (
        f"UPDATE audit a SET (kind, subject_id, actor, body, entry_sha256) = ({SWAPPED} = 12 - a.seq) "
        "WHERE operation_id = :o AND seq IN (5, 7)", "LINK_CHANGED", 5,
    ),
    "splice": (
        "UPDATE audit a SET (kind, subject_id, actor, body, entry_sha256, sha256) = (SELECT kind, subject_id, actor, "
        f"body, entry_sha256, sha256 FROM audit WHERE operation_id = :f AND seq = a.seq) {ROW}", "ENTRY_CHANGED", 5,
    ),
    "re-hash": (f"UPDATE audit SET at = at + interval '1 second' {ROW}; {REHASH}", "REWRITTEN", None),
}  # fmt: skip


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", sorted(ROWS))
def test_tampers_of_rows(played: Played, tmp_path: Path, name: str) -> None:
    statements, code, seq = ROWS[name]
    values = {"o": played.operation_id}
    sql_as_owner(
        played.bench, *statements.split("; "), **values | ({"f": played.foreign} if ":f" in statements else {})
    )
    if name == "insert":
        seq = len(played.rows) + 1
    if name == "re-hash":
        points = anchors.read(played.anchors, KEY).points[played.operation_id]
        seq = min(point.seq for point in points if point.seq >= 5)
    ours, theirs = both(played, tmp_path)
    assert ours == [(code, seq, None)]
    assert theirs == ours


CALL = "WHERE call_key = :c"
FACTS = {
    "result": (f"UPDATE calls SET observation = observation || ' ' {CALL}", "BINDING"),
    "state": (f"UPDATE calls SET state = 'FAILED' {CALL}", "BINDING"),
    "arguments": (f"UPDATE calls SET arguments = '{{\"order_id\": \"ORD-000001\"}}' {CALL}", "CALL_CHANGED"),
    "call id": (f"UPDATE calls SET call_id = 'call_x' {CALL}", "CALL_CHANGED"),
    "binding": (f"UPDATE calls SET binding = binding || '{{\"model\": \"other\"}}' {CALL}", "BINDING"),
    "binding digest": (f"UPDATE calls SET binding_sha256 = md5('') || md5('') {CALL}", "BINDING"),
    "gone": (f"DELETE FROM calls {CALL}", "CALL_MISSING"),
    "unsettled": (
        f"UPDATE calls SET state = 'READY', observation = NULL, binding_sha256 = NULL, settled_at = NULL {CALL}",
        "RESULT_MISSING",
    ),
    "request": ("UPDATE turns SET request_sha256 = 'x' WHERE operation_id = :o AND turn = 1", "BINDING"),
    "adapter": ("UPDATE turns SET adapter_revision = 'x' WHERE operation_id = :o AND turn = 1", "BINDING"),
    "subject": ("UPDATE operations SET subject = 'x' WHERE operation_id = :o", "BINDING"),
}  # fmt: skip


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", sorted(FACTS))
def test_tampers_of_what_the_rows_speak_of(played: Played, tmp_path: Path, name: str) -> None:
    statement, code = FACTS[name]
    values = {"c": played.calls[0]} if ":c" in statement else {"o": played.operation_id}
    sql_as_owner(played.bench, statement, **values)
    ours, theirs = both(played, tmp_path)
    assert [(found, call) for found, _, call in ours] == [(code, played.calls[0])]
    assert theirs == ours


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE operations SET tenant = 'globex' WHERE operation_id = :o", "TENANT_CHANGED"),
        ("UPDATE operations SET state = 'CANCELLED' WHERE operation_id = :o", "STATE_CHANGED"),
        ("UPDATE actions SET idempotency_key = idempotency_key || 'x' WHERE operation_id = :o", "BINDING"),
    ],
)
def test_tampers_of_the_operation(played: Played, tmp_path: Path, statement: str, code: str) -> None:
    sql_as_owner(played.bench, statement, o=played.operation_id)
    ours, theirs = both(played, tmp_path)
    assert [found for found, _, _ in ours] == [code]
    assert theirs == ours


@pytest.mark.usefixtures("restored")
def test_rows_without_an_operation_are_found(played: Played, tmp_path: Path) -> None:
    sql_as_owner(played.bench, "DELETE FROM audit", "DELETE FROM operations WHERE operation_id = :o", o=played.foreign)
    restore = "INSERT INTO audit OVERRIDING SYSTEM VALUE SELECT * FROM kept_audit WHERE seq <> 2"
    sql_as_owner(played.bench, restore)
    found = {f.operation_id: (f.code, f.seq) for f in verify(played.bench.app.database).findings}
    assert found[played.foreign] == ("MISSING", 2)


# --- the commands --------------------------------------------------------------------------------------------------


def run(played: Played, *argv: str) -> tuple[int, str, str]:
    settings = played.bench.app.settings
    env = {
        **os.environ, "TURNQUEUE_DATABASE_URL": str(settings.database_url), "ANCHOR_KEY": KEY.decode(),
        "TURNQUEUE_BROKER_URL": str(settings.broker_url), "TURNQUEUE_ANCHOR_KEY_ENV": "ANCHOR_KEY",
        "TURNQUEUE_ANCHOR_FILE": str(played.anchors),
    }  # fmt: skip
    done = subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_verify_and_the_stand_alone_script_agree_that_all_holds(played: Played, tmp_path: Path) -> None:
    export = tmp_path / "export"
    code, out, _ = run(played, "-m", "orchestrator.cli", "audit", "verify", "--export", str(export), "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["operations"], report["findings"]) == (0, True, 12, [])
    # -I -S: nothing but the standard library can be imported.
    alone = ("-I", "-S", "-W", "error", str(SCRIPT), str(export), "--anchors", str(played.anchors))
    code, out, err = run(played, *alone, "--key-env", "ANCHOR_KEY")
    assert (code, out, err) == (0, "12 operations: everything holds\n", "")
    code, _, err = run(played, *alone)
    assert (code, "not checked" in err) == (0, True)


@pytest.mark.usefixtures("restored")
def test_both_commands_name_the_wrong_row(played: Played, tmp_path: Path) -> None:
    sql_as_owner(played.bench, f"UPDATE audit SET actor = 'approver:boss' {ROW}", o=played.operation_id)
    export = tmp_path / "export"
    audit = ("-m", "orchestrator.cli", "audit", "verify")
    code, out, _ = run(played, *audit, "--export", str(export))
    assert code == 1
    assert out.startswith(f"ENTRY_CHANGED: {played.operation_id}, row 5: ")
    code, out, _ = run(played, "-I", "-S", str(SCRIPT), str(export), "--json")
    assert code == 1
    [found] = json.loads(out)["findings"]
    assert (found["operation_id"], found["code"], found["seq"]) == (played.operation_id, "ENTRY_CHANGED", 5)
    assert run(played, *audit, "--operation", played.foreign)[0] == 0


def test_one_operation_alone(played: Played, tmp_path: Path) -> None:
    export = tmp_path / "export"
    audit = ("-m", "orchestrator.cli", "audit", "verify", "--operation")
    code, out, _ = run(played, *audit, played.operation_id, "--export", str(export))
    assert (code, out.startswith("1 operations, ")) == (0, True)
    code, out, _ = run(played, "-I", "-S", str(SCRIPT), str(export), "--anchors", str(played.anchors))
    assert (code, out) == (0, "1 operations: everything holds\n")
    assert run(played, *audit, "op_nobody")[0] == 3
    with pytest.raises(NotFound):
        verify(played.bench.app.database, operation_id="op_nobody")


def test_a_cut_export_is_no_proof(played: Played, tmp_path: Path) -> None:
    export = tmp_path / "export"
    verify(played.bench.app.database, export=export)
    lines = export.read_text().splitlines(keepends=True)
    for cut in (lines[:-1], [*lines[:5], *lines[6:]], lines[1:], []):
        export.write_text("".join(cut))
        assert run(played, "-I", "-S", str(SCRIPT), str(export))[0] == 1
    assert run(played, "-I", "-S", str(SCRIPT), str(tmp_path / "none"))[0] == 2


def test_no_argument_and_no_result_is_exported(played: Played, tmp_path: Path) -> None:
    verify(played.bench.app.database, export=tmp_path / "export")
    text = (tmp_path / "export").read_text()
    observed = played.bench.sql("SELECT observation FROM calls WHERE length(observation) > 40")
    assert observed
    assert not [row for row in observed if json.dumps(row["observation"])[1:-1] in text]
    assert "ORD-1" not in text
