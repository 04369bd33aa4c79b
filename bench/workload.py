"""The benchmark's workload: three parallel reads, one write, an answer. Tools answer at once; see ../shared/bench."""

import os

from pydantic import BaseModel, ConfigDict

from executors.context import Context
from executors.registry import IdempotencyContract, Registry, tool
from policy.profile import Budgets, Model, Profile


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OrderId(_Arguments):
    order_id: str


class CustomerId(_Arguments):
    customer_id: str


class NewAddress(_Arguments):
    order_id: str
    address: str


class Done(BaseModel):
    ok: bool
    tool: str
    id: str


@tool(effect="read")
def get_order(args: OrderId, ctx: Context) -> Done:
    """Read one order. Changes nothing."""
    return Done(ok=True, tool="get_order", id=args.order_id)


@tool(effect="read")
def get_customer(args: CustomerId, ctx: Context) -> Done:
    """Read one customer. Changes nothing."""
    return Done(ok=True, tool="get_customer", id=args.customer_id)


@tool(effect="read")
def get_shipment(args: OrderId, ctx: Context) -> Done:
    """Read the shipment of an order. Changes nothing."""
    return Done(ok=True, tool="get_shipment", id=args.order_id)


@tool(effect="create", idempotency=IdempotencyContract(carrier="field"))
def change_address(args: NewAddress, ctx: Context) -> Done:
    """Change the address of an order that has not shipped."""
    return Done(ok=True, tool="change_address", id=args.order_id)


TOOLS = (get_order, get_customer, get_shipment, change_address)


def register(registry: Registry) -> None:
    registry.add(*TOOLS)
    model = Model(api=os.environ.get("BENCH_API", "openai-responses"), name="m", base_url="$BENCH_MODEL_URL")
    registry.add_profile(
        Profile(
            name="bench",
            model=model,
            instructions="Change the address.",
            tools=tuple(spec.name for spec in TOOLS),
            budgets=Budgets(turns=6),
            required_tools=("change_address",),
        )
    )
