"""The tools and the profile of these tests, over the chaos ledger. Every release imports this: only what the first one
had may be used here. `SKEW_LEDGER_URL` and `SKEW_MODEL_URL` say where ledger and model are.
"""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

import orchestrator.app
from executors.context import Context
from executors.outcomes import Absent, Applied, Reconciled, ToolRejected, ToolUnavailable
from executors.registry import IdempotencyContract, Registry, ToolSpec
from orchestrator.domain.model import Effect
from policy.profile import Budgets, Model, Profile

TIMEOUT = 1.5  # seconds of one request
ATTEMPTS = 30
LIMITS = {"narrow": 2, "pay_both": 3}
ENFORCED = ("pay_keyed", "pay_both", "pay_asked")


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
    return f"{os.environ['SKEW_LEDGER_URL']}/{path}"


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
    fixed: dict[str, Any] = {"arguments": Note, "result": Written, "timeout": TIMEOUT, "max_attempts": ATTEMPTS}
    return ToolSpec(
        name=name, description=f"{name}.", effect=effect, handler=handler, concurrency=LIMITS.get(name),
        **(fixed | fields),
    )  # fmt: skip


_KEY = IdempotencyContract()
_SOON = timedelta(seconds=1)
TOOLS = (
    _spec("look", Effect.READ, _fact("look")),
    _spec("narrow", Effect.READ, _fact("narrow")),
    _spec("pay_keyed", Effect.CREATE, _effect("pay_keyed"), idempotency=_KEY),
    _spec("pay_both", Effect.CREATE, _effect("pay_both"), idempotency=_KEY, reconcile=_look_up, conclusive_after=_SOON),
    _spec("pay_lookup", Effect.CREATE, _effect("pay_lookup"), reconcile=_look_up, conclusive_after=_SOON),
    _spec("pay_asked", Effect.CREATE, _effect("pay_asked"), idempotency=_KEY, approval=True),
)


def profile() -> Profile:
    """The future release's own field says something, so that only that release can read the recipe."""
    own: dict[str, Any] = {"mood": "bright"} if "mood" in Profile.model_fields else {}
    return Profile(
        name="skew",
        model=Model(api="openai-responses", name="skew", base_url="$SKEW_MODEL_URL"),
        instructions="Do what the script says.",
        tools=(*(spec.name for spec in TOOLS), "ask_user"),
        budgets=Budgets(wall_seconds=24 * 3600.0),
        **own,
    )


def register(registry: Registry) -> None:
    registry.add(*TOOLS)
    registry.add_profile(profile())
    with Path(os.environ["SKEW_LOADED"]).open("a") as log:  # which release this process really runs
        log.write(json.dumps({"pid": os.getpid(), "file": orchestrator.app.__file__}) + "\n")
