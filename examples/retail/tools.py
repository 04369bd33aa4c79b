"""The shop's sixteen tools as ToolSpecs: `semantics.py` behind `storage.py`, with ownership checks and idempotency."""

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolTimeout
from pydantic import BaseModel

from examples.retail import models, semantics
from examples.retail.semantics import RetailError
from examples.retail.storage import KeyConflict, Store, Write
from executors.context import Context
from executors.outcomes import Absent, Applied, NotApplied, NotSent, Reconciled, ToolRejected, ToolUnavailable
from executors.registry import IdempotencyContract, ToolSpec
from orchestrator.domain.model import Effect
from policy.base import Allow, Decision, Deny, Principal

ANY = "retail:any"  # scope of staff: may use every customer's records
CONTRACT = IdempotencyContract(name="idempotency_key", carrier="field", retention=timedelta(days=365))
ROLLED_BACK = (pg.LockNotAvailable, pg.QueryCanceled, pg.DeadlockDetected, pg.SerializationFailure)

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """One line of the table below; `confirm`: a person has to approve it where approvals are switched on."""

    function: Function
    effect: Effect
    arguments: type[BaseModel]
    result: type[BaseModel]
    description: str
    confirm: bool = False
    concurrency: int | None = None


READ, CREATE, OVERWRITE = Effect.READ, Effect.CREATE, Effect.OVERWRITE
RECORD, TEXT = models.Record, models.Text

TOOLS = (
    Tool(semantics.calculate, READ, models.Expression, TEXT, "Work out an arithmetic expression. Changes nothing."),
    Tool(
        semantics.find_user_id_by_email,
        READ,
        models.Email,
        TEXT,
        "Find a user's id by e-mail address. Changes nothing.",
        concurrency=8,
    ),
    Tool(
        semantics.find_user_id_by_name_zip,
        READ,
        models.NameAndZip,
        TEXT,
        "Find a user's id by name and zip code, where the e-mail address is not known. Changes nothing.",
        concurrency=8,
    ),
    Tool(
        semantics.get_item_details,
        READ,
        models.Item,
        RECORD,
        "Give one item: options, price and availability. Changes nothing.",
    ),
    Tool(
        semantics.get_order_details,
        READ,
        models.Order,
        RECORD,
        "Give one order with its status. Changes nothing.",
        concurrency=12,
    ),
    Tool(
        semantics.get_product_details,
        READ,
        models.Product,
        RECORD,
        "Give one product with all of its items. Changes nothing.",
        concurrency=6,
    ),
    Tool(
        semantics.get_user_details,
        READ,
        models.User,
        RECORD,
        "Give one user with payment methods and orders. Changes nothing.",
    ),
    Tool(
        semantics.list_all_product_types,
        READ,
        models.Nothing,
        TEXT,
        "List the names and ids of all products. Changes nothing.",
    ),
    Tool(
        semantics.cancel_pending_order,
        CREATE,
        models.Cancellation,
        RECORD,
        "Cancel an order that is still pending and refund its payments. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.exchange_delivered_order_items,
        CREATE,
        models.ItemSwap,
        RECORD,
        "Exchange items of a delivered order for others of the same product; once per order. "
        "The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.modify_pending_order_items,
        CREATE,
        models.ItemSwap,
        RECORD,
        "Change items of a pending order to others of the same product; once per order. "
        "The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.modify_pending_order_payment,
        CREATE,
        models.OrderPayment,
        RECORD,
        "Pay a pending order by another method; the first is refunded. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.modify_pending_order_address,
        OVERWRITE,
        models.OrderAddress,
        RECORD,
        "Change where a pending order is sent. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.modify_user_address,
        OVERWRITE,
        models.UserAddress,
        RECORD,
        "Change a user's default address. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.return_delivered_order_items,
        CREATE,
        models.ItemReturn,
        RECORD,
        "Request the return of items of a delivered order; once per order. The customer must have confirmed.",
        confirm=True,
    ),
    Tool(
        semantics.transfer_to_human_agents,
        CREATE,
        models.Summary,
        TEXT,
        "Hand the customer over to a person: on request, or where these tools cannot help.",
    ),
)


