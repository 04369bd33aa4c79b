"""The tools and the profile of the chaos workload: each kind of tool over the ledger. `CHAOS_LEDGER_URL` and
`CHAOS_MODEL_URL` of the worker say where the ledger and the model are; CHAOS_TIMEOUT, CHAOS_ATTEMPTS and
CHAOS_CONCLUSIVE change a request's seconds, the tools' limit of attempts, and when absence counts.
"""

import os
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict

from executors.context import Context
from executors.outcomes import Absent, Applied, Reconciled, ToolRejected, ToolUnavailable
from executors.registry import IdempotencyContract, Registry, ToolSpec
from orchestrator.domain.model import Effect
from policy.profile import ApprovalRule, Budgets, Model, Profile

TIMEOUT = float(os.environ.get("CHAOS_TIMEOUT", "4"))  # seconds of one request
# Attempts: a chaos run kills more often than any tool's default allows.
PATIENT = int(os.environ.get("CHAOS_ATTEMPTS", "60"))
LIMITS = {"narrow": 2, "pay_both": 3}
ENFORCED = ("pay_keyed", "pay_both", "pay_free", "pay_asked", "pay_brief", "pay_two")


class Note(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str


class Written(BaseModel):
    ref: str
    n: int


def _read(response: Any) -> Any:
    if response.status_code == 422:
        raise ToolRejected(response.json()["code"])
    if response.status_code >= 500:
        raise ToolUnavailable(f"status {response.status_code}")
    return response.raise_for_status().json()


def _url(path: str) -> str:
    return f"{os.environ['CHAOS_LEDGER_URL']}/{path}"


def _headers(ctx: Context) -> dict[str, str]:
    key = {"Idempotency-Key": ctx.idempotency_key} if ctx.idempotency_key else {}
    return {"Attempt-Id": ctx.attempt_id, "Tenant": ctx.tenant, **key}


def _fact(tool: str) -> Any:
    def look(args: Note, ctx: Context) -> Any:
        return _read(ctx.http.get(_url(f"facts/{tool}/{args.name}"), headers=_headers(ctx)))

    return look


def _effect(tool: str) -> Any:
    def write(args: Note, ctx: Context) -> Any:
        return _read(ctx.http.post(_url(f"effects/{tool}"), headers=_headers(ctx), json=args.model_dump()))

    return write


def _look_up(args: Note, key: str, reference: str | None, ctx: Context) -> Reconciled:
    response = ctx.http.get(_url(f"by-key/{key}"))
    return Absent() if response.status_code == 404 else Applied(_read(response))


def _spec(name: str, effect: Effect, handler: Any, **fields: Any) -> ToolSpec:
    fixed: dict[str, Any] = {"arguments": Note, "result": Written, "timeout": TIMEOUT, "max_attempts": PATIENT}
    return ToolSpec(
        name=name, description=f"{name}.", effect=effect, handler=handler, concurrency=LIMITS.get(name),
        **(fixed | fields),
    )  # fmt: skip


_KEY = IdempotencyContract()
_SOON = timedelta(seconds=float(os.environ.get("CHAOS_CONCLUSIVE", "2")))
_BRIEF = timedelta(seconds=1.5)
TOOLS = (
    _spec("look", Effect.READ, _fact("look")),
    _spec("narrow", Effect.READ, _fact("narrow")),
    _spec("pay_keyed", Effect.CREATE, _effect("pay_keyed"), idempotency=_KEY),
    _spec("pay_both", Effect.CREATE, _effect("pay_both"), idempotency=_KEY, reconcile=_look_up, conclusive_after=_SOON),
    _spec("pay_lookup", Effect.CREATE, _effect("pay_lookup"), reconcile=_look_up, conclusive_after=_SOON),
    _spec("pay_free", Effect.CREATE, _effect("pay_free"), idempotency=_KEY, independent=True),
    _spec("pay_asked", Effect.CREATE, _effect("pay_asked"), idempotency=_KEY, approval=True),
    _spec("pay_brief", Effect.CREATE, _effect("pay_brief"), idempotency=_KEY, approval=True, approval_ttl=_BRIEF),
    _spec("pay_two", Effect.CREATE, _effect("pay_two"), idempotency=_KEY),
    _spec("pay_blind", Effect.CREATE, _effect("pay_blind"), unreconcilable=True),
)
PROFILE = Profile(
    name="chaos",
    model=Model(api="openai-responses", name="chaos", base_url="$CHAOS_MODEL_URL", timeout=20.0),
    instructions="Do what the script says.",
    tools=tuple(spec.name for spec in TOOLS),
    approvals=(ApprovalRule(tools=("pay_two",), approvers=2, separate=True),),
    budgets=Budgets(wall_seconds=24 * 3600.0),
)


def register(registry: Registry) -> None:
    registry.add(*TOOLS)
    registry.add_profile(PROFILE)
