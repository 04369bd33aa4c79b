"""A streamed Anthropic message, put together as the message object that the plain API would have sent."""

from collections.abc import Sequence
from typing import Any, Literal

from adapters.anthropic_history import unreadable
from adapters.anthropic_reply import reply_from_document, texts_of_inputs
from adapters.base import HttpResponse, ModelRequest, Progress, Reply
from adapters.documents import UnreadableBody, as_object, as_text, clean_text, read_json, storable
from adapters.names import ToolNames
from adapters.streaming import EventAccumulator, interrupted, said
from orchestrator.domain.transcript import JsonObject

# Deltas whose text is joined -> the field of the block that it belongs to.
_JOINED = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_Kind = Literal["text", "reasoning", "call"]
_PROGRESS: dict[Any, _Kind] = {"text_delta": "text", "thinking_delta": "reasoning"}
_MAY_END_INSIDE = ("max_tokens", "model_context_window_exceeded", "refusal")


class _Block:
    """One content block in the making."""

    __slots__ = ("given", "open", "pieces")

    def __init__(self, given: JsonObject) -> None:
        self.given = dict(given)
        self.pieces: dict[str, list[str]] = {}
        self.open = True

    def whole(self) -> tuple[JsonObject, str | None]:
        """The block, and the text of its input where that came in pieces."""
        for field, pieces in self.pieces.items():
            if field != "partial_json":
                self.given[field] = as_text(self.given.get(field)) + "".join(pieces)
        written = clean_text("".join(self.pieces.get("partial_json", ())))
        if not written.strip():
            return self.given, None
        self.given["input"] = _object(written)
        return self.given, written


