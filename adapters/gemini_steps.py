"""Interactions replies: what an interaction, or the events of its stream, add up to.

The last event of a stream has the status but no steps, so the `step.*` events are the only content.
"""

import re
from typing import Any

from adapters.base import Boundary, Completion, Failure, HttpResponse, ModelRequest, Progress, Reply, Usage
from adapters.documents import (
    UnreadableBody,
    as_list,
    as_object,
    as_text,
    clean_text,
    count_or_none,
    read_json,
    request_id,
    storable,
)
from adapters.failures import (
    MODEL_OUTPUT_INVALID,
    error_facts,
    in_band_failure,
    protocol_failure,
    unreadable_body,
)
from adapters.gemini_common import call_id, continuation, object_text, provider_items, resumed, word
from adapters.names import ToolNames
from adapters.streaming import EventAccumulator, interrupted
from adapters.streaming import said as shown
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import JsonObject

API = "gemini-interactions"

_PAUSED = frozenset({"in_progress", "queued", "idle"})
_CUT = frozenset({"incomplete", "budget_exceeded"})
# google.rpc.Code, which an error inside a step has as a number.
_RPC = (
    *("ok", "cancelled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists"),
    *("permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented"),
    *("internal", "unavailable", "data_loss", "unauthenticated"),
)
_SAFETY = frozenset({"safety", "prohibited_content", "content_filter", "blocklist", "recitation", "spii"})
# There is no code for it: a blocked output is a failed precondition that says so.
_BLOCKED = re.compile(r"\b(safety|blocked|prohibited|policy)\b", re.IGNORECASE)
_OURS = "function_call"
_JOINED = {"text": "text", "arguments_delta": "arguments"}  # deltas of texts -> their field


def reply_from_document(document: Any, head: HttpResponse, request: ModelRequest) -> Reply:
    """The reply for a whole interaction. None: the body was no JSON."""
    if document is None:
        return unreadable_body(head)
    interaction = as_object(document)
    steps = interaction.get("steps")
    broken = not all(isinstance(step, dict) for step in as_list(steps))
    texts = [object_text(step.get("arguments")) for step in as_list(steps) if _is_call(step)]
    return _Found(head, request, interaction, [] if broken else as_list(steps), texts, broken).reply()


class InteractionAccumulator(EventAccumulator):
    """See `adapters.base.Accumulator`. An index that comes again starts another step."""

    objects = ('"function_call"', '"arguments":{', '"arguments": {')

    def __init__(self, head: HttpResponse, request: ModelRequest) -> None:
        super().__init__(head, request)
        self._names = ToolNames(request.tools)
        self._steps: list[_Step] = []
        self._by_index: dict[Any, _Step] = {}
        self._interaction: JsonObject = {}
        self._error: Any = None
        self._broken_shape = False

    def take(self, event: str, document: Any, progress: list[Progress]) -> None:
        if not isinstance(document, dict):
            self._broken_shape = True
            return
        kind = as_text(document.get("event_type")) or event
        if kind == "error" or document.get("error"):
            self._error = self._error or document.get("error") or document
        elif kind == "step.start":
            self._start(document, progress)
        elif kind in ("step.delta", "step.stop"):
            self._continue(kind, document, progress)
        elif kind.startswith("interaction."):
            self._interaction = {**self._interaction, **as_object(document.get("interaction"))}
            self.done = kind == "interaction.completed"

    def grows(self, event: str, document: Any) -> tuple[JsonObject, str] | None:
        told = as_object(document)
        delta = as_object(told.get("delta"))
        key = _JOINED.get(as_text(delta.get("type")))
        kind = as_text(told.get("event_type")) or event
        if key is None or kind != "step.delta" or "error" in told or not isinstance(delta.get(key), str):
            return None
        return delta, key

    def _start(self, document: JsonObject, progress: list[Progress]) -> None:
        step = _Step(as_object(document.get("step")))
        self._steps.append(step)
        self._by_index[_key(document)] = step
        if step.kind == _OURS:
            progress.append(Progress("call", name=self._names.from_wire(shown(step.given.get("name")))))

    def _continue(self, kind: str, document: JsonObject, progress: list[Progress]) -> None:
        step = self._by_index.get(_key(document))
        if step is None:
            self._broken_shape = True
        elif kind == "step.stop":
            step.stopped = True
        else:
            self._broken_shape = self._broken_shape or step.stopped
            step.delta(as_object(document.get("delta")), progress)

    def result(self) -> Reply:
        interaction = dict(self._interaction)
        if self._error is not None:
            interaction["error"] = self._error
        elif not self.done:
            interaction["status"] = None  # the status so far is not how it ended
        given = interaction.get("steps")
        if isinstance(given, list) and given and not self._steps:
            reply = reply_from_document(interaction, self.head, self.request)
        else:
            reply = self._from_steps(interaction)
        return reply if self.done or self._error is not None else interrupted(reply)

    def _from_steps(self, interaction: JsonObject) -> Reply:
        calls = [step for step in self._steps if step.kind == _OURS]
        broken = self._broken_shape or not all(step.stopped for step in calls)
        try:
            steps = storable([step.whole() for step in self._steps])
            interaction = storable(interaction)
        except UnreadableBody:  # absurdly deep
            steps, broken = [], True
        texts = [step.arguments_text() for step in calls]
        return _Found(self.head, self.request, interaction, steps, texts, broken).reply()

    def document_reply(self, document: Any) -> Reply:
        return reply_from_document(document, self.head, self.request)


