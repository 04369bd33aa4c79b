"""What ties a result to its request (DESIGN section 8): built when a call is recorded, completed with its result, and
recomputed from current facts before the result goes back to a model, and by `audit verify`.
"""

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from executors.contract import contract
from executors.registry import ToolSpec
from orchestrator.domain import digests

if TYPE_CHECKING:
    from orchestrator.turn import Asked
    from store.records import OperationRecord

# Fields of every binding. An unknown tool has no contract: its revisions are null.
FIELDS = frozenset(
    {
        "provider", "api", "model", "response_id", "call_id", "adapter_revision", "request_sha256",
        "operation_id", "tenant", "subject", "revision", "profile_digest", "tool", "tool_version", "effect",
        "action_id", "idempotency_key", "arguments_sha256", "policy_version", "input_revision", "output_revision",
        "effect_revision", "handler_revision", "producer_revision", "result_sha256", "result_state",
    }
)  # fmt: skip


@cache
def version() -> str:
    """This release, as the audit names it."""
    return f"turnqueue {metadata.version('turnqueue')}"


def request_half(
    operation: "OperationRecord", asked: "Asked", row: Mapping[str, Any], spec: ToolSpec | None, policy_version: str
) -> dict[str, Any]:
    """The half that is known when the call is recorded; `row` is the call's row and its action's idempotency_key."""
    known = contract(spec) if spec else None
    named = ("call_id", "tool", "tool_version", "effect", "arguments_sha256", "action_id", "idempotency_key")
    half = digests.request_binding(
        operation={
            "operation_id": operation.operation_id,
            "tenant": operation.tenant,
            "subject": operation.subject,
            "revision": operation.revision,
            "profile_digest": operation.profile_digest,
        },
        request={
            "provider": asked.provider,
            "api": asked.adapter.api,
            "model": asked.request.model,
            "adapter_revision": asked.adapter.revision,
            "request_sha256": asked.request_sha256,
            "response_id": asked.reply.response_id,
        },
        call={name: row[name] for name in named},
        policy_version=policy_version,
    )
    return half | {
        "input_revision": known.input if known else None,
        "output_revision": known.output if known else None,
        "effect_revision": known.effect if known else None,
        "handler_revision": known.handler if known else None,
    }


def produced(half: Mapping[str, Any], ran: ToolSpec | None) -> dict[str, Any]:
    """The half and who produced the result: this release, and the handler that ran, which may be newer than the one
    that the call was judged by. None: the result is our own word (a rejection, an action's outcome)."""
    producer = version() if ran is None else f"{version()}, {ran.name} {contract(ran).handler}"
    return {**half, "producer_revision": producer}


def facts(
    operation: Mapping[str, Any], call: Mapping[str, Any], key: str | None, turn: Mapping[str, Any]
) -> dict[str, Any]:
    """What the binding of a settled call must say, from the rows that hold the facts. `turn` adds what is known of
    the request. Arguments that did not parse are null here and their digest is compared by the caller."""
    arguments = call["arguments"]
    return {
        **{name: operation[name] for name in ("operation_id", "tenant", "subject", "profile_digest")},
        **{name: call[name] for name in ("revision", "response_id", "call_id", "tool", "tool_version", "action_id")},
        **turn,
        "effect": call["effect"],
        "idempotency_key": key,
        "arguments_sha256": call["arguments_sha256"] if arguments is None else arguments_sha256(arguments),
        "result_sha256": digests.sha256_bytes((call["observation"] or "").encode()),
        "result_state": call["state"],
    }


def problem(binding: Mapping[str, Any] | None, binding_sha256: str | None, expected: Mapping[str, Any]) -> str | None:
    """The first thing that is wrong with a binding, or None. `expected`: see `facts`."""
    if binding is None or binding_sha256 is None:
        return "binding is missing"
    if absent := sorted(FIELDS - set(binding)):
        return f"binding has no {absent[0]}"
    for name, value in expected.items():
        if binding[name] != value:
            return f"{name} is not what was bound"
    try:
        return None if digests.sha256("binding-v1", binding) == binding_sha256 else "binding_sha256 is not its digest"
    except ValueError:
        return "binding has no canonical form"


def arguments_sha256(arguments: Mapping[str, Any]) -> str | None:
    """The digest of stored arguments; None where they have no canonical form, which equals no digest."""
    try:
        return digests.sha256("arguments-v1", digests.stored(arguments))
    except ValueError:
        return None
