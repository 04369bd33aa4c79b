"""Tools that take their process with them, each at another step, and a consumer that goes deaf; for real workers.

`HAZARD_DEAF` names a folder: a worker that finds a file of its own name there takes it away and stops consuming in the
way that its content names: `cancel` (connected, subscribed to nothing) or `hang` (its loop stands still).
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import bootsteps, current_app
from pydantic import model_validator

from executors.context import Context
from executors.outcomes import Reconciled
from executors.registry import IdempotencyContract, Registry
from orchestrator.domain.model import Effect
from policy.base import Allow, Decision, Principal
from policy.profile import Budgets
from tests.chaos import tools

LOOK_SECONDS = 0.1
HANG_SECONDS = 3600.0


class Deadly(tools.Note):
    @model_validator(mode="after")
    def _judge(self) -> "Deadly":
        os.abort()


def _die(args: tools.Note, ctx: Context) -> Any:
    os.abort()


def _die_allowing(args: tools.Note, principal: Principal) -> Decision:
    """Not while it is judged, only when the write is about to start: then its own turn has been recorded."""
    if Path(os.environ["HAZARD_STARTS"]).exists():
        os.abort()
    return Allow()


def _die_looking(args: tools.Note, key: str, reference: str | None, ctx: Context) -> Reconciled:
    os.abort()


TOOLS = (
    tools._spec("die_judged", Effect.READ, tools._fact("look"), arguments=Deadly),
    tools._spec("die_reading", Effect.READ, _die, max_attempts=3),
    tools._spec(
        "die_starting", Effect.CREATE, tools._effect("pay_keyed"), idempotency=IdempotencyContract(),
        authorize=_die_allowing,
    ),
    tools._spec("die_checked", Effect.CREATE, tools._effect("pay_lookup"), reconcile=_die_looking),
)  # fmt: skip


def _deaf_step(base: Any) -> Any:
    class Deaf(base):  # type: ignore[misc]
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, parent: Any) -> None:
            parent.timer.call_repeatedly(LOOK_SECONDS, _go_deaf, (parent,))

    return Deaf


def _go_deaf(consumer: Any) -> None:
    file = Path(os.environ["HAZARD_DEAF"]) / consumer.hostname.partition("@")[0]
    try:
        how = file.read_text()
        file.unlink()
    except FileNotFoundError:
        return
    if how == "hang":
        time.sleep(HANG_SECONDS)
    consumer.task_consumer.cancel()


def register(registry: Registry) -> None:
    registry.add(*TOOLS)
    registry.add_profile(
        tools.PROFILE.model_copy(
            update={
                "name": "recovery",
                "tools": (*tools.PROFILE.tools, *(spec.name for spec in TOOLS)),
                "budgets": Budgets(wall_seconds=3600.0),
            }
        )
    )
    if "HAZARD_DEAF" in os.environ:
        current_app.steps["consumer"].add(_deaf_step(bootsteps.StartStopStep))
