"""Verify and export the audit of a database, and anchor its heads: for `turnqueue audit verify` and the sweeper."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import structlog
from sqlalchemy import Connection

from orchestrator import anchors
from orchestrator.anchors import Anchored, AnchorLog, Head
from orchestrator.domain.errors import ConfigError, NotFound, UserError
from orchestrator.evidence import Evidence, Finding, Point, call_record, check, entry_record, operation_record
from orchestrator.failpoints import failpoint
from orchestrator.settings import PREFIX, Settings
from store import audit, halts
from store.db import Database

log = structlog.get_logger()

BATCH = 200  # operations that are in memory at once
EXPORT_VERSION = 1


@dataclass(slots=True)
class Report:
    """What was checked. It holds when there are no findings; each operation has at most one, its first wrong row."""

    operations: int = 0
    entries: int = 0
    calls: int = 0
    anchor_lines: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# --- verify --------------------------------------------------------------------------------------------------------


def verify(
    database: Database, *, operation_id: str | None = None, anchored: Anchored | None = None, export: Path | None = None
) -> Report:
    """Recompute chains, entries, bindings and anchors of one operation or of all, at one moment of the database.

    Raises NotFound UNKNOWN_OPERATION, unless the anchors know that there was one; ConfigError for a bad `export`.
    """
    report = Report()
    points = dict(anchored.points) if anchored else {}
    if anchored:
        report.anchor_lines, report.notes = anchored.lines, list(anchored.notes)
        report.findings += anchored.findings
    if operation_id is not None:
        points = {operation_id: points[operation_id]} if operation_id in points else {}
    with database.snapshot() as connection, _Exporter(export, operation_id) as exporter:
        halt = halts.current(connection)
        if halt is not None:
            report.notes.append(f"no write starts since {_iso(halt.created_at)}: {halt.code}: {halt.detail}")
        for evidence in _evidence(connection, operation_id, points):
            _count(report, evidence)
            exporter.write(evidence)
            found = check(evidence)
            if found is not None:
                report.findings.append(found)
    if operation_id is not None and not report.operations and not report.findings:
        raise NotFound("UNKNOWN_OPERATION", f"there is no operation {operation_id!r}")
    return report


def _count(report: Report, evidence: Evidence) -> None:
    report.operations += evidence.operation is not None
    report.entries += len(evidence.entries)
    report.calls += len(evidence.calls)


def _evidence(connection: Connection, operation_id: str | None, points: dict[str, list[Point]]) -> Iterator[Evidence]:
    """Everything that is known of each operation, and then of those that only entries or anchors know."""
    seen: set[str] = set()
    for rows in _batches(connection, operation_id):
        for evidence in _batch(connection, rows, points):
            seen.add(evidence.operation_id)
            yield evidence
    if operation_id is None:
        for stray, entries in groupby(audit.strays(connection), key=lambda row: str(row["operation_id"])):
            seen.add(stray)
            records = [entry_record(row) for row in entries]
            yield Evidence(stray, None, records, (), points.get(stray, ()))
    for missing in sorted(set(points) - seen):
        yield Evidence(missing, points=points[missing])


def _batches(connection: Connection, operation_id: str | None) -> Iterator[list[dict[str, Any]]]:
    if operation_id is not None:
        yield audit.operations_named(connection, operation_id)
        return
    after = ""
    while rows := audit.operations_after(connection, after, BATCH):
        yield rows
        after = rows[-1]["operation_id"]


def _batch(
    connection: Connection, rows: Sequence[dict[str, Any]], points: dict[str, list[Point]]
) -> Iterator[Evidence]:
    ids = [row["operation_id"] for row in rows]
    entries, calls, turns = (_grouped(audit.evidence(connection, table, ids)) for table in ("audit", "calls", "turns"))
    for row in rows:
        operation_id = row["operation_id"]
        # The last request of a turn is the one that brought its calls.
        asked = {turn["turn"]: turn for turn in turns.get(operation_id, ())}
        yield Evidence(
            operation_id,
            operation_record(row),
            [entry_record(entry) for entry in entries.get(operation_id, ())],
            [call_record(row, call, asked.get(call["turn"])) for call in calls.get(operation_id, ())],
            points.get(operation_id, ()),
        )


def _grouped(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {str(key): list(group) for key, group in groupby(rows, key=lambda row: row["operation_id"])}


class _Exporter:
    """JSON lines: a header, all records, and a last line with their number. A stopped export has no last line."""

    def __init__(self, path: Path | None, only: str | None) -> None:
        self._path = path
        self._only = only
        self._file: IO[str] | None = None
        self._records = 0

    def __enter__(self) -> "_Exporter":
        if self._path is not None:
            try:
                self._file = self._path.open("w", encoding="utf-8")
            except OSError as error:
                raise ConfigError("BAD_EXPORT", f"{self._path}: {error.strerror}") from None
            self._line({"record": "export", "version": EXPORT_VERSION, "only": self._only})
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is not None:
            if kind is None:
                self._line({"record": "end", "records": self._records})
            self._file.close()

    def write(self, evidence: Evidence) -> None:
        if self._file is None:
            return
        for record in (evidence.operation, *evidence.entries, *evidence.calls):
            if record is not None:
                self._line(record)
                self._records += 1

    def _line(self, value: Any) -> None:
        assert self._file is not None
        self._file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


# --- anchoring -----------------------------------------------------------------------------------------------------

BACKWARDS = "DATABASE_WENT_BACKWARDS"

# A row is visible this long after it took its audit_id at the latest: its transaction is ended before (see store.db).
_SETTLED = timedelta(seconds=120)
Marks = list[tuple[datetime, int]]  # (database time, largest audit_id then), oldest first


class Anchoring:
    """Writes the heads that changed to the anchor file, every `anchor_seconds`. One per sweeper.

    A database that lacks what was anchored, or has it otherwise, halts all writes: what it does not know of may have
    happened. An operator has to lift that (`turnqueue audit accept`).
    """

    def __init__(self, database: Database, path: Path, key: bytes, seconds: float) -> None:
        self._database = database
        self._log = AnchorLog(path, key)
        self._seconds = seconds
        self._next = 0.0
        self._marks: Marks | None = None
        self._known: dict[str, tuple[int, str]] = {}  # heads that were anchored lately

    @classmethod
    def configured(cls, database: Database, settings: Settings) -> "Anchoring | None":
        """None without TURNQUEUE_ANCHOR_FILE. Raises ConfigError where it is set and no key is."""
        if settings.anchor_file is None:
            return None
        key = anchors.key_of(settings)
        if key is None:
            raise ConfigError("MISSING_SETTING", f"{PREFIX}ANCHOR_FILE needs {PREFIX}ANCHOR_KEY_ENV or _KEY_FILE")
        return cls(database, settings.anchor_file, key, settings.anchor_seconds)

    def soon(self) -> None:
        """Make the next step a round: this may be another database than a moment ago."""
        self._next = 0.0

    def step(self) -> int:
        """One round if it is time; how many heads were anchored. A file that cannot be written is logged only."""
        if time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + self._seconds
        try:
            return self.round()
        except OSError as error:
            log.error("anchor.failed", file=str(self._log.path), problem=error.strerror)
            return 0

    def round(self) -> int:
        """Anchor now. Raises OSError."""
        if self._marks is None:
            self._marks, self._known = _anchored(self._database, self._log.path)
        with self._database.snapshot() as connection:
            through, now = audit.last(connection)
            problem = _difference(connection, self._marks, self._known, through)
            newest = max((mark[0] for mark in self._marks), default=now)
            if problem is not None:
                self._marks = []  # of another history: look at all rows again
            heads = audit.heads_after(connection, self._scan_from(now))
        if problem is not None:
            _halt(self._database, problem, newest)
        changed = [head for head in heads if self._known.get(head[0]) != head[1:]]
        failpoint("anchor.writing")
        if changed:
            self._log.append(_iso(now), through, changed)
        self._known = {operation_id: (seq, sha256) for operation_id, seq, sha256 in heads}
        settled = [mark for mark in self._marks if now - mark[0] >= _SETTLED]
        self._marks = [*settled[-1:], *self._marks[len(settled) :], (now, through)]
        return len(changed)

    def _scan_from(self, now: datetime) -> int:
        """After which audit_id to look: rows up to there were visible in an earlier round."""
        return max((through for at, through in self._marks or () if now - at >= _SETTLED), default=0)


def check_anchors(database: Database, settings: Settings) -> None:
    """At the start of a process that can read the anchor file: does the database have what was anchored last?"""
    if settings.anchor_file is None:
        return
    try:
        marks, known = _anchored(database, settings.anchor_file)
    except OSError as error:
        log.error("anchor.failed", file=str(settings.anchor_file), problem=error.strerror)
        return
    with database.snapshot() as connection:
        through, now = audit.last(connection)
        problem = _difference(connection, marks, known, through)
    if problem is not None:
        _halt(database, problem, max((mark[0] for mark in marks), default=now))


def _anchored(database: Database, path: Path) -> tuple[Marks, dict[str, tuple[int, str]]]:
    """Where the last sweeper stopped, from the end of its file, without what an operator has accepted since."""
    with database.autocommit() as connection:
        accepted = halts.accepted(connection)
    marks: Marks = []
    known: dict[str, tuple[int, str]] = {}
    for line in anchors.tail(path, _SETTLED):
        at = datetime.fromisoformat(line["at"])
        if accepted is None or at > accepted:
            marks.append((at, line["through"]))
            known |= {h["operation_id"]: (h["seq"], h["sha256"]) for h in line["heads"]}
    return marks, known


def _difference(connection: Connection, marks: Marks, known: dict[str, tuple[int, str]], through: int) -> str | None:
    """A database that went backwards (an old backup, a standby that lagged) lacks what was anchored."""
    problem = None
    newest = max((mark[1] for mark in marks), default=0)
    if through < newest:
        log.error("audit.went_backwards", newest_row=through, anchored_row=newest)
        problem = f"its newest audit row is {through}, row {newest} was anchored"
    points: list[Head] = [(operation_id, *head) for operation_id, head in known.items()]
    held = audit.links(connection, [(operation_id, seq) for operation_id, seq, _ in points])
    for operation_id, seq, sha256 in points:
        if held.get((operation_id, seq)) != sha256:
            log.error("audit.not_as_anchored", operation_id=operation_id, seq=seq)
            problem = problem or f"row {seq} of {operation_id} is not as it was anchored"
    return problem


def _halt(database: Database, problem: str, anchored_at: datetime) -> None:
    with database.transaction() as connection:
        if halts.raise_(connection, BACKWARDS, problem, anchored_at):
            log.error("writes.halted", code=BACKWARDS, problem=problem)


def accept(database: Database, *, by: str, reason: str) -> list[str]:
    """An operator has looked: writes may start again. Returns the codes of what was lifted. Raises UserError."""
    for name, given in (("by", by), ("reason", reason)):
        if not given.strip():
            raise UserError("BAD_FIELD", f"{name}: say who has looked, and what was found")
    with database.transaction() as connection:
        lifted = halts.lift(connection, by=by.strip(), reason=reason.strip())
    log.info("writes.released", by=by.strip(), codes=lifted)
    return lifted


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
