"""Tools of each kind over one tiny downstream, whose answers the test orders; `LAB_URL` says where it is."""

import os
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict

from executors.context import Context
from executors.outcomes import Absent, Accepted, Applied, NotApplied, Reconciled, ToolRejected, ToolUnavailable
from executors.registry import IdempotencyContract, ToolSpec
from orchestrator.domain.model import Effect
from policy.base import Allow, Decision, Deny, Principal


class Note(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str = "x"
    size: int = 0


class Written(BaseModel):
    id: str
    text: str = ""


# What the host's own stores say; tests change it while an operation waits.
FACTS: dict[str, Any] = {"version": "v1", "allowed": True}


def _read(response: Any) -> Any:
    if response.status_code in (409, 422):
        raise ToolRejected(response.json()["code"])
    if response.status_code == 202:
        return Accepted(response.json()["id"])
    if response.status_code >= 500:
        raise ToolUnavailable(f"status {response.status_code}")
    return response.raise_for_status().json()


def _look(args: Note, ctx: Context) -> Any:
    return _read(ctx.http.get(f"{os.environ['LAB_URL']}/facts/{args.text}"))


def _write(args: Note, ctx: Context) -> Any:
    return _read(ctx.http.post(f"{os.environ['LAB_URL']}/notes/{args.text}", json={"size": args.size}))


def _check(args: Note, key: str, reference: str | None, ctx: Context) -> Reconciled:
    response = ctx.http.get(f"{os.environ['LAB_URL']}/by-key/{key}")
    if response.status_code == 404:
        return Absent()
    if response.status_code == 409:
        return NotApplied(response.json()["code"], "recorded refusal")
    return Applied(_read(response))


def _authorize(args: Note, principal: Principal) -> Decision:
    return Allow() if FACTS["allowed"] else Deny("NOT_YOURS")


def _spec(name: str, effect: Effect, handler: Any, **fields: Any) -> ToolSpec:
    fixed = {"arguments": Note, "result": Written, "timeout": 20.0, "reference_field": "id"}
    return ToolSpec(name=name, description=f"{name} something.", effect=effect, handler=handler, **(fixed | fields))


TOOLS = (
    _spec("look", Effect.READ, _look, intent=("text",)),
    _spec("narrow", Effect.READ, _look, concurrency=1),
    _spec("export", Effect.READ, _look, egress=True),
    _spec("write", Effect.CREATE, _write, unreconcilable=True),
    _spec("aside", Effect.CREATE, _write, unreconcilable=True, independent=True),
    _spec("keyed", Effect.CREATE, _write, idempotency=IdempotencyContract(), intent=("text",)),
    _spec("brief", Effect.CREATE, _write, idempotency=IdempotencyContract(retention=timedelta(0))),
    _spec("checked", Effect.CREATE, _write, reconcile=_check),
    _spec("patient", Effect.CREATE, _write, idempotency=IdempotencyContract(), reconcile=_check, compensation="undo"),
    _spec("undo", Effect.CREATE, _write, idempotency=IdempotencyContract()),
    _spec("flag", Effect.OVERWRITE, _write, repeatable=True),
    _spec("single", Effect.CREATE, _write, unreconcilable=True, concurrency=1),
    _spec(
        "careful",
        Effect.CREATE,
        _write,
        idempotency=IdempotencyContract(),
        reconcile=_check,
        conclusive_after=timedelta(0),
        approval=True,
        authorize=_authorize,
        resource_version=lambda args, principal: str(FACTS["version"]),
    ),
)