def _key(document: JsonObject) -> Any:
    """Only a number tells steps apart; without one, events belong to the step that started last."""
    index = document.get("index")
    return index if isinstance(index, int) else None


def _is_call(step: Any) -> bool:
    return isinstance(step, dict) and step.get("type") == _OURS


class _Step:
    """One step as its events say it."""

    def __init__(self, given: JsonObject) -> None:
        self.given = given
        self.kind = as_text(given.get("type"))
        self.stopped = False
        self._arguments: list[str] = []
        self._content: list[JsonObject] = [dict(as_object(part)) for part in as_list(given.get("content"))]
        self._texts: list[str] = []  # of the content part that is being written
        self._summary: list[Any] = list(as_list(given.get("summary")))
        self._more: JsonObject = {}

    def delta(self, delta: JsonObject, progress: list[Progress]) -> None:
        kind = as_text(delta.get("type"))
        if kind == "text":
            self._text(as_text(delta.get("text")), progress)
        elif kind == "arguments_delta":
            pieces = delta.get("arguments")
            self._arguments.append(pieces if isinstance(pieces, str) else object_text(pieces))
        elif kind == "thought_summary":
            self._summary.append(delta.get("content"))
            progress.append(Progress("reasoning", shown(as_object(delta.get("content")).get("text"))))
        elif kind == "thought_signature":
            self._more["signature"] = as_text(self._more.get("signature")) + as_text(delta.get("signature"))
        elif kind == "text_annotation_delta":
            self._annotations(as_list(delta.get("annotations")))
        elif kind == self.kind:  # a provider-side tool's own fields
            self._more.update((name, value) for name, value in delta.items() if name != "type")
        elif self.kind == "model_output":  # media
            self._close_text()
            self._content.append(delta)

    def _text(self, text: str, progress: list[Progress]) -> None:
        self._texts.append(text)
        if text:
            progress.append(Progress("text", shown(text)))

    def _annotations(self, annotations: list[Any]) -> None:
        self._close_text()
        if self._content and self._content[-1].get("type") == "text":
            part = self._content[-1]
            part["annotations"] = [*as_list(part.get("annotations")), *annotations]

    def _close_text(self) -> None:
        """Pieces after an annotation belong to the same text: annotations count from its start."""
        if not self._texts:
            return
        text = "".join(self._texts)
        self._texts = []
        if self._content and self._content[-1].get("type") == "text":
            self._content[-1]["text"] = as_text(self._content[-1].get("text")) + text
        else:
            self._content.append({"type": "text", "text": text})

    def arguments_text(self) -> str:
        """No piece at all means what the start said, which is `{}` for a call without arguments."""
        return clean_text("".join(self._arguments)) if self._arguments else object_text(self.given.get("arguments"))

    def whole(self) -> JsonObject:
        self._close_text()
        step = {**self.given, **self._more}
        if self._content:
            step["content"] = self._content
        if self._summary:
            step["summary"] = self._summary
        if self.kind == _OURS and self._arguments:
            step["arguments"] = _object_of("".join(self._arguments))
        return step


def _object_of(text: str) -> JsonObject:
    """For sending the step back, where only an object will do."""
    try:
        return as_object(read_json(text.encode("utf-8", "surrogatepass")))
    except UnreadableBody:
        return {}


