"""Anchors: chain heads in a signed, append-only file outside the database. docs/audit.md describes its lines.

A chain in a database shows no cut end and no full rewriting; the file does, as long as whoever changed the database
could not change it too. Lines are chained, so that removing one shows; ship the file to where nobody can rewrite it.
"""

import fcntl
import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.domain import digests
from orchestrator.domain.errors import ConfigError
from orchestrator.evidence import Finding, Point
from orchestrator.settings import PREFIX, Settings

ALGORITHM = "hmac-sha256"
GENESIS = hashlib.sha256(b"audit-anchor-genesis-v1").hexdigest()
_LINE, _KEY = b"audit-anchor-v1\0", b"audit-anchor-key-v1\0"
MAX_HEADS = 10_000  # of one line
MIN_KEY = 16  # bytes

Head = tuple[str, int, str]  # operation_id, seq, sha256


def key_of(settings: Settings, environ: Mapping[str, str] | None = None) -> bytes | None:
    """The key that the settings refer to; None: they name none. Raises ConfigError."""
    name, file = settings.anchor_key_env, settings.anchor_key_file
    if name is not None:
        value = (os.environ if environ is None else environ).get(name, "").encode()
        where = f"environment variable {name}"
    elif file is not None:
        where = str(file)
        try:
            value = file.read_bytes()
        except OSError as error:
            raise ConfigError("BAD_ANCHOR_KEY", f"{PREFIX}ANCHOR_KEY_FILE: {where}: {error.strerror}") from None
    else:
        return None
    if len(value.strip()) < MIN_KEY:
        raise ConfigError("BAD_ANCHOR_KEY", f"{where}: the anchor key must have at least {MIN_KEY} bytes")
    return value.strip()


def key_id(key: bytes) -> str:
    """Tells keys apart without telling the key."""
    return hashlib.sha256(_KEY + key).hexdigest()[:16]


def signature(key: bytes, line: Mapping[str, Any]) -> str:
    unsigned = {name: value for name, value in line.items() if name != "signature"}
    return hmac.new(key, _LINE + digests.canonical(unsigned), hashlib.sha256).hexdigest()


# --- writing -------------------------------------------------------------------------------------------------------


class AnchorLog:
    """The file, for one writer at a time. Nothing in it is ever changed."""

    def __init__(self, path: Path, key: bytes) -> None:
        self.path = path
        self._key = key

    def append(self, at: str, through: int, heads: Sequence[Head]) -> int:
        """Add lines with these heads and flush them to the disk; how many. `through`: the largest audit_id seen."""
        created = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            lines = 0
            for start in range(0, len(heads), MAX_HEADS):
                self._write(descriptor, at, through, heads[start : start + MAX_HEADS])
                lines += 1
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if created:
            _sync_directory(self.path.parent)
        return lines

    def _write(self, descriptor: int, at: str, through: int, heads: Sequence[Head]) -> None:
        last, whole = _last_line(descriptor)
        line: dict[str, Any] = {
            "at": at,
            "through": through,
            "heads": [{"operation_id": i, "seq": s, "sha256": d} for i, s, d in heads],
            "algorithm": ALGORITHM,
            "key_id": key_id(self._key),
            "prev_line_sha256": GENESIS if last is None else hashlib.sha256(last).hexdigest(),
        }
        line["signature"] = signature(self._key, line)
        # A writer that died in mid-line left no newline: its rest becomes a line of its own, covered by this one.
        data = (b"" if whole else b"\n") + digests.canonical(line) + b"\n"
        while data:
            data = data[os.write(descriptor, data) :]


