"""Judge one reply's calls, in order: the model proposes, this decides. Nothing is written here.

duplicate call id -> known tool -> strict JSON -> schema and business validation -> authorization -> duplicate intent
-> budget -> approval rule. A call that fails gets an error observation with a stable code; the others go on.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from adapters.arguments import ArgumentError, parse_arguments
from adapters.schema import restore_optional
from executors.outcomes import SURPRISE
from executors.registry import ASK_USER, Registry, ToolSpec
from orchestrator.domain import digests
from orchestrator.domain.action import ActionState
from orchestrator.domain.model import ProposedCall
from policy import approvals
from policy.base import Allow, Ask, Decision, Deny, Principal
from policy.profile import Profile

# Rejections after which the same intent may be proposed again: they say "not now", not "no".
_NOT_NOW = frozenset(
    {
        "EARLIER_WRITE_NOT_DONE",
        "SUPERSEDED",
        "APPROVAL_EXPIRED",
        "APPROVAL_INVALID",
        "RESOURCE_CHANGED",
        "POLICY_CHANGED",
        "TOOL_CHANGED",
        "POLICY_UNAVAILABLE",
        "AUTHORIZATION_UNAVAILABLE",
    }
)


@dataclass(frozen=True, slots=True)
class KnownAction:
    """An action of this operation, earlier or of this reply."""

    action_id: str
    tool: str
    intent_sha256: str
    arguments_sha256: str
    state: ActionState
    code: str | None = None

    @property
    def gives_way(self) -> bool:
        """Known not to have been applied: the same intent is a new request."""
        return self.state is ActionState.FAILED or (self.state is ActionState.REJECTED and self.code in _NOT_NOW)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Never dispatched. `message` is shown to the model."""

    code: str
    message: str = ""
    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Read:
    spec: ToolSpec
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Act:
    spec: ToolSpec
    arguments: dict[str, Any]
    intent_sha256: str
    generation: int
    policy_version: str
    resource_version: str | None
    ask: Ask | None


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same intent as an action that exists; it gets that action's outcome."""

    spec: ToolSpec
    arguments: dict[str, Any]
    action_id: str


@dataclass(frozen=True, slots=True)
class Inquire:
    """A question to the caller; the call waits for the answer."""

    spec: ToolSpec
    arguments: dict[str, Any]


Verdict = Refuse | Read | Act | Repeat | Inquire


@dataclass(frozen=True, slots=True)
class Judged:
    call: ProposedCall
    verdict: Verdict
    arguments_sha256: str


@dataclass(slots=True)
class Bench:
    """What the judge knows of the operation; counts grow while it judges, so budgets hold within one reply."""

    registry: Registry
    profile: Profile
    principal: Principal
    operation_id: str
    offered: frozenset[str]  # names the model was offered in this turn
    calls_used: int
    writes_used: int
    per_tool: Counter[str]
    actions: Sequence[KnownAction] = field(default_factory=list)
    tainted: bool = False  # the model has been shown untrusted text
    worn_out: frozenset[tuple[str, str]] = frozenset()  # reads (tool, arguments digest) whose answer stays the same


def policy_version(spec: ToolSpec, profile: Profile) -> str:
    """Changes when anything that decided about the call does: tool contract, scopes, approval rule, profile."""
    value = {
        "profile": profile.digest,
        "tool": spec.name,
        "tool_version": spec.version,
        "effect": spec.effect,
        "scopes": sorted(spec.scopes),
        "approval": spec.approval if isinstance(spec.approval, bool) else "rule",
        "schema": dict(spec.schema),
    }
    return digests.sha256("policy-v1", value)[:32]


