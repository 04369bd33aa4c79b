"""The anchor file: what is written and when, what the sweeper resumes from, and a database that went backwards."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator import anchors, sweeper
from orchestrator.auditing import Anchoring, verify
from orchestrator.domain.errors import ConfigError
from orchestrator.settings import Settings
from tests.audit.bench import Bench
from tests.audit.world import KEY, sql_as_owner


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "anchors.jsonl"


def anchoring(bench: Bench, path: Path) -> Anchoring:
    return Anchoring(bench.app.database, path, KEY, 60)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def heads(path: Path) -> list[dict[str, int]]:
    return [{head["operation_id"]: head["seq"] for head in line["heads"]} for line in lines(path)]


def head(bench: Bench, operation_id: str) -> int:
    [row] = bench.sql("SELECT max(seq) AS seq FROM audit WHERE operation_id = :o", o=operation_id)
    return int(row["seq"])


def test_only_heads_that_changed_are_written(bench: Bench, path: Path) -> None:
    writer = anchoring(bench, path)
    first = bench.submit("acme")
    assert writer.round() >= 1
    assert writer.round() == 0
    bench.settle()
    second = bench.submit("acme")
    assert writer.round() == 2
    assert heads(path)[0][first] == 1
    assert heads(path)[1:] == [{first: head(bench, first), second: 1}]
    assert path.stat().st_mode & 0o007 == 0
    assert anchors.read(path, KEY).findings == []
    report = verify(bench.app.database, anchored=anchors.read(path, KEY))
    assert (report.findings, report.anchor_lines) == ([], 2)


def test_a_new_sweeper_goes_on_where_the_last_one_stopped(bench: Bench, path: Path) -> None:
    bench.settle()
    operation_id = bench.submit("acme")
    assert anchoring(bench, path).round() >= 1
    assert anchoring(bench, path).round() == 0
    bench.settle()
    assert anchoring(bench, path).round() == 1
    assert heads(path)[-1] == {operation_id: head(bench, operation_id)}
    found = anchors.read(path, KEY)
    assert (found.findings, found.lines) == ([], 2)


def test_a_row_that_becomes_visible_late_is_not_missed(bench: Bench, path: Path) -> None:
    """Its audit_id is smaller than one that was anchored already."""
    from orchestrator import engine
    from store import operations

    slow, writer = bench.submit("acme"), anchoring(bench, path)
    with bench.app.database.transaction() as connection:
        operations.lock(connection, slow)
        engine.Unit(connection, "slow").audit(slow, "slow")
        quick = bench.submit("acme")
        writer.round()
        assert heads(path)[-1][quick] == 1
    assert writer.round() == 1
    assert heads(path)[-1] == {slow: 2}


def test_many_heads_make_many_lines(bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "MAX_HEADS", 2)
    wanted = [(f"op_{number}", number + 1, "a" * 64) for number in range(5)]
    assert anchors.AnchorLog(path, KEY).append("2026-01-01T00:00:00.000000Z", 9, wanted) == 3
    found = anchors.read(path, KEY)
    assert (found.findings, found.lines, len(found.points)) == ([], 3, 5)


def test_a_fragment_of_a_writer_that_died_is_harmless_and_its_loss_is_not(path: Path) -> None:
    log = anchors.AnchorLog(path, KEY)
    for number in range(3):
        log.append(f"2026-01-01T00:0{number}:00.000000Z", number, [("op_1", number + 1, "a" * 64)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert [f.code for f in anchors.read(path, KEY).findings] == ["ANCHOR_UNREADABLE"]
    log.append("2026-01-01T00:04:00.000000Z", 4, [("op_1", 5, "a" * 64)])
    found = anchors.read(path, KEY)
    assert (found.findings, found.lines) == ([], 4)
    assert found.notes == ["anchor line 3 is a fragment that a stopped writer left"]
    text = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*text[:2], b'{"at"}\n', text[3]]))
    assert [(f.code, f.line) for f in anchors.read(path, KEY).findings] == [
        ("ANCHOR_UNREADABLE", 3), ("ANCHOR_NOT_LINKED", 4),
    ]  # fmt: skip


def test_signatures_need_the_key(path: Path) -> None:
    anchors.AnchorLog(path, KEY).append("2026-01-01T00:00:00.000000Z", 1, [("op_1", 1, "a" * 64)])
    assert [f.code for f in anchors.read(path, b"another key, long enough").findings] == ["ANCHOR_OTHER_KEY"]
    without = anchors.read(path, None)
    assert (without.findings, len(without.notes)) == ([], 1)
    assert KEY not in path.read_bytes()


def test_keys_are_referred_to(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY + b"\n")
    assert anchors.key_of(Settings(anchor_key_file=file)) == KEY
    assert anchors.key_of(Settings(anchor_key_env="K"), {"K": KEY.decode()}) == KEY
    assert anchors.key_of(Settings()) is None
    for settings in (Settings(anchor_key_env="K"), Settings(anchor_key_file=tmp_path / "none")):
        with pytest.raises(ConfigError) as error:
            anchors.key_of(settings, {"K": "short"})
        assert error.value.code == "BAD_ANCHOR_KEY"


def test_a_file_without_a_key_is_a_config_error(bench: Bench, path: Path) -> None:
    assert Anchoring.configured(bench.app.database, Settings()) is None
    with pytest.raises(ConfigError, match="ANCHOR_KEY_ENV"):
        Anchoring.configured(bench.app.database, Settings(anchor_file=path))


def test_a_database_that_went_backwards_is_seen(bench: Bench, path: Path) -> None:
    """As from an older backup: the newest rows are gone, the rest is as it was."""
    operation_id = bench.play("acme")
    anchoring(bench, path).round()
    last = head(bench, operation_id)
    sql_as_owner(bench, "DELETE FROM audit WHERE operation_id = :o AND seq > :s", o=operation_id, s=last - 2)
    with capture_logs() as logs:
        anchoring(bench, path).round()
    assert [(e["event"], e["log_level"]) for e in logs] == [
        ("audit.went_backwards", "error"), ("audit.not_as_anchored", "error"), ("writes.halted", "error"),
    ]  # fmt: skip
    assert logs[1]["operation_id"] == operation_id
    [finding] = verify(bench.app.database, operation_id=operation_id, anchored=anchors.read(path, KEY)).findings
    assert (finding.code, finding.seq, finding.line) == ("TRUNCATED", last - 1, 1)
    bench.sql("SELECT 1")
    gone = ["DELETE FROM audit WHERE operation_id = :o", "DELETE FROM operations WHERE operation_id = :o"]
    sql_as_owner(bench, *gone, o=operation_id)
    [finding] = verify(bench.app.database, operation_id=operation_id, anchored=anchors.read(path, KEY)).findings
    assert (finding.code, finding.seq) == ("TRUNCATED", 1)


def test_a_file_that_cannot_be_written_does_not_stop_the_sweeper(bench: Bench, tmp_path: Path) -> None:
    bench.submit("acme")
    with capture_logs() as logs:
        assert anchoring(bench, tmp_path / "no" / "such" / "folder").step() == 0
    assert [entry["event"] for entry in logs] == ["anchor.failed"]


def test_the_sweeper_anchors(bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANCHOR_KEY", KEY.decode())
    changed = {"anchor_file": path, "anchor_key_env": "ANCHOR_KEY", "anchor_seconds": 0.05, "sweep_seconds": 0.06}
    monkeypatch.setattr(bench.app, "settings", bench.app.settings.model_copy(update=changed))
    operation_id, stop = bench.submit("acme"), threading.Event()
    thread = threading.Thread(target=sweeper.run, args=(bench.app, stop))
    thread.start()
    try:
        while not path.exists() or not any(operation_id in each for each in heads(path)):
            assert thread.is_alive()
    finally:
        stop.set()
        thread.join()
    assert anchors.read(path, KEY).findings == []
