"""What the fault proxy understands of PostgreSQL's protocol (version 3): where a statement ends, and whether it lasts.

One `Session` per connection. It watches both directions and keeps back the server's answer to a statement that it was
told to cut, until the answer is complete and says that what the statement did is durable.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102  # instead of a protocol version, in a first message without a type
_COMMITS = re.compile(rb"\s*(COMMIT|END)\b", re.IGNORECASE)
# Every change that the system's statements can make; `FOR UPDATE` changes nothing.
_CHANGES = re.compile(rb"\bINSERT\s+INTO\b|(?<!FOR )\bUPDATE\s+\w|\bDELETE\s+FROM\b", re.IGNORECASE)


class Frames:
    """Cuts a stream into whole messages: (type, body) each, also where a chunk holds several or half of one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        data = self._rest + data
        found, at = [], 0
        while len(data) - at >= 5:
            end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            found.append((data[at], data[at + 5 : end]))
            at = end
        self._rest = data[at:]
        return found


@dataclass(slots=True)
class Verdict:
    """What becomes of a chunk from the server. `cut`: reset the client instead, what it waits for is durable."""

    forward: bytes
    cut: str = ""


@dataclass
class Session:
    """`choose(kind)` draws whether to cut the answer of a "commit", or of another statement ("answer"), or to keep a
    commit from the server ("uncommitted")."""

    choose: Callable[[str], bool]
    commits: int = 0  # that changed something and whose answer went through
    uncommitted: bool = False  # what was asked last must not reach the server
    _started: bool = False
    _greeting: bytes = b""
    _asked: Frames = field(default_factory=Frames)
    _answered: Frames = field(default_factory=Frames)
    _statements: dict[bytes, bytes] = field(default_factory=dict)  # by name, as the client prepared them
    _portals: dict[bytes, bytes] = field(default_factory=dict)
    _idle: bool = True  # no transaction is open
    _changed: bool = False  # the open transaction has changed something
    _commit: bool = False  # the statement that is waited for is a commit of such a transaction
    _held: str = ""  # the kind that is to be cut
    _kept: bytes = b""  # the answer so far
    _tag: bytes = b""
    _failed: bool = False

    # --- the client's side --------------------------------------------------------------------------------------------

    def ask(self, data: bytes) -> tuple[bytes, bytes]:
        """(what goes to the server, what goes straight back to the client)."""
        if not self._started:
            return self._greet(data)
        for kind, body in self._asked.feed(data):
            self._hear(kind, body)
        return data, b""

    def _greet(self, data: bytes) -> tuple[bytes, bytes]:
        """No encryption here: the refusal is ours, so that the server sees an ordinary start."""
        self._greeting += data
        if len(self._greeting) < 8:
            return b"", b""
        size, code = (int.from_bytes(self._greeting[at : at + 4], "big") for at in (0, 4))
        if len(self._greeting) < size:
            return b"", b""
        first, rest = self._greeting[:size], self._greeting[size:]
        self._greeting = b""
        if code in (_SSL, _GSS):
            forward, back = self._greet(rest) if rest else (b"", b"")
            return forward, b"N" + back
        self._started = True
        return first + (self.ask(rest)[0] if rest and code != _CANCEL else rest), b""

    def _hear(self, kind: int, body: bytes) -> None:
        match chr(kind):
            case "Q":
                self._run(body.rstrip(b"\0"))
            case "P":
                name, text, _ = body.split(b"\0", 2)
                self._statements[name] = text
            case "B":
                portal, name, _ = body.split(b"\0", 2)
                self._portals[portal] = self._statements.get(name, b"")
            case "E":
                self._run(self._portals.get(body.split(b"\0", 1)[0], b""))

    def _run(self, text: bytes) -> None:
        if _COMMITS.match(text):
            self._commit = self._changed
            if self._changed and self.choose("commit"):
                self._held = "commit"
            elif self._changed and self.choose("uncommitted"):
                self.uncommitted = True
            return
        if _CHANGES.search(text):
            self._changed = True
            if self._idle and self.choose("answer"):
                self._held = "answer"

    # --- the server's side --------------------------------------------------------------------------------------------

    def answer(self, data: bytes) -> Verdict:
        done = False
        for kind, body in self._answered.feed(data):
            match chr(kind):
                case "C":
                    self._tag = body.rstrip(b"\0")
                case "E":
                    self._failed = True
                case "Z":
                    done = True
                    durable = self._ready(body)
        if not self._held:
            return Verdict(data)
        self._kept += data
        if not done:
            return Verdict(b"")
        fault, self._held = self._held, ""
        kept, self._kept = self._kept, b""
        return Verdict(b"", fault) if durable else Verdict(kept)

    def _ready(self, status: bytes) -> bool:
        """The server waits for the next statement; whether the last one's work is durable."""
        durable = status == b"I" and not self._failed and (self._tag == b"COMMIT" or self._idle)
        if self._commit and durable and not self._held:
            self.commits += 1
        self._idle = status == b"I"
        if self._idle:
            self._changed = False
        self._commit = self._failed = False
        self._tag = b""
        return durable
