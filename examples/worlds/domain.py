"""A domain's tools as ToolSpecs: pure functions behind `storage.py`, with ownership checks and idempotency."""

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolTimeout
from pydantic import BaseModel

from examples.worlds.storage import KeyConflict, Store, Touched, Write
from examples.worlds.world import Refusal, World
from executors.context import Context
from executors.outcomes import Absent, Applied, NotApplied, NotSent, Reconciled, ToolRejected, ToolUnavailable
from executors.registry import IdempotencyContract, ToolSpec
from orchestrator.domain.model import Effect
from policy.base import Allow, Decision, Deny, Principal
from policy.profile import Model

CONCLUSIVE = timedelta(seconds=1)  # a look-up reads the database that the write goes to
CONTRACT = IdempotencyContract(name="idempotency_key", carrier="field", retention=timedelta(days=365))
ROLLED_BACK = (pg.LockNotAvailable, pg.QueryCanceled, pg.DeadlockDetected, pg.SerializationFailure)

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool, named like its function. `confirm`: a person has to approve it where approvals are switched on."""

    function: Function
    effect: Effect
    arguments: type[BaseModel]
    result: type[BaseModel]
    description: str
    confirm: bool = False
    concurrency: int | None = None

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True, slots=True)
class Domain:
    """`name` is that of the profile, of the database schema and, in capitals, the prefix of environment variables.

    `owned` names the arguments that identify a customer's record, each with its table; in all of them the field
    `user_id` is the owner and never changes. `touched` says what a write must lock.
    """

    name: str
    tools: tuple[Tool, ...]
    owned: Mapping[str, str]
    touched: Touched

    @property
    def any_scope(self) -> str:
        """Scope of staff: may use every customer's records."""
        return f"{self.name}:any"

    @property
    def modules(self) -> tuple[str, ...]:
        return (f"examples.{self.name}",)

    @property
    def profile(self) -> str:
        return self.name

    def variable(self, name: str) -> str | None:
        """An environment variable of this domain, such as RETAIL_API for `API`; None where unset or empty."""
        return os.environ.get(f"{self.name.upper()}_{name}") or None

    def model(self) -> Model:
        """Which model, when a process registers its tools; the endpoint is the worker's ..._MODEL_URL."""
        return Model(
            api=self.variable("API") or "openai-responses",
            name=self.variable("MODEL") or "scripted",
            base_url=f"${self.name.upper()}_MODEL_URL",
            api_key_env=self.variable("API_KEY_ENV"),
            stream=self.variable("STREAM") == "1",
        )

    def environment(self, *, database_url: str, model_url: str, provider: str, stream: bool = False) -> dict[str, str]:
        """What the processes of a replay need to reach the records and the model; nobody is there to approve."""
        values = {"DATABASE_URL": database_url, "MODEL_URL": model_url, "API": provider, "APPROVALS": "0"}
        if stream:
            values["STREAM"] = "1"
        return {f"{self.name.upper()}_{name}": value for name, value in values.items()}

    def open(self, database_url: str) -> Store:
        """The domain's records; closed by the caller."""
        return Store(database_url, schema=self.name)

    def owner(self, world: World, arguments: Mapping[str, Any]) -> str | None:
        """Whose record a call uses; None where it uses nobody's, or one that does not exist."""
        for name, table in self.owned.items():
            if name in arguments:
                record = world.get(table, arguments[name])
                return str(record["user_id"]) if record else None
        return None

    def apply(self, world: World, tool: str, arguments: Mapping[str, Any]) -> Any:
        """A tool's pure function by name. Raises Refusal."""
        return next(each for each in self.tools if each.name == tool).function(world, **arguments)

    def specs(self, *, approvals: bool = False, store: Callable[[], Store] | None = None) -> tuple[ToolSpec, ...]:
        """All tools. With `approvals`, the writes that the customer must confirm also wait for a person's decision."""
        opened = store or self.shared_store
        return tuple(self._spec(tool, approvals and tool.confirm, opened) for tool in self.tools)

    def _spec(self, tool: Tool, approval: bool, store: Callable[[], Store]) -> ToolSpec:
        owned = self.owned.keys() & tool.arguments.model_fields.keys()
        common: dict[str, Any] = {
            "name": tool.name,
            "description": tool.description,
            "arguments": tool.arguments,
            "result": tool.result,
            "effect": tool.effect,
            "approval": approval,
            "concurrency": tool.concurrency,
            "authorize": self._owner_only(store) if owned else None,
        }
        if not tool.effect.writes:
            return ToolSpec(**common, handler=_reader(tool, store))
        writer, reconcile = _writer(tool, self.touched, store), _reconciler(tool, store)
        return ToolSpec(
            **common, handler=writer, idempotency=CONTRACT, reconcile=reconcile, conclusive_after=CONCLUSIVE
        )

    def _owner_only(self, store: Callable[[], Store]) -> Callable[[Any, Principal], Decision]:
        """A customer reaches only their own records; what does not exist is the tool's own answer."""

        def authorize(args: BaseModel, principal: Principal) -> Decision:
            if self.any_scope in principal.scopes:
                return Allow()
            for name, table in self.owned.items():
                if name in type(args).model_fields:
                    owner = store().field(principal.tenant, table, getattr(args, name), "user_id")
                    if owner not in (None, principal.subject):
                        return Deny("FORBIDDEN_RESOURCE", "the record belongs to another customer")
            return Allow()

        return authorize

    def shared_store(self) -> Store:
        """This process's store at ..._DATABASE_URL (else TURNQUEUE_DATABASE_URL); opened at the first use."""
        with _lock:
            key = (os.getpid(), self.name)
            if key not in _stores:
                url = self.variable("DATABASE_URL") or os.environ.get("TURNQUEUE_DATABASE_URL")
                if not url:
                    raise NotSent(f"set {self.name.upper()}_DATABASE_URL or TURNQUEUE_DATABASE_URL")
                _stores[key] = self.open(url)
                atexit.register(_stores[key].close)
            return _stores[key]


