"""Calls a domain's tools as an executor would: validate, authorize, handle; without Turnqueue around them."""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import httpx
from pydantic import ValidationError

from examples.worlds.domain import Domain
from examples.worlds.storage import Store
from executors.context import Context
from executors.http import ScopedClient, shared_client
from executors.outcomes import Reconciled, ToolRejected
from policy.base import Deny, Principal
from tests.replay.workload import Action, Call, Task, digest


@dataclass(frozen=True)
class Answer:
    """Exactly one is set: the observation's data, the domain's refusal, or why it was stopped before."""

    data: Any = None
    error: str | None = None
    stopped: str | None = None


@dataclass
class Desk:
    domain: Domain
    store: Store
    http: httpx.Client = field(default_factory=shared_client)

    def __post_init__(self) -> None:
        self.specs = {spec.name: spec for spec in self.domain.specs(store=lambda: self.store)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.http.close()

    def call(self, world: str, call: Call, subject: str | None, key: str | None = None) -> Answer:
        spec = self.specs[call.tool]
        try:
            arguments = spec.arguments.model_validate(call.arguments)
        except ValidationError as error:
            return Answer(stopped=str(error))
        principal = self.principal(world, subject)
        decision = spec.authorize(arguments, principal) if spec.authorize else None
        if isinstance(decision, Deny):
            return Answer(stopped=decision.code)
        try:
            result = spec.handler(
                arguments, self.context(principal, key or uuid4().hex if spec.effect.writes else None)
            )
        except ToolRejected as refusal:
            return Answer(error=refusal.message)
        return Answer(data=result.model_dump(mode="json"))

    def reconcile(self, world: str, call: Call, key: str) -> Reconciled:
        spec = self.specs[call.tool]
        assert spec.reconcile is not None
        return spec.reconcile(
            spec.arguments.model_validate(call.arguments), key, None, self.context(self.principal(world, None), key)
        )

    def context(self, principal: Principal, key: str | None) -> Context:
        deadline = time.monotonic() + 30
        scoped = ScopedClient(self.http, deadline)
        return Context(principal, "op", "call", "attempt", deadline, scoped, "action" if key else None, key)

    def play(self, world: str, task: Task) -> list[str]:
        """Do a task's calls in order; returns what was not as the ground truth says."""
        return [wrong for action in task.actions if (wrong := self.differs(world, action, task.subject))]

    def differs(self, world: str, action: Action, subject: str | None) -> str | None:
        answer = self.call(world, action.call, subject)
        if action.error is not None:
            return None if answer == Answer(error=action.error) else f"{action.call}: {answer}, not {action.error!r}"
        if answer.error or answer.stopped or digest(answer.data) != action.result_digest:
            return f"{action.call}: {answer}"
        return None

    def principal(self, world: str, subject: str | None) -> Principal:
        """No subject: a member of staff."""
        return Principal(world, subject) if subject else Principal(world, "staff", frozenset({self.domain.any_scope}))