def specs(*, approvals: bool = False, store: Callable[[], Store] | None = None) -> tuple[ToolSpec, ...]:
    """All tools. With `approvals`, the writes that the customer must confirm also wait for a person's decision."""
    return tuple(_spec(tool, approvals and tool.confirm, store or shared_store) for tool in TOOLS)


def _spec(tool: Tool, approval: bool, store: Callable[[], Store]) -> ToolSpec:
    owned = {"order_id", "user_id"} & tool.arguments.model_fields.keys()
    common: dict[str, Any] = {
        "name": tool.function.__name__,
        "description": tool.description,
        "arguments": tool.arguments,
        "result": tool.result,
        "effect": tool.effect,
        "approval": approval,
        "concurrency": tool.concurrency,
        "authorize": _owner_only(store) if owned else None,
    }
    if not tool.effect.writes:
        return ToolSpec(**common, handler=_reader(tool, store))
    return ToolSpec(**common, handler=_writer(tool, store), idempotency=CONTRACT, reconcile=_reconciler(tool, store))


def _reader(tool: Tool, store: Callable[[], Store]) -> Callable[[Any, Context], BaseModel]:
    def handler(args: BaseModel, ctx: Context) -> BaseModel:
        with _translated():
            result = store().read(ctx.tenant, lambda world: tool.function(world, **args.model_dump()))
        return tool.result.model_validate(result)

    return handler


def _writer(tool: Tool, store: Callable[[], Store]) -> Callable[[Any, Context], BaseModel]:
    def handler(args: BaseModel, ctx: Context) -> BaseModel:
        if ctx.idempotency_key is None:
            raise NotSent("a write of the shop needs an idempotency key")
        arguments = args.model_dump(mode="json")
        request = Write(
            world=ctx.tenant,
            key=ctx.idempotency_key,
            tool=tool.function.__name__,
            arguments=arguments,
            apply=lambda world: tool.function(world, **arguments),
            touched=semantics.touched,
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


def _owner_only(store: Callable[[], Store]) -> Callable[[Any, Principal], Decision]:
    """A customer reaches only their own orders and account; what does not exist is the tool's own answer."""

    def authorize(args: Any, principal: Principal) -> Decision:
        if ANY in principal.scopes:
            return Allow()
        if hasattr(args, "user_id"):
            owner = args.user_id if _exists(store(), principal.tenant, args.user_id) else None
        else:
            owner = store().field(principal.tenant, "orders", args.order_id, "user_id")
        if owner is None or owner == principal.subject:
            return Allow()
        return Deny("FORBIDDEN_RESOURCE", "the record belongs to another customer")

    return authorize


def _exists(store: Store, world: str, user_id: str) -> bool:
    return store.field(world, "users", user_id, "user_id") is not None


@contextmanager
def _translated() -> Iterator[None]:
    """The shop's and PostgreSQL's errors as the outcomes that executors know."""
    try:
        yield
    except RetailError as refusal:
        raise ToolRejected(refusal.code, refusal.text) from None
    except KeyConflict:
        raise ToolRejected("IDEMPOTENCY_CONFLICT", "the key was used for another request") from None
    except (PoolTimeout, *ROLLED_BACK) as error:  # no connection, or proof that the transaction changed nothing
        raise NotSent(type(error).__name__) from error
    except psycopg.Error as error:
        raise ToolUnavailable(type(error).__name__) from error


# -- the process's own store -----------------------------------------------------------------------------------------

_lock = threading.Lock()
_stores: dict[int, Store] = {}  # by process id: a forked worker must not share its parent's connections


def shared_store() -> Store:
    """This process's store at RETAIL_DATABASE_URL (else TURNQUEUE_DATABASE_URL); opened at the first use."""
    with _lock:
        pid = os.getpid()
        if pid not in _stores:
            url = os.environ.get("RETAIL_DATABASE_URL") or os.environ.get("TURNQUEUE_DATABASE_URL")
            if not url:
                raise NotSent("set RETAIL_DATABASE_URL or TURNQUEUE_DATABASE_URL")
            _stores[pid] = Store(url)
            atexit.register(_stores[pid].close)
        return _stores[pid]