class MessagesAccumulator(EventAccumulator):
    """See `adapters.base.Accumulator`. Complete with `message_stop` after a stop reason, and every call closed."""

    objects = ('"tool_use"',)

    def __init__(self, head: HttpResponse, request: ModelRequest) -> None:
        super().__init__(head, request)
        self._names = ToolNames(request.tools)
        self._message: JsonObject = {}
        self._blocks: dict[Any, _Block] = {}
        self._error: JsonObject | None = None
        self._started = False
        self._odd = False  # events that do not fit together: something was lost
        self._heard: list[tuple[_Kind, list[str]]] = []  # of one chunk; neighbouring pieces of text become one

    def feed(self, chunk: bytes) -> Sequence[Progress]:
        super().feed(chunk)
        heard, self._heard = self._heard, []
        return [self._told(kind, said("".join(pieces))) for kind, pieces in heard]

    def _told(self, kind: _Kind, text: str) -> Progress:
        return Progress(kind, name=self._names.from_wire(text)) if kind == "call" else Progress(kind, text)

    def take(self, event: str, document: Any, progress: list[Progress]) -> None:
        told = as_object(document)
        kind = told.get("type") or event
        if kind == "content_block_delta":
            self._delta(told)
        elif kind == "content_block_start":
            self._start(told)
        elif kind == "content_block_stop":
            self._stop(told.get("index"))
        elif kind == "message_start":
            self._odd = self._odd or self._started
            self._started = True
            self._message = {**as_object(told.get("message")), "stop_reason": None}
        elif kind == "message_delta":
            self._end(told)
        elif kind == "message_stop":
            self.done = True
        elif kind == "error":
            self._error = told
            self.done = True

    def grows(self, event: str, document: Any) -> tuple[JsonObject, str] | None:
        told = as_object(document)
        delta = as_object(told.get("delta"))
        field = _JOINED.get(as_text(delta.get("type")))
        if (
            field is None
            or (told.get("type") or event) != "content_block_delta"
            or not isinstance(delta.get(field), str)
        ):
            return None
        return delta, field

    def result(self) -> Reply:
        blocks = [block.whole() for block in self._blocks.values()]
        texts = {place: text for place, (_, text) in enumerate(blocks) if text is not None}
        message = {**self._message, "content": [block for block, _ in blocks]}
        if self._error is not None:
            message |= {"error": self._error.get("error"), "type": "error", "stop_reason": None}
            message["request_id"] = self._error.get("request_id")
        elif self._unsound():
            message["content"] = None
        try:
            reply = reply_from_document(storable(message), self.head, self.request, texts)
        except UnreadableBody:
            return self.document_reply(None)
        ended = self.done and as_text(message.get("stop_reason"))
        return reply if ended or self._error is not None else interrupted(reply)

    def document_reply(self, document: Any) -> Reply:
        try:
            texts = texts_of_inputs(b"\n".join(self._decoder.junk)) if document is not None else {}
        except UnreadableBody:
            document, texts = None, {}
        return reply_from_document(document, self.head, self.request, texts)

    def _unsound(self) -> bool:
        """A reply that has ended although its events contradict each other, or a call of it was never closed."""
        kinds = [as_text(block.given.get("type")) for block in self._blocks.values() if block.open]
        cut = self._message.get("stop_reason") in _MAY_END_INSIDE
        lost = not cut and any(kind.endswith("tool_use") for kind in kinds)
        return self.done and (self._odd or lost or not self._started)

    def _start(self, told: JsonObject) -> None:
        index, block = told.get("index"), told.get("content_block")
        if not isinstance(index, int) or index in self._blocks or not isinstance(block, dict):
            self._odd = True
            return
        self._blocks[index] = _Block(block)
        if block.get("type") == "tool_use":
            self._heard.append(("call", [as_text(block.get("name"))]))

    def _delta(self, told: JsonObject) -> None:
        index, delta = told.get("index"), told.get("delta")
        block = self._blocks.get(index) if isinstance(index, int) else None
        if block is None or not block.open or not isinstance(delta, dict):
            self._odd = True
            return
        kind = delta.get("type")
        field = _JOINED.get(kind) if isinstance(kind, str) else None
        if field is None:
            _amend(block.given, delta)
            return
        piece = delta.get(field)
        if not isinstance(piece, str):
            self._odd = self._odd or piece is not None
        elif piece:
            if field in block.pieces:
                block.pieces[field].append(piece)
            else:
                block.pieces[field] = [piece]
            if kind in _PROGRESS:
                self._hear(_PROGRESS[kind], piece)

    def _hear(self, kind: _Kind, piece: str) -> None:
        if self._heard and self._heard[-1][0] == kind:
            self._heard[-1][1].append(piece)
        else:
            self._heard.append((kind, [piece]))

    def _stop(self, index: Any) -> None:
        block = self._blocks.get(index) if isinstance(index, int) else None
        if block is None or not block.open:
            self._odd = True
        else:
            block.open = False

    def _end(self, told: JsonObject) -> None:
        """May come more than once. Its counts are totals: each replaces the earlier one, and null leaves it."""
        usage = {**as_object(self._message.get("usage")), **_known(told.get("usage"))}
        self._message = {**self._message, **_known(told.get("delta")), "usage": usage}


def _known(value: Any) -> JsonObject:
    return {name: member for name, member in as_object(value).items() if member is not None}


def _amend(block: JsonObject, delta: JsonObject) -> None:
    """What comes whole replaces what is there; citations are added one by one. An unknown kind changes nothing."""
    kind = delta.get("type")
    if kind == "signature_delta":
        block["signature"] = delta.get("signature")
    elif kind == "citations_delta":
        if not isinstance(block.get("citations"), list):
            block["citations"] = []
        block["citations"].append(delta.get("citation"))
    elif kind == "compaction_delta":
        block |= {name: value for name, value in delta.items() if name != "type"}


def _object(text: str) -> JsonObject:
    """The input as it is carried back, which must be an object: what the text says, or else the text in one."""
    try:
        value = read_json(text.encode())
    except UnreadableBody:
        value = None
    return value if isinstance(value, dict) else unreadable(text)
