"""Canonical JSON (RFC 8785) and the domain-separated digests that tie things together. Pure."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import rfc8785


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes. Raises ValueError for what has no canonical form (NaN, integers beyond 2^53 - 1)."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from None


def stored(value: Any) -> Any:
    """JSON that came from the database, with its numbers as they went in.

    PostgreSQL writes 1e21 as digits, which reads as an integer that has no canonical form; integers of that size were
    refused before they were stored, so it was a float.
    """
    if isinstance(value, Mapping):
        return {name: stored(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [stored(inner) for inner in value]
    if isinstance(value, int) and abs(value) >= 2**53:
        try:
            return float(value)
        except OverflowError:
            return value
    return value


def sha256(domain: str, value: Any) -> str:
    """Hex digest of `value` under `domain`, so that a digest of one kind never passes for another."""
    return hashlib.sha256(domain.encode() + b"\0" + canonical(value)).hexdigest()


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def idempotency_key(*, tenant: str, operation_id: str, tool: str, intent: Mapping[str, Any], generation: int) -> str:
    """The key of one business intent within one operation.

    `generation` counts earlier actions of this intent that are known not to have been applied; without it a corrected
    or repeated request would be answered by the downstream's memory of the failed one.
    """
    value = {
        "tenant": tenant, "operation": operation_id, "tool": tool, "intent": dict(intent), "generation": generation,
    }  # fmt: skip
    return "tq_" + sha256("intent-v1", value)[:48]


def action_digest(
    *,
    tenant: str,
    subject: str,
    operation_id: str,
    revision: int,
    tool: str,
    tool_version: str,
    arguments: Mapping[str, Any],
    idempotency_key: str,
    policy_version: str,
    resource_version: str | None,
) -> str:
    """What an approval approves: change any of these and it is another action."""
    return sha256(
        "action-v1",
        {
            "tenant": tenant,
            "subject": subject,
            "operation": operation_id,
            "revision": revision,
            "tool": tool,
            "tool_version": tool_version,
            "arguments": stored(arguments),
            "idempotency_key": idempotency_key,
            "policy_version": policy_version,
            "resource_version": resource_version,
        },
    )


def request_binding(
    *,
    operation: Mapping[str, Any],
    request: Mapping[str, Any],
    call: Mapping[str, Any],
    policy_version: str,
) -> dict[str, Any]:
    """The half of a binding that is known when the call is recorded: who asked whom for what, under which rules.

    `operation` has operation_id, tenant, subject, revision, profile_digest; `request` has provider, api, model,
    adapter_revision, request_sha256, response_id; `call` has call_id, tool, tool_version, effect, arguments_sha256,
    action_id, idempotency_key.
    """
    return {**operation, **request, **call, "policy_version": policy_version}


def bind(request_half: Mapping[str, Any], *, observation: str, state: str) -> tuple[dict[str, Any], str]:
    """The whole binding and its digest, once the result's text is known."""
    whole = {**request_half, "result_sha256": sha256_bytes(observation.encode()), "result_state": state}
    return whole, sha256("binding-v1", whole)


def approval_binding(
    *,
    approval_id: str,
    action_id: str,
    operation_id: str,
    tenant: str,
    requester: str,
    action_digest: str,
    tool_version: str,
    policy_version: str,
    resource_version: str | None,
    approvers: int,
    separate: bool,
    nonce: str,
    expires_at: datetime,
) -> str:
    """What a decision decides: this action, asked for by this person, until then, by so many, this once."""
    return sha256(
        "approval-v1",
        {
            "approval_id": approval_id,
            "action_id": action_id,
            "operation": operation_id,
            "tenant": tenant,
            "requester": requester,
            "action_digest": action_digest,
            "tool_version": tool_version,
            "policy_version": policy_version,
            "resource_version": resource_version,
            "approvers": approvers,
            "separate": separate,
            "nonce": nonce,
            "expires_at": expires_at.astimezone(UTC).isoformat(timespec="microseconds"),
        },
    )
