"""A streamed chat completion, put together as the completion object that the plain API would have sent."""

from io import StringIO
from typing import Any

from adapters.base import HttpResponse, ModelRequest, Progress, Reply
from adapters.documents import UnreadableBody, as_list, as_object, as_text, storable, text_or_none, value_text
from adapters.failures import FromDocument
from adapters.names import ToolNames
from adapters.streaming import EventAccumulator, interrupted, said
from orchestrator.domain.transcript import JsonObject

_USAGE = ("usage", "x_groq")
_SET_ONCE = ("role", "id", "name", "type", "phase", "channel")  # texts that come whole; all others come in pieces
_PROGRESS = {"content": "text", "reasoning_content": "reasoning", "reasoning": "reasoning", "refusal": "refusal"}


class ChatAccumulator(EventAccumulator):
    """See `adapters.base.Accumulator`. Complete with a `finish_reason`; `[DONE]` alone is an interrupted answer."""

    marker_ends = True
    objects = ('"arguments":{', '"arguments": {')

    def __init__(self, head: HttpResponse, request: ModelRequest, from_document: FromDocument) -> None:
        super().__init__(head, request)
        self._from_document = from_document
        self._names = ToolNames(request.tools)
        self._top: JsonObject = {}
        self._known = False  # its id and model
        self._message = _Pieces()
        self._calls = _Calls()
        self._reason: str | None = None

    def take(self, event: str, document: Any, progress: list[Progress]) -> None:
        chunk = as_object(document)
        if chunk.get("error") or event == "error" or chunk.get("object") == "error":
            self._top["error"] = chunk.get("error") or chunk
            self.done = True
            return
        if not self._known:
            self._identify(chunk)
        for name in _USAGE:
            if chunk.get(name):
                self._top[name] = chunk[name]
        for choice in as_list(chunk.get("choices")):
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._choice(choice, progress)

    def _identify(self, chunk: JsonObject) -> None:
        for name in ("id", "model"):  # the first chunks of some servers have empty ones
            if chunk.get(name):
                self._top.setdefault(name, chunk[name])
        self._known = "id" in self._top and "model" in self._top

    def grows(self, event: str, document: Any) -> tuple[JsonObject, str] | None:
        """A piece of one field of the message, or of the arguments of a call that is there already."""
        chunk = as_object(document)
        choice = _only(chunk.get("choices"))
        if event == "error" or chunk.get("error") or chunk.get("object") == "error":
            return None
        said = {name: value for name, value in as_object(choice.get("delta")).items() if value is not None}
        if len(said) != 1 or choice.get("finish_reason") or choice.get("error"):
            return None
        [(name, value)] = said.items()
        if name == "tool_calls":
            return _arguments_of(value)
        return (choice["delta"], name) if isinstance(value, str) and name not in _SET_ONCE else None

    def result(self) -> Reply:
        try:
            reply = self.document_reply(self._document())
        except UnreadableBody:
            reply = self.document_reply(None)
        return reply if self._reason is not None or "error" in self._top else interrupted(reply)

    def document_reply(self, document: Any) -> Reply:
        return self._from_document(document, self.head, self.request)

    def _choice(self, choice: JsonObject, progress: list[Progress]) -> None:
        if choice.get("error"):
            self._top["error"] = choice["error"]
        reason = text_or_none(choice.get("finish_reason"))
        # An asynchronous filter may strike after the model has ended; nothing that comes later lifts it.
        if reason is not None and self._reason != "content_filter":
            self._reason = reason
        delta = choice.get("delta") or choice.get("message")  # some gateways send one whole message
        if not isinstance(delta, dict):
            return
        for name, value in delta.items():
            if value is None:
                continue
            if name == "tool_calls":
                if value:
                    self._calls.add(value, progress, self._names)
                continue
            self._message.add(name, value)
            if value and name in _PROGRESS and isinstance(value, str):
                progress.append(Progress(_PROGRESS[name], said(value)))  # type: ignore[arg-type]

    def _document(self) -> JsonObject:
        message = {"role": "assistant", "content": None, **self._message.whole()}
        if self._calls.any:
            message["tool_calls"] = self._calls.whole()
        choice = {"index": 0, "message": message, "finish_reason": self._reason}
        document: JsonObject = storable({**self._top, "choices": [choice]})
        return document


def _only(entries: Any) -> JsonObject:
    """The object of a list of one; empty where it is another list."""
    return as_object(entries[0]) if isinstance(entries, list) and len(entries) == 1 else {}


def _arguments_of(entries: Any) -> tuple[JsonObject, str] | None:
    """Where the arguments are, when these fragments of calls say nothing else."""
    entry = {name: value for name, value in _only(entries).items() if value is not None}
    function = as_object(entry.get("function"))
    others = [name for name, value in function.items() if name != "arguments" and value is not None]
    if entry.keys() - {"index", "type", "function"} or others or not isinstance(function.get("arguments"), str):
        return None
    return function, "arguments"


