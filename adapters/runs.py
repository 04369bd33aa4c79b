"""Runs of events that differ in one piece of text only, made one event before anything is parsed.

Most of a long reply is the same event again and again, with a few other characters in it. Parsing each costs more than
all that it says; as bytes they are told apart by what stands between two texts, the seam:

    text of the first  "},"index":0}\\n\\nevent: step.delta\\ndata: {"delta":{"text":"  text of the second

Events are joined only where that is exact: the seam ends one event, is all of the next but its text, and begins the one
after; the text is the inside of a JSON string and UTF-8 in itself. Whatever else there is stays as it came.
"""

import re
from collections.abc import Callable
from typing import Any

from adapters.documents import UnreadableBody, read_event
from orchestrator.domain.transcript import JsonObject

# The object and key of the text, where all that an event does is add this text to what came before. The event's name
# and its document go in.
Place = Callable[[str, Any], tuple[JsonObject, str] | None]

_INSIDE = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_PROBE = "another text"


def seam_of(name: str, data: bytes, place: Place) -> bytes:
    """What would stand between this event and another like it; empty where it does not only add a text."""
    found = _text(name, data, place)
    if found is None or b"\n" in data:
        return b""
    written = f'"{found}"'.encode(errors="replace")
    before, _, after = data.partition(written)
    start, end = before + b'"', b'"' + after
    # The same bytes could stand for something else, and the text be written in another way.
    if _text(name, start + _PROBE.encode() + end, place) != _PROBE:
        return b""
    return end + b"\n\n" + (f"event: {name}\n".encode() if name else b"") + b"data: " + start


def _text(name: str, data: bytes, place: Place) -> str | None:
    try:
        document = read_event(data.decode())
    except (UnicodeDecodeError, UnreadableBody):
        return None
    found = place(name, document)
    return str(found[0][found[1]]) if found else None


def joined(chunk: bytes, seam: bytes) -> bytes:
    """The chunk, whose lines end with LF, with each run of events that the seam joins as one event."""
    first, *parts = chunk.split(seam)
    if len(parts) < 3:  # the last of them is the beginning of an event that may be another one
        return chunk
    last = parts.pop()
    plain, inside = chunk.isascii(), _INSIDE.fullmatch
    kept, run = [first], []
    for part in parts:
        if inside(part):
            run.append(part)
        else:
            kept += _whole(run, plain)
            kept.append(part)
            run = []
    kept += _whole(run, plain)
    kept.append(last)
    return seam.join(kept)


def _whole(run: list[bytes], plain: bool) -> list[bytes]:
    """The texts of a run as one; as they were, where a character would begin in one and end in the next."""
    if len(run) < 2:
        return run
    if not plain:
        try:
            b"\n".join(run).decode()
        except UnicodeDecodeError:
            return run
    return [b"".join(run)]
