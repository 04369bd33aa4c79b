"""What the shop's tools do: pure functions over a `World`, no I/O.

Each function takes the world and the call's arguments and returns the tool's result. A call that the shop refuses
raises `Refusal` and has changed nothing: every check runs before the first `put`. Prices and balances are
floating-point dollars; the order of the arithmetic is part of the meaning, because the stored binary noise is compared.
"""

import json
from collections import Counter
from copy import deepcopy
from typing import Any

from examples.worlds.world import Record, Refusal, World

CANCEL_REASONS = ("no longer needed", "ordered by mistake")


# -- reads -----------------------------------------------------------------------------------------------------------


def find_user_id_by_name_zip(world: World, *, first_name: str, last_name: str, zip: str) -> str:
    wanted = (first_name.lower(), last_name.lower(), zip)
    for key, user in world.all("users"):
        name = user["name"]
        if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted:
            return key
    raise Refusal("User not found")


def find_user_id_by_email(world: World, *, email: str) -> str:
    for key, user in world.all("users"):
        if user["email"].lower() == email.lower():
            return key
    raise Refusal("User not found")


def get_order_details(world: World, *, order_id: str) -> Record:
    return _existing(world, "orders", order_id, "Order not found")


def get_user_details(world: World, *, user_id: str) -> Record:
    return _existing(world, "users", user_id, "User not found")


def get_product_details(world: World, *, product_id: str) -> Record:
    return _existing(world, "products", product_id, "Product not found")


def get_item_details(world: World, *, item_id: str) -> Record:
    for _, product in world.all("products"):
        if item_id in product["variants"]:
            return _record(product["variants"][item_id])
    raise Refusal("Item not found")


def list_all_product_types(world: World) -> str:
    """A JSON text: product name to product id, names sorted."""
    return json.dumps({p["name"]: p["product_id"] for _, p in world.all("products")}, sort_keys=True)


# -- writes ----------------------------------------------------------------------------------------------------------


def cancel_pending_order(world: World, *, order_id: str, reason: str) -> Record:
    order = deepcopy(get_order_details(world, order_id=order_id))
    if order["status"] != "pending":
        raise Refusal("Non-pending order cannot be cancelled")
    if reason not in CANCEL_REASONS:
        raise Refusal("Invalid reason")
    user = deepcopy(_user_of(world, order))
    refunds = [_entry("refund", p["amount"], p["payment_method_id"]) for p in order["payment_history"]]
    for refund in refunds:
        _credit(user, refund["payment_method_id"], refund["amount"])
    order["payment_history"].extend(refunds)
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    world.put("users", order["user_id"], user)
    world.put("orders", order_id, order)
    return order