class _Found:
    """What an interaction contains, before it is decided what that amounts to."""

    def __init__(
        self,
        head: HttpResponse,
        request: ModelRequest,
        interaction: JsonObject,
        steps: list[JsonObject],
        texts: list[str],
        broken: bool,
    ) -> None:
        self._head = head
        self._request = request
        self._interaction = interaction
        self._stopped = resumed(request.items, API)  # the reply that this one goes on from
        self._earlier = provider_items(self._stopped) if self._stopped else []
        self._status = as_text(interaction.get("status"))
        self._id = word(interaction.get("id"))
        self._token = word(interaction.get("continuation_token"))
        self._broken = broken or not self._status
        self._texts = [object_text(step.get("arguments")) for step in self._earlier if _is_call(step)] + texts
        self._steps = self._with_ids([*self._earlier, *steps])
        self._error = interaction.get("error") or next(
            (_named(step["error"]) for step in steps if step.get("type") == "model_output" and step.get("error")), None
        )

    def _with_ids(self, steps: list[JsonObject]) -> list[JsonObject]:
        """A call without an id, which the API promises, gets one of ours: the result must name something."""
        result: list[JsonObject] = []
        count = 0
        for step in steps:
            kept = step
            if _is_call(step):
                identity = call_id(step.get("id"), self._id, self._request, count)
                kept = step if step.get("id") == identity else {**step, "id": identity}
                count += 1
            result.append(kept)
        return result

    def reply(self) -> Reply:
        calls, unusable = self._calls()
        completion, failure = self._completion(bool(calls), unusable)
        return Reply(
            completion,
            text=self._text(),
            calls=calls if completion is Completion.TOOL_PROPOSALS else (),
            raw_reason=(error_facts({"error": self._error}).raw if self._error else None) or self._status or None,
            response_id=self._id,
            request_id=request_id(self._head.headers),
            model=word(self._interaction.get("model")) or word(self._interaction.get("agent")),
            usage=_usage(as_object(self._interaction.get("usage"))),
            items=self._items(completion) if failure is None else (),
            failure=failure,
        )

    def _calls(self) -> tuple[tuple[ProposedCall, ...], bool]:
        """The calls that wait for us: one that has its result among the steps was run by the provider."""
        names = ToolNames(self._request.tools)
        steps = [step for step in self._steps if _is_call(step)]
        answered = {step.get("call_id") for step in self._steps if step.get("type") == "function_result"}
        calls = tuple(
            ProposedCall(step["id"], names.from_wire(as_text(step.get("name"))), text)
            for step, text in zip(steps, self._texts, strict=False)
            if step["id"] not in answered
        )
        return calls, not all(call.name for call in calls)

    def _text(self) -> str:
        parts = (
            as_object(part)
            for step in self._steps
            if step.get("type") == "model_output"
            for part in as_list(step.get("content"))
        )
        return "".join(as_text(part.get("text")) for part in parts if part.get("type") == "text")

    def _items(self, completion: Completion) -> tuple[JsonObject, ...]:
        if completion is Completion.PAUSED and self._token:
            return (*self._steps, continuation(self._token))
        return tuple(self._steps)

    def _completion(self, called: bool, unusable: bool) -> tuple[Completion, Failure | None]:
        """The first match of an ordered list; anything unknown is a failure."""
        if self._error:
            return self._failed(self._error)
        if self._status == "failed":
            errors = as_list(self._interaction.get("errors"))
            said = in_band_failure(errors[0], self._head.headers) if errors else None
            return Completion.API_FAILURE, said or Failure(Boundary.PROVIDER_UNAVAILABLE, "SERVER_ERROR", True)
        if self._status in _CUT:
            return Completion.TRUNCATED, None
        if self._status in _PAUSED or (self._status == "requires_continuation" and self._token):
            return Completion.PAUSED, None
        if self._broken:
            return Completion.API_FAILURE, protocol_failure("UNEXPECTED_SHAPE")
        if self._status == "requires_action":
            if unusable or not called:
                return Completion.API_FAILURE, protocol_failure(MODEL_OUTPUT_INVALID)
            return Completion.TOOL_PROPOSALS, None
        if self._status == "completed" and not called:
            return Completion.FINAL_TEXT, None
        return Completion.API_FAILURE, protocol_failure("UNKNOWN_REASON")

    def _failed(self, error: Any) -> tuple[Completion, Failure | None]:
        """What a filter stopped is a refusal, any other error a failure."""
        facts = error_facts({"error": error})
        kinds = {kind.lower() for kind in facts.kinds}
        if kinds & _SAFETY or ("failed_precondition" in kinds and _BLOCKED.search(facts.message)):
            return Completion.REFUSAL, None
        return Completion.API_FAILURE, in_band_failure(error, self._head.headers)


def _named(error: Any) -> Any:
    """A step's error with the name of its google.rpc code in place of the number, which is no HTTP status."""
    code = as_object(error).get("code")
    if isinstance(code, int) and not isinstance(code, bool) and 0 < code < len(_RPC):
        return {**error, "code": _RPC[code]}
    return error


def _usage(usage: JsonObject) -> Usage:
    """Thoughts are counted beside the output; what provider-side tools read is not counted as input."""
    said, thought = count_or_none(usage.get("total_output_tokens")), count_or_none(usage.get("total_thought_tokens"))
    return Usage(
        input=count_or_none(usage.get("total_input_tokens")),
        cached=count_or_none(usage.get("total_cached_tokens")),
        output=None if said is None and thought is None else (said or 0) + (thought or 0),
        reasoning=thought,
    )
