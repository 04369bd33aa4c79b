"""What an observer is told of the events of one chunk."""

from typing import Any, Literal

from adapters.base import Progress
from adapters.documents import clean_text
from adapters.names import ToolNames

Kind = Literal["text", "reasoning", "refusal"]


class Heard:
    """Neighbouring pieces of one kind are told as one; whatever the server sent, it can be shown and stored."""

    __slots__ = ("_kind", "_names", "_pieces", "_told")

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self._told: list[Progress] = []
        self._kind: Kind = "text"
        self._pieces: list[str] = []

    def say(self, kind: Kind, piece: Any) -> None:
        """The next piece of a text; anything else says nothing."""
        if isinstance(piece, str):
            if kind != self._kind:
                self._close()
                self._kind = kind
            self._pieces.append(piece)

    def call(self, wire_name: Any) -> None:
        """The model prepares to call a tool."""
        self._close()
        name = clean_text(wire_name) if isinstance(wire_name, str) else ""
        self._told.append(Progress("call", name=self._names.from_wire(name)))

    def told(self) -> list[Progress]:
        self._close()
        return self._told

    def _close(self) -> None:
        text = clean_text("".join(self._pieces))
        self._pieces.clear()
        if text:
            self._told.append(Progress(self._kind, text))
