"""Who must approve a call before it runs, and whether enough people did. Pure: facts in, a decision out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from orchestrator.domain.model import DecisionKind
from policy.base import Allow, Ask, Decision, Deny
from policy.profile import ApprovalRule

TAINTED = "TAINTED"  # code of a write that is refused because untrusted text has been read


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a rule looks at. `fields` are all arguments that the tool has, `guarded`: it writes or carries data out."""

    tool: str
    guarded: bool
    arguments: Mapping[str, Any]
    fields: frozenset[str]
    tenant: str
    tainted: bool


def decide(
    proposal: Proposal,
    *,
    rules: Sequence[ApprovalRule],
    tool_asks: bool,
    tainted_writes: Literal["allow", "ask", "deny"],
) -> Decision:
    """All rules that match, combined: deny before ask before allow; the most approvers, the shortest time.

    `tool_asks`: the tool's own rule wants a person.
    """
    exposed = proposal.tainted and proposal.guarded
    if exposed and tainted_writes == "deny":
        return Deny(TAINTED, "untrusted text has been read in this operation")
    matching = [rule for rule in rules if _matches(rule, proposal)]
    reasons = [_reason(rule) for rule in matching]
    if exposed and tainted_writes == "ask":
        reasons.append("untrusted text has been read in this operation")
    if not tool_asks and not reasons:
        return Allow()
    times = [rule.ttl_seconds for rule in matching if rule.ttl_seconds is not None]
    return Ask(
        "; ".join([f"{proposal.tool} needs a person's approval", *dict.fromkeys(filter(None, reasons))]),
        approvers=max((rule.approvers for rule in matching), default=1),
        separate=any(rule.separate for rule in matching),
        ttl_seconds=min(times, default=None),
    )


def _matches(rule: ApprovalRule, proposal: Proposal) -> bool:
    if proposal.tool not in rule.tools if rule.tools else not proposal.guarded:
        return False
    if rule.tenants and proposal.tenant not in rule.tenants:
        return False
    if rule.tainted is not None and rule.tainted is not proposal.tainted:
        return False
    return not rule.over or any(_over(name, limit, proposal) for name, limit in rule.over.items())


def _over(name: str, limit: float, proposal: Proposal) -> bool:
    """What cannot be compared counts as over; an argument that the tool does not have is no concern of the rule."""
    if name not in proposal.fields:
        return False
    value = proposal.arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return True
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return True
    return not number <= Decimal(str(limit)) if number.is_finite() else True


def _reason(rule: ApprovalRule) -> str:
    said = [f"{name} over {limit:g}" for name, limit in rule.over.items()]
    if rule.tainted:
        said.append("untrusted text has been read in this operation")
    return ", ".join(said) or "a rule of the profile"


# --- decisions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's decision, and the digest of the approval that it was made on."""

    by: str
    decision: DecisionKind
    bound_sha256: str


def approving(votes: Iterable[Vote], *, bound_sha256: str, requester: str, separate: bool) -> frozenset[str]:
    """Who approved exactly this; where it must be somebody else, the requester does not count."""
    return frozenset(
        vote.by
        for vote in votes
        if vote.decision is DecisionKind.APPROVE
        and vote.bound_sha256 == bound_sha256
        and not (separate and vote.by == requester)
    )