def exchange_delivered_order_items(
    world: World, *, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> Record:
    order = deepcopy(get_order_details(world, order_id=order_id))
    if order["status"] != "delivered":
        raise Refusal("Non-delivered order cannot be exchanged")
    missing = _not_in_order(order, item_ids)
    if missing is not None:
        raise Refusal(f"Number of {missing} not found.", "ITEM_NOT_IN_ORDER")
    if len(item_ids) != len(new_item_ids):
        raise Refusal("The number of items to be exchanged should match.")
    diff = 0.0
    for old, new in zip(item_ids, new_item_ids, strict=True):
        item = _item(order, old)
        diff += _available_variant(world, item, new)["price"] - item["price"]
    diff = round(diff, 2)
    method = _payment_method(_user_of(world, order), payment_method_id)
    if _is_gift_card(method) and method["balance"] < diff:
        raise Refusal("Insufficient gift card balance to pay for the price difference")
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = diff
    world.put("orders", order_id, order)
    return order


def modify_pending_order_items(
    world: World, *, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> Record:
    order = deepcopy(get_order_details(world, order_id=order_id))
    if order["status"] != "pending":
        raise Refusal("Non-pending order cannot be modified")
    missing = _not_in_order(order, item_ids)
    if missing is not None:
        raise Refusal(f"{missing} not found", "ITEM_NOT_IN_ORDER")
    if len(item_ids) != len(new_item_ids):
        raise Refusal("The number of items to be exchanged should match")
    diff, variants = 0.0, []
    for old, new in zip(item_ids, new_item_ids, strict=True):
        if old == new:
            raise Refusal("The new item id should be different from the old item id")
        item = _item(order, old)
        variants.append(_available_variant(world, item, new))
        diff += variants[-1]["price"] - item["price"]
    user = deepcopy(_user_of(world, order))
    method = _payment_method(user, payment_method_id)
    if _is_gift_card(method) and method["balance"] < diff:
        raise Refusal("Insufficient gift card balance to pay for the new item")
    order["payment_history"].append(_entry("payment" if diff > 0 else "refund", abs(diff), payment_method_id))
    _credit(user, payment_method_id, -diff)
    for old, new in zip(item_ids, new_item_ids, strict=True):
        # A quirk of the benchmark: each changed item takes price and options of the last pair's variant.
        _item(order, old).update(item_id=new, price=variants[-1]["price"], options=deepcopy(variants[-1]["options"]))
    order["status"] = "pending (item modified)"
    world.put("users", order["user_id"], user)
    world.put("orders", order_id, order)
    return order


def modify_pending_order_payment(world: World, *, order_id: str, payment_method_id: str) -> Record:
    order = deepcopy(_pending_in_some_form(world, order_id))
    user = deepcopy(_user_of(world, order))
    method = _payment_method(user, payment_method_id)
    history = order["payment_history"]
    if len(history) != 1 or history[0]["transaction_type"] != "payment":
        raise Refusal("There should be exactly one payment for a pending order")
    old_id, amount = history[0]["payment_method_id"], history[0]["amount"]
    if old_id == payment_method_id:
        raise Refusal("The new payment method should be different from the current one")
    if _is_gift_card(method) and method["balance"] < amount:
        raise Refusal("Insufficient gift card balance to pay for the order")
    history.append(_entry("payment", amount, payment_method_id))
    history.append(_entry("refund", amount, old_id))
    _credit(user, payment_method_id, -amount)
    _credit(user, old_id, amount)
    world.put("users", order["user_id"], user)
    world.put("orders", order_id, order)
    return order


def modify_pending_order_address(world: World, *, order_id: str, **address: str) -> Record:
    order = {**_pending_in_some_form(world, order_id), "address": _address(**address)}
    world.put("orders", order_id, order)
    return order


def modify_user_address(world: World, *, user_id: str, **address: str) -> Record:
    user = {**get_user_details(world, user_id=user_id), "address": _address(**address)}
    world.put("users", user_id, user)
    return user


def return_delivered_order_items(world: World, *, order_id: str, item_ids: list[str], payment_method_id: str) -> Record:
    order = deepcopy(get_order_details(world, order_id=order_id))
    if order["status"] != "delivered":
        raise Refusal("Non-delivered order cannot be returned")
    method = _payment_method(_user_of(world, order), payment_method_id)
    if not _is_gift_card(method) and payment_method_id != order["payment_history"][0]["payment_method_id"]:
        raise Refusal("Payment method should be the original payment method")
    if _not_in_order(order, item_ids) is not None:
        raise Refusal("Some item not found")
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    world.put("orders", order_id, order)
    return order


def transfer_to_human_agents(world: World, *, summary: str) -> str:
    del world, summary  # the ledger keeps that it happened
    return "Transfer successful"


# -- what a write may change, and who owns a record ------------------------------------------------------------------


def touched(world: World, arguments: Record) -> list[tuple[str, str]]:
    """The (table, key) pairs that a write with these arguments may change: what its transaction must lock."""
    keys = [("users", arguments["user_id"])] if "user_id" in arguments else []
    if "order_id" in arguments:
        keys.append(("orders", arguments["order_id"]))
        order = world.get("orders", arguments["order_id"])
        if order is not None:
            keys.append(("users", order["user_id"]))  # an order never changes its owner
    return keys


# -- shared steps ----------------------------------------------------------------------------------------------------


def _existing(world: World, table: str, key: str, otherwise: str) -> Record:
    record = world.get(table, key)
    if record is None:
        raise Refusal(otherwise)
    return record


def _record(value: Any) -> Record:
    assert isinstance(value, dict)
    return value


def _pending_in_some_form(world: World, order_id: str) -> Record:
    order = get_order_details(world, order_id=order_id)
    if "pending" not in order["status"]:
        raise Refusal("Non-pending order cannot be modified")
    return order


def _user_of(world: World, order: Record) -> Record:
    return get_user_details(world, user_id=order["user_id"])


def _payment_method(user: Record, payment_method_id: str) -> Record:
    method = user["payment_methods"].get(payment_method_id)
    if method is None:
        raise Refusal("Payment method not found")
    return _record(method)


def _is_gift_card(method: Record) -> bool:
    return bool(method["source"] == "gift_card")


def _credit(user: Record, payment_method_id: str, amount: float) -> None:
    """Only gift cards have a balance here; other methods settle elsewhere."""
    method = _payment_method(user, payment_method_id)
    if _is_gift_card(method):
        method["balance"] = round(method["balance"] + amount, 2)


def _entry(kind: str, amount: float, payment_method_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": payment_method_id}


def _not_in_order(order: Record, item_ids: list[str]) -> str | None:
    """The first listed id that is named more often than the order has it."""
    has = Counter(item["item_id"] for item in order["items"])
    asked = Counter(item_ids)
    return next((i for i in item_ids if asked[i] > has[i]), None)


def _item(order: Record, item_id: str) -> Record:
    return _record(next(item for item in order["items"] if item["item_id"] == item_id))


def _available_variant(world: World, item: Record, new_item_id: str) -> Record:
    product = _existing(world, "products", item["product_id"], "Product not found")
    variant = product["variants"].get(new_item_id)
    if variant is None:
        raise Refusal("Variant not found")
    if not variant["available"]:
        raise Refusal(f"New item {new_item_id} not found or available", "NEW_ITEM_NOT_AVAILABLE")
    return _record(variant)


def _address(*, address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Record:
    return {"address1": address1, "address2": address2, "city": city, "country": country, "state": state, "zip": zip}