def _last_line(descriptor: int) -> tuple[bytes | None, bool]:
    """The last line (None: the file is empty) and whether a newline ends it."""
    size, tail, block = os.fstat(descriptor).st_size, b"", 64 * 1024
    if size == 0:
        return None, True
    while len(tail) < size and b"\n" not in tail[:-1]:
        block *= 2
        start = max(0, size - block)
        tail = os.pread(descriptor, size - start, start)
    whole = tail.endswith(b"\n")
    return (tail[:-1] if whole else tail).rpartition(b"\n")[2], whole


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Anchored:
    """What an anchor file proves. `notes` are for people: what could not be checked, or harmless damage."""

    points: dict[str, list[Point]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lines: int = 0


def read(path: Path, key: bytes | None) -> Anchored:
    """Check every line of the file. Raises ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return check(file, key)
    except OSError as error:
        raise ConfigError("NO_ANCHORS", f"{path}: {error.strerror}") from None


def check(lines: Iterable[bytes], key: bytes | None) -> Anchored:
    """The heads of every line that holds. Lines that do not are findings; those after a gap are used all the same."""
    found = Anchored()
    if key is None:
        found.notes.append("no anchor key is configured: signatures are not checked")
    prev, torn = GENESIS, 0
    for number, raw in enumerate(lines, 1):
        found.lines = number
        text = raw.removesuffix(b"\n")
        line = _parsed(text)
        if line is None:
            if torn:
                found.findings.append(Finding("ANCHOR_UNREADABLE", line=torn, detail="the line is not an anchor"))
            torn = number
        else:
            code = _line_problem(line, prev, key)
            if torn:
                _judge_torn(found, torn, covered=code is None)
                torn = 0
            if code is not None:
                found.findings.append(Finding(code, line=number, detail=_WHY[code]))
            if code in (None, "ANCHOR_NOT_LINKED"):
                for head in line["heads"]:
                    point = Point(head["seq"], head["sha256"], number)
                    found.points.setdefault(head["operation_id"], []).append(point)
        prev = hashlib.sha256(text).hexdigest()
    if torn:
        _judge_torn(found, torn, covered=False)
    return found


def _judge_torn(found: Anchored, line: int, *, covered: bool) -> None:
    """An unreadable line that the next one covers was so when that one was signed: its writer had died."""
    if covered:
        found.notes.append(f"anchor line {line} is a fragment that a stopped writer left")
    else:
        found.findings.append(Finding("ANCHOR_UNREADABLE", line=line, detail="the line is not an anchor"))


_WHY = {
    "ANCHOR_NOT_LINKED": "prev_line_sha256 is not that of the line before: lines were removed, added or changed",
    "ANCHOR_UNSIGNED": "the signature does not fit the line",
    "ANCHOR_OTHER_KEY": "signed with another key than the one given",
}


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
        heads = [(h["operation_id"], h["seq"], h["sha256"]) for h in line["heads"]]
        shaped = all(isinstance(i, str) and type(s) is int and isinstance(d, str) for i, s, d in heads)
        texts = all(isinstance(line[name], str) for name in ("key_id", "prev_line_sha256", "signature"))
        texts = texts and datetime.fromisoformat(line["at"]).tzinfo is not None
        return line if shaped and texts and type(line["through"]) is int else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _line_problem(line: Mapping[str, Any], prev: str, key: bytes | None) -> str | None:
    if key is not None and line["key_id"] != key_id(key):
        return "ANCHOR_OTHER_KEY"
    try:
        if key is not None and not hmac.compare_digest(signature(key, line).encode(), line["signature"].encode()):
            return "ANCHOR_UNSIGNED"
    except ValueError:
        return "ANCHOR_UNSIGNED"
    return None if line["prev_line_sha256"] == prev else "ANCHOR_NOT_LINKED"


def tail(path: Path, span: timedelta) -> list[dict[str, Any]]:
    """The last lines, oldest first: those of the last `span` before the newest, and the one before them."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        size, block = os.fstat(descriptor).st_size, 256 * 1024
        while True:
            start = max(0, size - block)
            texts = os.pread(descriptor, size - start, start).split(b"\n")[1 if start else 0 :]
            lines = [line for text in texts if (line := _parsed(text)) is not None]
            since = max((line["at"] for line in lines), default="")
            old = [i for i, line in enumerate(lines) if _age(line["at"], since) >= span]
            if old or start == 0:
                return lines[old[-1] if old else 0 :]
            block *= 2
    finally:
        os.close(descriptor)


def _age(at: str, now: str) -> timedelta:
    return datetime.fromisoformat(now) - datetime.fromisoformat(at)