_lock = threading.Lock()
_stores: dict[tuple[int, str], Store] = {}  # by process: a forked worker must not share its parent's connections


def _reader(tool: Tool, store: Callable[[], Store]) -> Callable[[Any, Context], BaseModel]:
    def handler(args: BaseModel, ctx: Context) -> BaseModel:
        with _translated():
            result = store().read(ctx.tenant, lambda world: tool.function(world, **args.model_dump()))
        return tool.result.model_validate(result)

    return handler


def _writer(tool: Tool, touched: Touched, store: Callable[[], Store]) -> Callable[[Any, Context], BaseModel]:
    def handler(args: BaseModel, ctx: Context) -> BaseModel:
        if ctx.idempotency_key is None:
            raise NotSent("a write needs an idempotency key")
        arguments = args.model_dump(mode="json")
        request = Write(
            world=ctx.tenant,
            key=ctx.idempotency_key,
            tool=tool.name,
            arguments=arguments,
            apply=lambda world: tool.function(world, **arguments),
            touched=touched,
        )
        with _translated():
            result = store().write(request, seconds=ctx.remaining)
        return tool.result.model_validate(result)

    return handler


def _reconciler(tool: Tool, store: Callable[[], Store]) -> Callable[[Any, str, str | None, Context], Reconciled]:
    def reconcile(args: BaseModel, key: str, reference: str | None, ctx: Context) -> Reconciled:
        del args, reference, ctx  # the key says it all
        with _translated():
            outcome = store().lookup(key)
        if outcome is None:
            return Absent()
        if outcome.error is not None:
            return NotApplied(outcome.error.code, outcome.error.text)
        return Applied(tool.result.model_validate(outcome.result))

    return reconcile


@contextmanager
def _translated() -> Iterator[None]:
    """The domain's and PostgreSQL's errors as the outcomes that executors know."""
    try:
        yield
    except Refusal as refusal:
        raise ToolRejected(refusal.code, refusal.text) from None
    except KeyConflict:
        raise ToolRejected("IDEMPOTENCY_CONFLICT", "the key was used for another request") from None
    except (PoolTimeout, *ROLLED_BACK) as error:  # no connection, or proof that the transaction changed nothing
        raise NotSent(type(error).__name__) from error
    except psycopg.Error as error:
        raise ToolUnavailable(type(error).__name__) from error
