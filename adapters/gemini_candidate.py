"""generateContent replies: what a body, or the chunks of a stream, add up to.

A chunk is a whole response with new parts. Older models say `finishReason` in every chunk, so only the end of the body
ends a stream: `done` stays False.
"""

from typing import Any

from adapters.base import Completion, Failure, HttpResponse, ModelRequest, Progress, Reply, Usage
from adapters.documents import (
    UnreadableBody,
    as_list,
    as_object,
    as_text,
    clean_text,
    count_or_none,
    request_id,
    storable,
    text_or_none,
)
from adapters.failures import (
    MODEL_OUTPUT_INVALID,
    error_facts,
    in_band_failure,
    protocol_failure,
    unreadable_body,
)
from adapters.gemini_common import call_id, continuation, object_text, provider_items, resumed, word
from adapters.gemini_partial import PartialCall, is_partial
from adapters.names import ToolNames
from adapters.streaming import EventAccumulator, interrupted
from adapters.streaming import said as shown
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import JsonObject

API = "gemini-generate"

_REFUSED = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "IMAGE_OTHER",
        "MODEL_ARMOR",
        "ESCALATION",
    }
)
_UNUSABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"})


def reply_from_body(document: Any, head: HttpResponse, request: ModelRequest) -> Reply:
    """The reply for one JSON body: a response, or the array of responses that a stream without `alt=sse` is."""
    if document is None:
        return unreadable_body(head)
    chunks = document if isinstance(document, list) else [document]
    gathered = Gathered(head, request)
    for chunk in chunks:
        gathered.add(chunk, [])
    reply = gathered.reply()
    return interrupted(reply) if isinstance(document, list) and gathered.unended else reply


class GenerateAccumulator(EventAccumulator):
    """See `adapters.base.Accumulator`."""

    objects = ('"functionCall"',)

    def __init__(self, head: HttpResponse, request: ModelRequest) -> None:
        super().__init__(head, request)
        self._gathered = Gathered(head, request)

    def take(self, event: str, document: Any, progress: list[Progress]) -> None:
        self._gathered.add(document, progress)

    def result(self) -> Reply:
        reply = self._gathered.reply()
        return interrupted(reply) if self._gathered.unended else reply

    def document_reply(self, document: Any) -> Reply:
        return reply_from_body(document, self.head, self.request)


