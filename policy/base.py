"""Policy decisions are values: facts in, Allow | Ask | Deny out. No answer, or a crash, is a Deny."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allow:
    pass


@dataclass(frozen=True, slots=True)
class Ask:
    """A person must decide; `reason` is shown to the approver.

    `approvers` different people, with `separate` none of them the requester, within `ttl_seconds` (None: the tool's).
    """

    reason: str
    approvers: int = 1
    separate: bool = False
    ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """Refused. `code` is stable and told to the model; `reason` is for people and the audit only."""

    code: str
    reason: str = ""


Decision = Allow | Ask | Deny


@dataclass(frozen=True, slots=True)
class Principal:
    """On whose behalf an operation runs: from the host's authentication, never from the model."""

    tenant: str
    subject: str
    scopes: frozenset[str] = frozenset()
