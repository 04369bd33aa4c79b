"""From stored rows to what the model is shown, and the checks before results go back to it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import jsonschema

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import Reply, ToolChoice, ToolDeclaration
from adapters.schema import restore_optional
from executors.registry import Registry
from orchestrator import binding
from orchestrator.domain import digests
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import ModelReply, Notice, Observation, TranscriptItem, UserText
from store.records import ActionRecord, CallRecord, OperationRecord

AUTO = ToolChoice("auto")
NO_TOOLS = ToolChoice("none")


def build(items: Sequence[Mapping[str, Any]], calls: Sequence[CallRecord]) -> tuple[TranscriptItem, ...]:
    """Stored items in order; each reply is followed by the observations of its calls, in call order."""
    by_turn: dict[int, list[CallRecord]] = {}
    for call in calls:
        by_turn.setdefault(call.turn, []).append(call)
    shown: list[TranscriptItem] = []
    for item in items:
        if item["kind"] == "superseded":  # a reply to a request that the caller corrected: kept, and not shown
            continue
        shown.append(_item(item["kind"], item["body"]))
        if item["kind"] == "reply":
            shown.extend(_observation(call) for call in by_turn.get(item["turn"], ()) if _answered_once(call))
    return tuple(shown)


def _item(kind: str, body: Mapping[str, Any]) -> TranscriptItem:
    match kind:
        case "user":
            return UserText(body["text"])
        case "notice":
            return Notice(body["text"])
        case "reply":
            proposed = tuple(ProposedCall(c["call_id"], c["name"], c["arguments_text"]) for c in body["calls"])
            return ModelReply(body["api"], body["response_id"], body["text"], proposed, tuple(body["items"]))
    raise ValueError(f"transcript item of unknown kind {kind!r}")


def _answered_once(call: CallRecord) -> bool:
    """A call id that the model wrote twice is answered once."""
    return call.code != "DUPLICATE_CALL_ID"


def _observation(call: CallRecord) -> Observation:
    return Observation(call.call_id, call.tool, call.observation or "", call.is_error)


def reply_body(api: str, reply: Reply) -> dict[str, Any]:
    """The stored form of a reply; `_item` reads it back."""
    return {
        "api": api,
        "response_id": reply.response_id,
        "text": reply.text,
        "calls": [{"call_id": c.call_id, "name": c.name, "arguments_text": c.arguments_text} for c in reply.calls],
        "items": list(reply.items),
    }


def bindings_hold(
    operation: OperationRecord,
    items: Sequence[Mapping[str, Any]],
    calls: Sequence[CallRecord],
    actions: Sequence[ActionRecord] = (),
) -> bool:
    """Recompute every binding that goes back to the model: each proposed call has one result, and it is its own.

    Missing, additional, swapped or altered results are refused before the next request.
    """
    return binding_problem(operation, items, calls, actions) is None


def binding_problem(
    operation: OperationRecord,
    items: Sequence[Mapping[str, Any]],
    calls: Sequence[CallRecord],
    actions: Sequence[ActionRecord] = (),
) -> str | None:
    """What is wrong with the results of an operation, for the log; None: nothing."""
    proposed = [(item, call) for item in items if item["kind"] == "reply" for call in item["body"]["calls"]]
    asked = [(item["turn"], item["body"]["response_id"], call["call_id"], call["name"]) for item, call in proposed]
    if asked != [(call.turn, call.response_id, call.call_id, call.tool) for call in calls]:
        return "the results are not those of the calls that the replies propose"
    keys = {action.action_id: action.idempotency_key for action in actions}
    whole = {"operation_id": operation.operation_id, "tenant": operation.tenant, "subject": operation.subject}
    whole["profile_digest"] = operation.profile_digest
    for call, (item, said) in zip(calls, proposed, strict=True):
        found = _call_problem(whole, call, keys.get(call.action_id or ""), item["body"]["api"], said["arguments_text"])
        if found is not None:
            return f"{call.call_key}: {found}"
    return None


def _call_problem(
    operation: Mapping[str, Any], call: CallRecord, key: str | None, api: str, arguments_text: str
) -> str | None:
    if call.observation is None:
        return "result is missing"
    expected = binding.facts(operation, asdict(call), key, {"api": api})
    if call.arguments is None:
        expected["arguments_sha256"] = digests.sha256_bytes(arguments_text.encode(errors="surrogatepass"))
    return binding.problem(call.binding, call.binding_sha256, expected)


def declaration(registry: Registry, name: str) -> ToolDeclaration:
    """A registered tool as the model sees it."""
    spec = registry.tool(name)
    if spec is None:
        raise ValueError(f"tool {name!r} is not registered")
    return ToolDeclaration(spec.name, spec.description, dict(spec.schema))


def fitted(schema: Mapping[str, Any] | None, text: str) -> str | None:
    """A final text in the form that the profile's output schema describes; None where it does not fit.

    Any text fits where there is no schema. The strict form of a schema makes a model write null for what it wants to
    leave out: such members are taken out again, because the canonical schema need not allow them.
    """
    if schema is None:
        return text
    try:
        answer = parse_arguments(text)
    except ArgumentError:
        return None
    validator = _validator(digests.canonical(schema))
    if validator.is_valid(answer):
        return text
    restored = restore_optional(answer, dict(schema))
    return json.dumps(restored, ensure_ascii=False) if validator.is_valid(restored) else None


@lru_cache(maxsize=64)
def _validator(schema: bytes) -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema))
