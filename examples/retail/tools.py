"""The shop's sixteen tools: which function, which models, which effect."""

from examples.retail import models, semantics
from examples.worlds.calculator import calculate
from examples.worlds.domain import Domain, Tool
from examples.worlds.models import Expression, Nothing, Record, Summary, Text
from orchestrator.domain.model import Effect

READ, CREATE, OVERWRITE = Effect.READ, Effect.CREATE, Effect.OVERWRITE
RECORD, TEXT = Record, Text

TOOLS = (
    Tool(calculate, READ, Expression, TEXT, "Work out an arithmetic expression. Changes nothing."),
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
        Nothing,
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
        Summary,
        TEXT,
        "Hand the customer over to a person: on request, or where these tools cannot help.",
    ),
)

RETAIL = Domain(name="retail", tools=TOOLS, owned={"order_id": "orders", "user_id": "users"}, touched=semantics.touched)