def intent_sha256(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    return digests.sha256("intent-fields-v1", {"tool": spec.name, **{k: arguments.get(k) for k in spec.intent_fields}})


def judge(bench: Bench, calls: Sequence[ProposedCall]) -> list[Judged]:
    """One verdict per call, in the reply's order. Authorizers may do I/O: call it outside any transaction."""
    seen: set[str] = set()
    known = list(bench.actions)
    verdicts: list[Judged] = []
    for position, call in enumerate(calls):
        verdict: Verdict
        if call.call_id in seen:
            verdict = Refuse("DUPLICATE_CALL_ID", "This call id was already used in the same reply.")
        else:
            seen.add(call.call_id)
            verdict = _judge_one(bench, known, call)
        if isinstance(verdict, Act):
            known.append(_coming(position, verdict))
        verdicts.append(Judged(call, verdict, _arguments_sha256(call, verdict)))
    return verdicts


def coming_id(position: int) -> str:
    """Stands for the action of this reply's call number `position` until it has an id."""
    return f"coming:{position}"


def _coming(position: int, act: Act) -> KnownAction:
    arguments = digests.sha256("arguments-v1", act.arguments)
    return KnownAction(coming_id(position), act.spec.name, act.intent_sha256, arguments, ActionState.READY)


def _arguments_sha256(call: ProposedCall, verdict: Verdict) -> str:
    if verdict.arguments is None:
        return digests.sha256_bytes(call.arguments_text.encode(errors="surrogatepass"))
    return digests.sha256("arguments-v1", verdict.arguments)


def _judge_one(bench: Bench, known: Sequence[KnownAction], call: ProposedCall) -> Verdict:
    spec = bench.registry.tool(call.name)
    if spec is None or call.name not in bench.profile.tools:
        return Refuse("UNKNOWN_TOOL", "There is no such tool.")
    if call.name not in bench.offered:
        return Refuse("TOOL_NOT_OFFERED", "Tools are not available in this turn. Answer from what you have.")
    checked = check_arguments(spec, call.arguments_text, bench.principal)
    if isinstance(checked, Refuse):
        return checked
    model, arguments = checked
    if not spec.needs_action and (spec.name, digests.sha256("arguments-v1", arguments)) in bench.worn_out:
        return Refuse("NO_PROGRESS", "The answer to this is in the conversation and has not changed.", arguments)
    if spec is not ASK_USER:
        decision = approval_decision(spec, bench.profile, bench.principal, model, arguments, bench.tainted)
        if spec.needs_action or not isinstance(decision, Allow):
            return _judge_action(bench, known, spec, model, arguments, decision)
    over = _over_budget(bench, spec, writes=False)
    if over:
        return Refuse(over, "The budget of this operation is used up.", arguments)
    _reserve(bench, spec, writes=False)
    return Inquire(spec, arguments) if spec is ASK_USER else Read(spec, arguments)


def check_arguments(spec: ToolSpec, text: str, principal: Principal) -> tuple[BaseModel, dict[str, Any]] | Refuse:
    """The validated model and its normal form, if this principal may do that. A Refuse without arguments: bad ones."""
    try:
        model, arguments = _parsed(spec, text)
    except _BadArguments as problem:
        return Refuse(problem.code, str(problem))
    refusal = _unauthorized(spec, model, principal)
    return (model, arguments) if refusal is None else Refuse(refusal.code, "", arguments)


def _judge_action(
    bench: Bench,
    known: Sequence[KnownAction],
    spec: ToolSpec,
    model: BaseModel,
    arguments: dict[str, Any],
    decision: Decision,
) -> Verdict:
    intent = intent_sha256(spec, arguments)
    same = [k for k in known if k.tool == spec.name and k.intent_sha256 == intent]
    standing = [k for k in same if not k.gives_way]
    if standing:
        asked = digests.sha256("arguments-v1", arguments)
        alike = [k.action_id for k in standing if k.arguments_sha256 == asked]
        if alike:
            return Repeat(spec, arguments, alike[-1])
        message = "The same request was already made with other arguments in this operation."
        return Refuse("CONFLICTING_INTENT", message, arguments)
    over = _over_budget(bench, spec, writes=spec.effect.writes)
    if over:
        return Refuse(over, "The budget of this operation is used up.", arguments)
    if isinstance(decision, Deny):  # before the budget is reserved: what is never allowed must not use it up
        message = "Not after untrusted text has been read." if decision.code == approvals.TAINTED else ""
        return Refuse(decision.code, message, arguments)
    _reserve(bench, spec, writes=spec.effect.writes)
    try:
        version = spec.resource_version(model, bench.principal) if spec.resource_version else None
    except SURPRISE:  # a hook that crashes has not allowed it
        return Refuse("POLICY_UNAVAILABLE", "", arguments)
    ask = decision if isinstance(decision, Ask) else None
    return Act(spec, arguments, intent, len(same), policy_version(spec, bench.profile), version, ask)


def approval_decision(
    spec: ToolSpec,
    profile: Profile,
    principal: Principal,
    model: BaseModel,
    arguments: Mapping[str, Any],
    tainted: bool,
) -> Decision:
    """The tool's own rule and the profile's rules, combined. A rule that crashes denies."""
    try:
        asks = spec.approval if isinstance(spec.approval, bool) else bool(spec.approval(model, principal))
    except SURPRISE:  # a rule that crashes has not allowed it
        return Deny("POLICY_UNAVAILABLE")
    proposal = approvals.Proposal(
        tool=spec.name,
        guarded=spec.effect.writes or spec.egress,
        arguments=arguments,
        fields=frozenset(spec.arguments.model_fields),
        tenant=principal.tenant,
        tainted=tainted,
    )
    return approvals.decide(proposal, rules=profile.approvals, tool_asks=asks, tainted_writes=profile.tainted_writes)


class _BadArguments(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _parsed(spec: ToolSpec, text: str) -> tuple[BaseModel, dict[str, Any]]:
    """The validated model and its normal form. The message names fields and problems, never values."""
    try:
        raw = restore_optional(parse_arguments(text), dict(spec.schema))
        model = spec.arguments.model_validate_json(json.dumps(raw), strict=True)
        arguments = model.model_dump(mode="json", exclude_unset=spec.sparse_arguments)
        digests.canonical(arguments)
    except ArgumentError as error:
        raise _BadArguments(error.code, error.message) from None
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
            for e in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise _BadArguments("INVALID_ARGUMENTS", "; ".join(problems[:8])) from None
    except ValueError:  # what has no canonical form cannot be bound to an approval or a key
        raise _BadArguments("NUMBER_OUT_OF_RANGE", "a number is outside the exact range of JSON") from None
    return model, arguments


def _unauthorized(spec: ToolSpec, model: BaseModel, principal: Principal) -> Deny | None:
    """Scopes, then the resource. A hook that crashes or gives no answer denies."""
    if not spec.scopes <= principal.scopes:
        return Deny("FORBIDDEN", f"missing scopes {sorted(spec.scopes - principal.scopes)}")
    if spec.authorize is None:
        return None
    try:
        decision = spec.authorize(model, principal)
    except SURPRISE:  # no answer is a no
        return Deny("AUTHORIZATION_UNAVAILABLE")
    if isinstance(decision, Allow):
        return None
    return decision if isinstance(decision, Deny) else Deny("AUTHORIZATION_UNAVAILABLE")


def still_authorized(spec: ToolSpec, arguments: Mapping[str, Any], principal: Principal) -> Deny | None:
    """The same question just before a write starts."""
    try:
        model = spec.load(arguments)
    except ValidationError:  # the tool's model is another one by now
        return Deny("POLICY_CHANGED", "the stored arguments do not fit the tool any more")
    return _unauthorized(spec, model, principal)


def _over_budget(bench: Bench, spec: ToolSpec, *, writes: bool) -> str | None:
    """The budget that forbids one more call (and one more write)."""
    budgets = bench.profile.budgets
    if bench.calls_used >= budgets.calls:
        return "CALL_BUDGET"
    if bench.per_tool[spec.name] >= budgets.calls_per_tool.get(spec.name, budgets.calls):
        return "TOOL_CALL_BUDGET"
    if writes and bench.writes_used >= budgets.writes:
        return "WRITE_BUDGET"
    return None


def _reserve(bench: Bench, spec: ToolSpec, *, writes: bool) -> None:
    bench.calls_used += 1
    bench.per_tool[spec.name] += 1
    bench.writes_used += writes
