"""A streamed response, put together as the response object that the plain API would have sent.

Its terminal event carries the whole object and is authoritative; where a gateway leaves the output out, the items that
were explicitly done stand in for it. Deltas are shown to the observer and, for texts only, kept for that case.
"""

from io import StringIO
from typing import Any

from adapters.base import HttpResponse, ModelRequest, Progress, Reply
from adapters.documents import UnreadableBody, as_list, as_object, as_text, storable, text_or_none
from adapters.failures import FromDocument
from adapters.names import ToolNames
from adapters.streaming import EventAccumulator, interrupted, said
from orchestrator.domain.transcript import JsonObject

_TERMINAL = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
_CALLS = ("function_call", "custom_tool_call")
_ARGUMENTS_DONE = {
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}
_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_REFUSAL = "response.refusal.delta"
_TEXT = "response.output_text.delta"


class ResponsesAccumulator(EventAccumulator):
    """See `adapters.base.Accumulator`. Complete with `response.completed`, `.incomplete` or `.failed`, or an error."""

    objects = ('"arguments"',)

    def __init__(self, head: HttpResponse, request: ModelRequest, from_document: FromDocument) -> None:
        super().__init__(head, request)
        self._from_document = from_document
        self._names = ToolNames(request.tools)
        self._response: JsonObject = {}  # the latest state of the response object
        self._items: dict[Any, _Item] = {}
        self._error: Any = None

    def take(self, event: str, document: Any, progress: list[Progress]) -> None:
        data = as_object(document)
        kind = as_text(data.get("type")) or event
        if kind == _TEXT:
            self._text(data, "text", progress)
        elif kind == _REFUSAL:
            self._text(data, "refusal", progress)
        elif kind in _REASONING:
            progress.append(Progress("reasoning", said(data.get("delta"))))
        elif kind in _ARGUMENTS_DONE:
            self._item(data).arguments = data.get(_ARGUMENTS_DONE[kind])
        elif kind == "response.output_item.added":
            self._added(data, progress)
        elif kind == "response.output_item.done":
            self._item(data).finish(as_object(data.get("item")))
        elif kind == "error" or (data.get("error") and not kind.startswith("response.")):
            self._failed(data)
        elif isinstance(data.get("response"), dict):
            self._response = data["response"]
            if kind in _TERMINAL:
                self._end(_TERMINAL[kind])
        elif kind in _TERMINAL:  # without its object: what was explicitly done has to stand in
            self._response = {**self._response, "status": ""}
            self._end(_TERMINAL[kind])

    def result(self) -> Reply:
        try:
            reply = self.document_reply(storable(self._document()))
        except UnreadableBody:
            reply = self.document_reply(None)
        return reply if self.done else interrupted(reply)

    def document_reply(self, document: Any) -> Reply:
        return self._from_document(document, self.head, self.request)

    def _item(self, data: JsonObject) -> "_Item":
        """By output index; by item id for servers that leave it out (ids change between events on others)."""
        index, item = data.get("output_index"), as_object(data.get("item"))
        key = index if isinstance(index, int) else text_or_none(data.get("item_id")) or text_or_none(item.get("id"))
        return self._items.setdefault(key, _Item())

    def _added(self, data: JsonObject, progress: list[Progress]) -> None:
        item = as_object(data.get("item"))
        self._item(data).added = item
        if item.get("type") in _CALLS:
            progress.append(Progress("call", name=self._names.from_wire(said(item.get("name")))))

    def _text(self, data: JsonObject, part: str, progress: list[Progress]) -> None:
        delta = data.get("delta")
        if isinstance(delta, str) and delta:
            self._item(data).text(data.get("content_index"), part, delta)
            progress.append(Progress("refusal" if part == "refusal" else "text", said(delta)))

    def _failed(self, data: JsonObject) -> None:
        """Real traffic nests the error, the documented form is flat, some servers send it without a type."""
        flat = {name: value for name, value in data.items() if name not in ("type", "sequence_number")}
        self._error = data.get("error") or flat or {"code": "server_error"}
        self.done = True

    def _end(self, status: str) -> None:
        if status != "completed" or not as_text(self._response.get("status")):
            self._response = {**self._response, "status": status}
        self.done = True

    def _document(self) -> JsonObject:
        document = dict(self._response)
        if not document.get("output"):
            keys = sorted(self._items, key=lambda key: key if isinstance(key, int) else len(self._items))
            document["output"] = [item for key in keys if (item := self._items[key].whole())]
        if self._error is not None:
            document |= {"status": "failed", "error": self._error}
        if not self.done:
            document["output"] = [
                item for item in as_list(document["output"]) if as_object(item).get("type") == "message"
            ]
        return document


class _Item:
    """One output item as far as it has come."""

    def __init__(self) -> None:
        self.added: JsonObject = {}
        self.arguments: Any = None
        self._done: JsonObject | None = None
        self._texts: dict[tuple[Any, str], StringIO] = {}

    def text(self, place: Any, part: str, delta: str) -> None:
        key = (place if isinstance(place, int) else 0, part)
        buffer = self._texts.get(key)
        if buffer is None:
            buffer = self._texts[key] = StringIO()
        buffer.write(delta)

    def finish(self, item: JsonObject) -> None:
        self._done = item
        if item.get("content"):
            self._texts.clear()

    def whole(self) -> JsonObject:
        """The item. A call that was not explicitly done is marked, so that it can never be proposed."""
        item = self._done if self._done is not None else {**self.added, "status": "in_progress"}
        kind = item.get("type") or ("message" if self._texts else None)
        if kind == "message" and self._texts and not item.get("content"):
            return {"role": "assistant", **item, "type": "message", "content": self._parts()}
        field = {"function_call": "arguments", "custom_tool_call": "input"}.get(as_text(kind))
        if field is not None and item.get(field) in ("", None) and self.arguments:
            return {**item, field: self.arguments}
        return item if kind else {}

    def _parts(self) -> list[JsonObject]:
        return [
            {"type": "refusal", "refusal": buffer.getvalue()}
            if part == "refusal"
            else {"type": "output_text", "text": buffer.getvalue(), "annotations": []}
            for (_, part), buffer in sorted(self._texts.items(), key=lambda entry: entry[0])
        ]