class Gathered:
    """What the responses of one reply contain, before it is decided what that amounts to."""

    def __init__(self, head: HttpResponse, request: ModelRequest) -> None:
        self._head = head
        self._request = request
        self._names = ToolNames(request.tools)
        self._stopped = resumed(request.items, API)  # the reply that this one goes on from
        self._contents = provider_items(self._stopped) if self._stopped else []
        self._said: list[str] = []
        self._parts: list[JsonObject] = []
        self._content: JsonObject = {}
        self._open: PartialCall | None = None
        self._broken = False  # not the shape of a response
        self._unusable = False  # a call without a name, or whose arguments never ended
        self._error: Any = None
        self._block = ""
        self._token: str | None = None
        self._usage: JsonObject = {}
        self._response_id: str | None = None
        self._model: str | None = None
        self.reason = ""

    @property
    def unended(self) -> bool:
        """A stream of these responses was cut: no error, no block and no finish reason came."""
        return not self.reason and not self._block and not self._error and not self._broken

    def add(self, chunk: Any, progress: list[Progress]) -> None:
        if not isinstance(chunk, dict):
            self._broken = True
            return
        if "error" in chunk:
            self._error = self._error or chunk["error"]
        if "promptFeedback" in chunk:
            self._block = self._block or word(as_object(chunk["promptFeedback"]).get("blockReason")) or ""
        self._usage = as_object(chunk.get("usageMetadata")) or self._usage  # cumulative: the last one counts
        self._response_id = self._response_id or word(chunk.get("responseId"))
        self._model = self._model or word(chunk.get("modelVersion"))
        candidates = as_list(chunk.get("candidates"))
        if candidates:
            self._candidate(as_object(candidates[0]), progress)

    def _candidate(self, candidate: JsonObject, progress: list[Progress]) -> None:
        if "finishReason" in candidate:
            self.reason = word(candidate["finishReason"]) or self.reason
        if "continuationToken" in candidate:
            self._token = word(candidate["continuationToken"]) or self._token
        content = as_object(candidate.get("content"))
        self._content = self._content or content
        for part in as_list(content.get("parts")):
            if not isinstance(part, dict):
                self._broken = True
            elif "functionCall" in part:
                self._call_part(part, progress)
            else:
                self._parts.append(part)
                self._say(part, progress)

    def _say(self, part: JsonObject, progress: list[Progress]) -> None:
        text = part.get("text")
        if not isinstance(text, str) or not text:
            return
        if part.get("thought") is True:
            progress.append(Progress("reasoning", shown(text)))
        else:
            self._said.append(text)
            progress.append(Progress("text", shown(text)))

    def _call_part(self, part: JsonObject, progress: list[Progress]) -> None:
        """A call comes whole; or it opens with its name, grows by pieces, and closes with one that does not go on."""
        call = as_object(part["functionCall"])
        named = text_or_none(call.get("name"))
        if named:
            self._unusable = self._unusable or self._open is not None  # the one before never closed
            progress.append(Progress("call", name=self._names.from_wire(shown(named))))
            if not is_partial(call):
                self._parts.append(part)
                return
            self._open = PartialCall(part)
        elif self._open is None:
            self._unusable = True
            return
        assert self._open is not None
        self._open.take(part)
        if not call.get("willContinue"):
            self._unusable = self._unusable or self._open.broken
            self._parts.append(self._open.part())
            self._open = None

    def reply(self) -> Reply:
        try:
            parts = storable(self._parts)
            about = storable({name: value for name, value in self._content.items() if name != "parts"})
        except UnreadableBody:  # absurdly deep
            parts, about, self._broken = [], {}, True
        completion, failure = self._completion([part for part in parts if "functionCall" in part])
        calls = self._calls(parts) if completion is Completion.TOOL_PROPOSALS else ()
        told = error_facts({"error": self._error}).raw if self._error else None
        return Reply(
            completion,
            text=(self._stopped.text if self._stopped else "") + clean_text("".join(self._said)),
            calls=calls,
            raw_reason=told or (f"blocked:{self._block}" if self._block else self.reason or None),
            response_id=self._response_id,
            request_id=request_id(self._head.headers),
            model=self._model,
            usage=_usage(self._usage),
            items=self._items({**about, "parts": parts}, completion) if failure is None else (),
            failure=failure,
        )

    def _calls(self, parts: list[JsonObject]) -> tuple[ProposedCall, ...]:
        """Also those that stand before the place where a reply stopped and was continued."""
        everything = [part for content in self._contents for part in as_list(content.get("parts"))] + parts
        functions = [as_object(part["functionCall"]) for part in everything if "functionCall" in part]
        return tuple(
            ProposedCall(
                call_id(function.get("id"), self._response_id, self._request, index),
                self._names.from_wire(as_text(function.get("name"))),
                object_text(function.get("args")),
            )
            for index, function in enumerate(functions)
        )

    def _items(self, content: JsonObject, completion: Completion) -> tuple[JsonObject, ...]:
        """The content as it came; a reply that stopped carries its token, one that went on the earlier parts."""
        items = [*self._contents, content] if content["parts"] else list(self._contents)
        if completion is Completion.PAUSED and self._token:
            items.append(continuation(self._token))
        return tuple(items)

    def _completion(self, calls: list[JsonObject]) -> tuple[Completion, Failure | None]:
        """The first match of an ordered list; anything unknown is a failure."""
        if self._error:
            return Completion.API_FAILURE, in_band_failure(self._error, self._head.headers)
        if self._block or self.reason in _REFUSED:
            return Completion.REFUSAL, None
        if self.reason == "MAX_TOKENS":
            return Completion.TRUNCATED, None
        if self.reason == "CONTINUATION" and self._token:
            return Completion.PAUSED, None
        if self._broken or not (self.reason or self._parts):
            return Completion.API_FAILURE, protocol_failure("UNEXPECTED_SHAPE")
        if self.reason in _UNUSABLE or self._unusable or self._open is not None:
            return Completion.API_FAILURE, protocol_failure(MODEL_OUTPUT_INVALID)
        if self.reason == "MISSING_THOUGHT_SIGNATURE":  # our history is wrong: asking again cannot help
            return Completion.API_FAILURE, protocol_failure("SIGNATURE_MISSING")
        if self.reason != "STOP":
            return Completion.API_FAILURE, protocol_failure("UNKNOWN_REASON")
        return (Completion.TOOL_PROPOSALS if calls or self._earlier_calls() else Completion.FINAL_TEXT), None

    def _earlier_calls(self) -> bool:
        return any("functionCall" in part for content in self._contents for part in as_list(content.get("parts")))


def _usage(usage: JsonObject) -> Usage:
    """Thoughts are counted beside the candidates; cached tokens are part of the prompt.

    `toolUsePromptTokenCount` (what provider-side tools read) is not the prompt and, with search, is not billed as it.
    """
    said, thought = count_or_none(usage.get("candidatesTokenCount")), count_or_none(usage.get("thoughtsTokenCount"))
    return Usage(
        input=count_or_none(usage.get("promptTokenCount")),
        cached=count_or_none(usage.get("cachedContentTokenCount")),
        output=None if said is None and thought is None else (said or 0) + (thought or 0),
        reasoning=thought,
    )
