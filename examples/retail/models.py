"""What the shop's own tools take."""

from typing import Annotated, Literal

from pydantic import Field

from examples.worlds.models import Arguments

OrderId = Annotated[str, Field(description="Order id with its leading '#', such as '#W0000000'.")]
UserId = Annotated[str, Field(description="User id, such as 'sara_doe_496'.")]
PaymentMethodId = Annotated[
    str, Field(description="One of the user's payment methods, such as 'gift_card_0000000'; see the user's details.")
]
ItemIds = Annotated[list[str], Field(description="Item ids in the order; one that occurs twice is listed twice.")]
NewItemIds = Annotated[
    list[str], Field(description="Item ids to have instead: same length and positions, each of the same product.")
]


class Email(Arguments):
    email: str = Field(description="E-mail address of the customer.")


class NameAndZip(Arguments):
    first_name: str = Field(description="First name, such as 'John'.")
    last_name: str = Field(description="Last name, such as 'Doe'.")
    zip: str = Field(description="Zip code, such as '12345'.")


class Item(Arguments):
    item_id: str = Field(description="Item id, such as '6086499569'; not the product id.")


class Product(Arguments):
    product_id: str = Field(description="Product id, such as '6086499569'; not an item id.")


class Order(Arguments):
    order_id: OrderId


class User(Arguments):
    user_id: UserId


class Cancellation(Arguments):
    order_id: OrderId
    reason: Literal["no longer needed", "ordered by mistake"] = Field(description="Why the order is cancelled.")


class ItemSwap(Arguments):
    order_id: OrderId
    item_ids: ItemIds
    new_item_ids: NewItemIds
    payment_method_id: PaymentMethodId


class ItemReturn(Arguments):
    order_id: OrderId
    item_ids: ItemIds
    payment_method_id: PaymentMethodId


class OrderPayment(Arguments):
    order_id: OrderId
    payment_method_id: PaymentMethodId


class _Address(Arguments):
    address1: str = Field(description="First line, such as '123 Main St'.")
    address2: str = Field(description="Second line, such as 'Apt 1', or ''.")
    city: str = Field(description="City.")
    state: str = Field(description="State, such as 'CA'.")
    country: str = Field(description="Country, such as 'USA'.")
    zip: str = Field(description="Zip code.")


class OrderAddress(_Address):
    order_id: OrderId


class UserAddress(_Address):
    user_id: UserId