class _Pieces:
    """The fields of one object that comes in fragments: texts are joined, lists grow, whatever else is replaced."""

    def __init__(self) -> None:
        self._texts: dict[str, StringIO] = {}
        self._others: JsonObject = {}
        self._order: dict[str, None] = {}

    def add(self, name: str, value: Any) -> None:
        buffer = self._texts.get(name)
        if buffer is not None and isinstance(value, str):
            buffer.write(value)
            return
        self._order[name] = None
        if buffer is not None and isinstance(value, list):  # Mistral: some pieces are texts and some are lists of parts
            self._others[name] = [*as_list(self._others.get(name)), *_parts(self._texts.pop(name).getvalue())]
        known = self._others.get(name)
        if isinstance(value, str) and (name not in _SET_ONCE or isinstance(known, list)):
            buffer = self._texts[name] = StringIO()
            buffer.write(value)
        elif isinstance(value, list) and isinstance(known, list):
            known.extend(value)
        elif isinstance(value, dict) and isinstance(known, dict):
            known.update(value)
        elif not known:
            self._others[name] = list(value) if isinstance(value, list) else value

    def whole(self) -> JsonObject:
        return {name: self._one(name) for name in self._order}

    def _one(self, name: str) -> Any:
        if name not in self._texts:
            return self._others[name]
        text, before = self._texts[name].getvalue(), self._others.get(name)
        return [*before, *_parts(text)] if isinstance(before, list) else text


def _parts(text: str) -> list[JsonObject]:
    return [{"type": "text", "text": text}] if text else []


class _Call:
    """One call in the making."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.kind = ""
        self.broken = False
        self.arguments = StringIO()
        self.extra = _Pieces()

    def add(self, entry: JsonObject) -> None:
        self.id = self.id or as_text(entry.get("id"))
        self.kind = self.kind or as_text(entry.get("type"))
        for name, value in entry.items():
            if name not in ("id", "type", "index", "function", "custom") and value is not None:
                self.extra.add(name, value)
        inner = as_object(entry.get("custom") or entry.get("function"))
        self._add_name(as_text(inner.get("name")))
        arguments = inner.get("input") if entry.get("custom") else inner.get("arguments")
        if isinstance(arguments, str):
            self.arguments.write(arguments)
        elif arguments is not None:  # some servers send the object instead of its text
            self.arguments.write(value_text(arguments))

    def _add_name(self, name: str) -> None:
        if not name or name == self.name:
            return
        if self.arguments.tell():  # a second name after the arguments: two calls run together, or nonsense
            self.broken = True
        else:
            self.name += name

    def whole(self) -> JsonObject:
        name = "" if self.broken else self.name
        text = self.arguments.getvalue()
        if self.kind == "custom":
            return {**self.extra.whole(), "id": self.id, "type": "custom", "custom": {"name": name, "input": text}}
        function = {"name": name, "arguments": text}
        return {**self.extra.whole(), "id": self.id, "type": self.kind or "function", "function": function}


class _Calls:
    """Which fragment belongs to which call. Servers leave the index out, repeat it, skip some, or repeat the id."""

    def __init__(self) -> None:
        self._all: list[_Call] = []
        self._at: dict[int, _Call] = {}
        self.any = False
        self._junk = False

    def add(self, entries: Any, progress: list[Progress], names: ToolNames) -> None:
        self.any = True
        if not isinstance(entries, list):
            self._junk = True
            return
        for entry in entries:
            if not isinstance(entry, dict):
                self._junk = True
                continue
            call = self._find(entry)
            unnamed = not call.name
            call.add(entry)
            if unnamed and call.name:
                progress.append(Progress("call", name=names.from_wire(said(call.name))))

    def _find(self, entry: JsonObject) -> _Call:
        index, call_id = entry.get("index"), as_text(entry.get("id"))
        named = bool(as_object(entry.get("function") or entry.get("custom")).get("name"))
        if isinstance(index, int):
            return self._by_index(index, call_id, named)
        if call_id:
            return self._by_id(call_id) or self._new()
        last = self._all[-1] if self._all else None
        if last is None or (named and last.name and last.arguments.tell()):
            return self._new()
        return last

    def _by_index(self, index: int, call_id: str, named: bool) -> _Call:
        """A new id at a known index is a new call; a known id at a new index is one only when it comes with a name."""
        current = self._at.get(index)
        if current is not None and call_id in ("", current.id):
            return current
        found = self._by_id(call_id) if current is not None or not named else None
        if found is None and current is not None and not current.id and not named:  # its id comes late
            found = current
        self._at[index] = found or self._new()
        return self._at[index]

    def _by_id(self, call_id: str) -> _Call | None:
        return next((call for call in reversed(self._all) if call_id and call.id == call_id), None)

    def _new(self) -> _Call:
        call = _Call()
        self._all.append(call)
        return call

    def whole(self) -> Any:
        """The list of calls, or what the reader refuses where an entry was no object."""
        return "unreadable" if self._junk else [call.whole() for call in self._all]
