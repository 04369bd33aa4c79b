"""Server-sent events, decoded incrementally: bytes in, events out, linear in time and memory.

Lines end with LF, CRLF or CR; a character may be split between chunks; a last event without its blank line is given
out by `close`, for servers that end that way. What an event means is the accumulators' business.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from adapters.base import Completion, HttpResponse, ModelRequest, Progress, Reply
from adapters.documents import UnreadableBody, clean_text, read_event, read_json
from adapters.failures import INTERRUPTED, protocol_failure
from adapters.runs import joined, seam_of
from orchestrator.domain.transcript import JsonObject

_MAX_NAMES = 100  # so many names of so many bytes
_MAX_JUNK = 64  # lines kept after the first event, where only a bare error object could still matter
_MANY, _SHORT = 32, 4096  # so many events in one chunk, and of so many bytes: worth joining
_LOOKS = 16  # at how a reply's events could be joined; where they always differ in more, looking only costs


class SseEvent(NamedTuple):
    """`data` is the joined data lines, still bytes; `event` is empty where the server sends none."""

    event: str
    data: bytes


class SseDecoder:
    """Feed chunks of any size; the same events come out however the stream is cut into chunks."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the unfinished line; joined once, so that a long line costs linear time
        self._after_cr = False  # the last chunk ended with CR: a leading LF belongs to it
        self._first = True
        self._event = ""
        self._data: list[bytes] = []
        self._names: dict[bytes, str] = {}  # of events, by their line: few are used and each comes often
        self.junk: list[bytes] = []  # lines that are no SSE at all, for servers that answer with bare JSON
        self.seam = b""  # between two events that may be given out as one (see `adapters.runs`)

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        return map(SseEvent._make, self.pairs(chunk))

    def close(self) -> Iterator[SseEvent]:
        """The body has ended: the event that still waits for its blank line, if there is one."""
        return map(SseEvent._make, self.last_pairs())

    def pairs(self, chunk: bytes) -> list[tuple[str, bytes]]:
        """`feed` for the accumulators, where each event costs: name and data, all that the chunk completes."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
            if not chunk:
                return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self.seam:
            chunk = joined(chunk, self.seam)
        lines = chunk.split(b"\n")
        last = lines.pop()
        if lines and self._pieces:
            self._pieces.append(lines[0])
            if self._pieces[0].startswith(b"data: "):  # its mark goes before the joining: the line may be megabytes
                self._pieces[0] = self._pieces[0][6:]
                self._data.append(b"".join(self._pieces))
                self._first = False
                del lines[0]
            else:
                lines[0] = b"".join(self._pieces)
            self._pieces.clear()
        if last:
            self._pieces.append(last)
        return self._events(lines)

    def last_pairs(self) -> list[tuple[str, bytes]]:
        """`close` in the same form."""
        lines = [b"".join(self._pieces), b""] if self._pieces else [b""]
        self._pieces.clear()
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[tuple[str, bytes]]:
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        events: list[tuple[str, bytes]] = []
        data, name = self._data, self._event
        for line in lines:
            if not line:
                if data:
                    events.append((name, data[0] if len(data) == 1 else b"\n".join(data)))
                    data.clear()
                name = ""
            elif line.startswith(b"data: "):
                data.append(line[6:])
            elif line.startswith(b"data:"):
                data.append(line[5:])
            elif line.startswith(b"event:"):
                known = self._names.get(line)
                name = known if known is not None else self._name(line)
            elif not line.startswith((b":", b"id:", b"retry:")):
                self.junk.append(line)
        self._event = name
        return events

    def _name(self, line: bytes) -> str:
        name = line[6:].strip().decode(errors="replace")
        if len(self._names) < _MAX_NAMES and len(line) < _MAX_NAMES:
            self._names[line] = name
        return name


class EventAccumulator(ABC):
    """An `Accumulator` for streams of JSON events: decodes, parses, and reads a body that is no stream at all.

    A subclass takes the events one by one and says in the end what they add up to. An event that is no JSON breaks the
    stream; the last one, which the end of the body may have cut, makes it an interrupted one.
    """

    marker_ends = False  # nothing that counts comes after `[DONE]`
    objects: tuple[str, ...] = ()  # one of these stands in each event that can have arguments as an object

    def __init__(self, head: HttpResponse, request: ModelRequest) -> None:
        self.done = False
        self.head = head
        self.request = request
        self._decoder = SseDecoder()
        self._looks = _LOOKS
        self._any = False  # the body is a stream of events
        self._broken = False
        self._cut = False

    def feed(self, chunk: bytes) -> Sequence[Progress]:
        progress: list[Progress] = []
        if not self.done:
            pending = self._decoder.pairs(chunk)
            if len(pending) >= _MANY and self._looks and len(pending[-1][1]) <= _SHORT:
                self._looks -= 1
                self._decoder.seam = seam_of(*pending[-1], self.grows) or self._decoder.seam
            pending.reverse()
            while pending and not self.done:
                self._parse(pending, progress)
        return progress

    def finish(self) -> Reply:
        if not self.done:
            pending = self._decoder.last_pairs()
            while pending:
                self._cut = not self._parse(pending, [])
        bare = self._bare()
        if not self._any:
            reply = self.document_reply(bare)
            return reply if self._decoder.junk else interrupted(reply)
        if isinstance(bare, dict) and bare.get("error") and not self.done:
            self.take("error", bare, [])
        reply = self.result()
        if reply.completion is Completion.API_FAILURE:
            return replace(reply, items=())  # half an item must never be carried back
        if not (self._cut or self._broken):
            return reply
        return interrupted(reply) if self._cut else interrupted(reply, "UNREADABLE_BODY")

    @abstractmethod
    def take(self, event: str, document: Any, progress: list[Progress]) -> None:
        """One event; `event` is its name or empty. Sets `done` at the explicit end, fills `progress`, never raises."""

    def grows(self, event: str, document: Any) -> tuple[JsonObject, str] | None:
        """The object and key of a text, where all that the event does is add that text to what came before.

        Two such events that differ in nothing else then count as one with both texts, and are not parsed one by one.
        """
        return None

    @abstractmethod
    def result(self) -> Reply:
        """What the events add up to; `interrupted` where the completion event is missing."""

    @abstractmethod
    def document_reply(self, document: Any) -> Reply:
        """The reply for a body of one JSON document instead of a stream; None where it was not even that."""

    def _parse(self, pending: list[tuple[str, bytes]], progress: list[Progress]) -> bool:
        """The last of `pending`. An event can be the whole reply, so no form of it outlives the next one."""
        self._any = True
        name, data = pending.pop()
        text: str | None = None
        try:
            text = data.decode()
            del data
            document = read_event(text, doubled=self._may_double(text))
        except (UnicodeDecodeError, UnreadableBody):
            return self._no_json(text and text.strip())
        del text
        self.take(name, document, progress)
        return True

    def _may_double(self, text: str) -> bool:
        for mark in self.objects:  # noqa: SIM110 - faster than `any`, and this runs once per event
            if mark in text:
                return True
        return False

    def _no_json(self, text: str | None) -> bool:
        """Whether it is nothing bad all the same: the end marker, or empty data that keeps a connection alive."""
        if text == "[DONE]":
            self.done = self.done or self.marker_ends
        elif text != "":
            self._broken = True
        return text in ("", "[DONE]")

    def _bare(self) -> Any:
        """The lines that were no events, as JSON: a whole reply, or an error in the middle of a stream."""
        junk = self._decoder.junk
        if not junk or (self._any and len(junk) > _MAX_JUNK):
            return None
        try:
            return read_json(b"\n".join(junk))
        except UnreadableBody:
            return None


def said(text: Any) -> str:
    """A piece of text for `Progress`: storable, whatever the server sent."""
    return clean_text(text) if isinstance(text, str) else ""


def interrupted(reply: Reply, code: str = INTERRUPTED) -> Reply:
    """The reply so far, as the failure that it is when its stream did not end properly: nothing is proposed."""
    failure = protocol_failure(code, retryable=True)
    return replace(reply, completion=Completion.API_FAILURE, calls=(), refusal=None, items=(), failure=failure)
