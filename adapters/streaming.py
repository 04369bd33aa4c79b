"""Server-sent events, decoded incrementally: bytes in, events out, linear in time and memory.

Lines end with LF, CRLF or CR; a character may be split between chunks; a last event without its blank line is given
out by `close`, for servers that end that way. What an event means is the accumulators' business.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SseEvent:
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
        self._any = False
        self.junk: list[bytes] = []  # lines that are no SSE at all, for servers that answer with bare JSON

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        if not chunk:
            return
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines(keepends=True)
        for line in lines:
            if not line.endswith((b"\n", b"\r")):
                self._pieces.append(line)
                continue
            whole = line.rstrip(b"\r\n") if not self._pieces else b"".join((*self._pieces, line)).rstrip(b"\r\n")
            self._pieces.clear()
            event = self._line(whole)
            if event is not None:
                yield event

    def close(self) -> Iterator[SseEvent]:
        """The body has ended: the event that still waits for its blank line, if there is one."""
        if self._pieces:
            whole = b"".join(self._pieces)
            self._pieces.clear()
            self._line(whole)
        event = self._line(b"")
        if event is not None:
            yield event

    def _line(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._any = True
        elif line.startswith(b"event:"):
            self._event = line[6:].strip().decode(errors="replace")
        elif not line.startswith((b":", b"id:", b"retry:")):
            self.junk.append(line)
        return None

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(self._event, b"\n".join(self._data)) if self._any else None
        self._event, self._any = "", False
        self._data.clear()
        return event
