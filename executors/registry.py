"""ToolSpec and the registry: the allowlist through which every tool name resolves.

A module named in `TURNQUEUE_MODULES` has a function `register(registry: Registry) -> None`.  Found is not enabled: a
profile lists the tools that its operations may use.
"""

import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import cleandoc
from typing import Any, Literal

from pydantic import BaseModel

from executors import questions, redaction
from executors.context import Context
from executors.outcomes import Reconciled
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import Effect
from policy.base import Decision, Principal
from policy.profile import Profile

Handler = Callable[[Any, Context], Any]
ReconcileHandler = Callable[[Any, str, str | None, Context], Reconciled]
Authorizer = Callable[[Any, Principal], Decision]
ApprovalRule = Callable[[Any, Principal], bool]
VersionHook = Callable[[Any, Principal], str]

NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$")
QUEUE = re.compile(r"^[a-z][a-z0-9_-]{0,31}$")


@dataclass(frozen=True, slots=True)
class IdempotencyContract:
    """The downstream's promise: a request repeated under one key is applied once, for `retention` after the first.

    `carrier` says how the key travels: `header` is added by `ctx.http` under `name`; `field` is the handler's job.
    """

    name: str = "Idempotency-Key"
    carrier: Literal["header", "field"] = "header"
    retention: timedelta = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One reviewed tool, host-owned. Validated when built; a bad spec is a ConfigError that names the field.

    - `handler(args, ctx)` returns `result` (or a mapping of its fields), `Accepted`, or raises an `outcomes.ToolError`.
    - `reconcile(args, idempotency_key, reference, ctx)` asks the downstream what became of a write.
    - `authorize(args, principal)` decides on the resource (ownership, amount, state); it may read the host's stores.
    - `approval` is True, or a predicate over the validated arguments: a person must decide first.
    - `intent` names the argument fields that make up the business intent (default: all). Same intent fields with
      other arguments in one operation is a conflict.
    - `unreconcilable=True` is how a `create` tool says that it has neither contract nor handler: its uncertain
      outcomes wait for an operator.
    - `conclusive_after` is how long after the last send a missing trace may still be a request on its way.
    - `expose` is the allowlist of result fields that the model may see (default: all that are not PERSONAL, see
      `executors.redaction`). A PERSONAL field inside another is named too: `owner.email`.
    - `untrusted=True`: its results carry text that people outside wrote; having read one, the operation is tainted.
    - `timeout` is seconds per attempt; `concurrency` is the fleet-wide limit of attempts in flight.
    """

    name: str
    description: str
    arguments: type[BaseModel]
    result: type[BaseModel]
    handler: Handler
    effect: Effect
    version: str = "1"
    egress: bool = False
    queue: str = ""  # default: "reads" for reads, "writes" for the others
    timeout: float = 30.0
    concurrency: int | None = None
    scopes: frozenset[str] = frozenset()
    authorize: Authorizer | None = None
    approval: bool | ApprovalRule = False
    approval_ttl: timedelta = timedelta(hours=24)
    intent: tuple[str, ...] | None = None
    independent: bool = False  # this write may run beside the other writes of its turn
    repeatable: bool = False  # an overwrite whose retry owner may send it again after an uncertain outcome
    resource_version: VersionHook | None = None  # read when judged, bound to the approval, compared before the start
    sparse_arguments: bool = False  # absent optional arguments stay absent instead of taking their defaults
    max_attempts: int = 3
    idempotency: IdempotencyContract | None = None
    reconcile: ReconcileHandler | None = None
    conclusive_after: timedelta = timedelta(seconds=30)  # until then "absent" does not let it be sent again
    compensation: str | None = None  # the tool that undoes it, offered as an action of its own
    unreconcilable: bool = False
    reference_field: str | None = None  # result field with the downstream's own id
    expose: frozenset[str] | None = None
    max_result_bytes: int = 64 * 1024
    untrusted: bool = False
    schema: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.queue:
            object.__setattr__(self, "queue", "writes" if self.effect.writes else "reads")
        object.__setattr__(self, "schema", self.arguments.model_json_schema())
        for problem in _problems(self):
            raise ConfigError("BAD_TOOL_SPEC", f"tool {self.name!r}: {problem}")

    @property
    def needs_action(self) -> bool:
        """Whether a call of it is always tracked as an action, even where it only reads."""
        return self.effect.writes or self.egress or self.approval is not False

    def load(self, arguments: Mapping[str, Any]) -> BaseModel:
        """Stored arguments as the model: read as JSON, which a strict model needs for dates, enums and the like."""
        return self.arguments.model_validate_json(json.dumps(dict(arguments)))

    @property
    def intent_fields(self) -> tuple[str, ...]:
        return self.intent if self.intent is not None else tuple(self.arguments.model_fields)


def _problems(spec: ToolSpec) -> Iterator[str]:
    if not NAME.fullmatch(spec.name):
        yield "name must be 1-64 letters, digits, '_' or '-', starting with a letter or '_'"
    if not spec.description.strip():
        yield "description is empty; say what it does, when it applies and whether it changes anything"
    if not QUEUE.fullmatch(spec.queue):
        yield f"queue {spec.queue!r} must be a short lower-case word"
    if spec.queue == "orchestrator":
        yield "queue 'orchestrator' is reserved for model turns"
    if not spec.version:
        yield "version is empty"
    if spec.timeout <= 0:
        yield "timeout must be positive (seconds)"
    if spec.concurrency is not None and spec.concurrency < 1:
        yield "concurrency must be at least 1, or None for no limit"
    if spec.max_attempts < 1:
        yield "max_attempts must be at least 1"
    if spec.max_result_bytes < 256:
        yield "max_result_bytes must be at least 256"
    if spec.arguments.model_config.get("extra") != "forbid":
        yield f"arguments model {spec.arguments.__name__} must set extra='forbid', so that unknown fields are refused"
    yield from _field_problems(spec)
    yield from _write_problems(spec)


def _field_problems(spec: ToolSpec) -> Iterator[str]:
    if spec.intent is not None and not spec.intent:
        yield "intent is empty; leave it out to use every argument"
    for name in spec.intent or ():
        if name not in spec.arguments.model_fields:
            yield f"intent field {name!r} is not an argument"
    personal, _ = redaction.marked_fields(spec.result)
    for name in spec.expose or ():
        if name not in spec.result.model_fields and name not in personal:
            yield f"expose field {name!r} is not in the result model"
    for name in sorted(redaction.marked_fields(spec.arguments)[1]):
        yield f"argument {name!r} is a secret: the model would have to know it; let the handler take it from the host"
    if spec.reference_field is not None and spec.reference_field not in spec.result.model_fields:
        yield f"reference_field {spec.reference_field!r} is not in the result model"


def _write_problems(spec: ToolSpec) -> Iterator[str]:
    recoverable = spec.idempotency is not None or spec.reconcile is not None
    if spec.effect is Effect.CREATE and not recoverable and not spec.unreconcilable:
        yield (
            "a create tool needs an idempotency contract or a reconcile handler; "
            "set unreconcilable=True to say that an operator settles its uncertain outcomes"
        )
    if recoverable and spec.unreconcilable:
        yield "unreconcilable=True contradicts the idempotency contract or reconcile handler"
    if spec.effect is Effect.READ and (spec.idempotency or spec.unreconcilable):
        yield "a read takes no idempotency contract"
    if spec.repeatable and spec.effect is not Effect.OVERWRITE:
        yield "repeatable is for overwrite tools; a create is never sent twice on our own account"


def tool(
    *, effect: Effect | str, name: str | None = None, description: str | None = None, **fields: Any
) -> Callable[[Handler], ToolSpec]:
    """Turn a handler into a ToolSpec; argument and result models come from its annotations.

    @tool(effect="read", scopes=frozenset({"orders:read"}))
    def get_order(args: GetOrder, ctx: Context) -> Order:
        '''Return one order of the authenticated customer. Changes nothing.'''
    """

    def build(handler: Handler) -> ToolSpec:
        hints = _handler_models(handler)
        return ToolSpec(
            name=name or handler.__name__,
            description=description or cleandoc(handler.__doc__ or ""),
            handler=handler,
            effect=Effect(effect),
            **{**hints, **fields},
        )

    return build


def _handler_models(handler: Handler) -> dict[str, type[BaseModel]]:
    hints = typing.get_type_hints(handler)
    result = hints.pop("return", None)
    candidates = [h for h in typing.get_args(result) or (result,) if isinstance(h, type) and issubclass(h, BaseModel)]
    arguments = next(iter(hints.values()), None)
    if not (isinstance(arguments, type) and issubclass(arguments, BaseModel)) or len(candidates) != 1:
        raise ConfigError(
            "BAD_TOOL_SPEC",
            f"handler {handler.__name__!r} must be annotated as (args: ArgumentsModel, ctx: Context) -> ResultModel",
        )
    return {"arguments": arguments, "result": candidates[0]}


def _never_runs(args: BaseModel, ctx: Context) -> questions.Answer:
    raise AssertionError("a question waits for its answer; no handler runs")


ASK_USER = ToolSpec(
    name=questions.NAME,
    description=questions.DESCRIPTION,
    arguments=questions.AskUser,
    result=questions.Answer,
    handler=_never_runs,
    effect=Effect.READ,
)


class Registry:
    """The tools and profiles this process knows, by name, and the built-in `ask_user`. Refuses duplicates."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolSpec] = {ASK_USER.name: ASK_USER}
        self._profiles: dict[str, Profile] = {}

    def add(self, *specs: ToolSpec) -> None:
        for spec in specs:
            if spec.name in self._tools:
                raise ConfigError("DUPLICATE_TOOL", f"tool {spec.name!r} is registered twice")
            self._tools[spec.name] = spec

    def add_profile(self, *profiles: Profile) -> None:
        for profile in profiles:
            if profile.name in self._profiles:
                raise ConfigError("DUPLICATE_PROFILE", f"profile {profile.name!r} is registered twice")
            self._profiles[profile.name] = profile

    def tool(self, name: str) -> ToolSpec | None:
        return self._tools.get(name)

    def profile(self, name: str) -> Profile | None:
        return self._profiles.get(name)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Those with a handler, which run in the queues; the built-in one does not."""
        return tuple(spec for spec in self._tools.values() if spec is not ASK_USER)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        return tuple(self._profiles.values())

    def check(self) -> None:
        """Every profile's tools exist. Called once, after all modules have registered; raises ConfigError."""
        for spec in self.tools:
            if spec.compensation is not None and spec.compensation not in self._tools:
                raise ConfigError(
                    "UNKNOWN_TOOL", f"tool {spec.name!r}: compensation names unknown {spec.compensation!r}"
                )
        for profile in self.profiles:
            ruled = (name for rule in profile.approvals for name in rule.tools)
            named = (*profile.tools, *profile.required_tools, *profile.budgets.calls_per_tool, *ruled)
            for name in named:
                if name not in self._tools:
                    raise ConfigError("UNKNOWN_TOOL", f"profile {profile.name!r} names unknown tool {name!r}")
            for name in profile.required_tools:
                if name not in profile.tools:
                    raise ConfigError(
                        "BAD_PROFILE", f"profile {profile.name!r}: required tool {name!r} is not in tools"
                    )
