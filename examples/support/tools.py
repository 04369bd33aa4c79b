"""The tools of the support example: two reads, a draft that moves no money, and the refund that does."""

from datetime import timedelta
from typing import Annotated, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from examples.support.authorization import own_draft, own_order
from examples.support.client import UnexpectedAnswer, ask, refusal_of, result
from executors.context import Context
from executors.outcomes import Absent, Applied, NotApplied, Reconciled, ToolRejected
from executors.registry import IdempotencyContract, tool

MAX_REFUND_CENTS = 10_000_000

R = TypeVar("R", bound=BaseModel)

OrderId = Annotated[str, Field(pattern=r"^ORD-[0-9]{6}$", description="order number, for example ORD-123456")]
DraftId = Annotated[str, Field(pattern=r"^DRF-[0-9A-F]{12}$", description="draft_id that draft_refund returned")]
AmountCents = Annotated[
    int, Field(ge=1, le=MAX_REFUND_CENTS, description="amount in cents of the order's currency: 24.50 is 2450")
]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="ISO 4217 code of the order, for example EUR")]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Result(BaseModel):
    """What the shop must confirm; fields that it adds later are left out, not refused."""

    model_config = ConfigDict(frozen=True, strict=True)


class GetOrder(_Arguments):
    order_id: OrderId


class Order(_Result):
    order_id: str
    status: Literal["placed", "shipped", "delivered", "cancelled"]
    total_cents: int
    refunded_cents: int
    currency: str
    version: int


class GetRefundPolicy(_Arguments):
    pass


class RefundPolicy(_Result):
    refundable_statuses: list[str]
    reasons: list[str]
    partial_refunds: bool
    max_cents: int


class DraftRefund(_Arguments):
    order_id: OrderId
    amount_cents: AmountCents
    reason: Literal["damaged", "not_received", "wrong_item", "other"]


class RefundDraft(_Result):
    draft_id: str
    order_id: str
    amount_cents: int
    currency: str
    reason: str
    status: Literal["open", "submitted"]


class SubmitRefund(_Arguments):
    """Repeats the draft's terms, so that the approver sees all that will happen; the shop refuses a mismatch."""

    draft_id: DraftId
    order_id: OrderId
    amount_cents: AmountCents
    currency: Currency


class Refund(_Result):
    refund_id: str
    draft_id: str
    order_id: str
    amount_cents: int
    currency: str
    status: Literal["completed"]


@tool(effect="read", scopes=frozenset({"orders:read"}), concurrency=8, timeout=5.0, authorize=own_order)
def get_order(args: GetOrder, ctx: Context) -> Order:
    """Return one order of the authenticated customer: its status, total and what was refunded. Changes nothing."""
    return result(ask(ctx.http, ctx.principal, "GET", f"/orders/{args.order_id}"), Order)


@tool(effect="read", scopes=frozenset({"orders:read"}), concurrency=8, timeout=5.0)
def get_refund_policy(args: GetRefundPolicy, ctx: Context) -> RefundPolicy:
    """Return the shop's refund rules: which orders can be refunded, for which reasons. Changes nothing."""
    return result(ask(ctx.http, ctx.principal, "GET", "/refund-policy"), RefundPolicy)


@tool(
    effect="create",
    scopes=frozenset({"refunds:draft"}),
    timeout=10.0,
    authorize=own_order,
    idempotency=IdempotencyContract("Idempotency-Key"),
    reference_field="draft_id",
)
def draft_refund(args: DraftRefund, ctx: Context) -> RefundDraft:
    """Prepare a refund for an order and return its draft. Moves no money; submit_refund does that."""
    return _confirmed(args, result(ask(ctx.http, ctx.principal, "POST", "/refund-drafts", args), RefundDraft))


def reconcile_refund(args: SubmitRefund, idempotency_key: str, reference: str | None, ctx: Context) -> Reconciled:
    """Ask the shop what became of the refund under the key.

    "No trace" is Absent; a recorded refusal is NotApplied, because the shop replays it to any later request with that
    key.  Raises ToolUnavailable or UnexpectedAnswer when the shop said neither.
    """
    response = ask(ctx.http, ctx.principal, "GET", f"/refunds/by-key/{quote(idempotency_key, safe='')}")
    if response.status_code == 409:
        refusal = refusal_of(response)
        return NotApplied(refusal.code, f"the shop recorded a refusal under this key: {refusal.message}")
    try:
        refund = _confirmed(args, result(response, Refund))
    except ToolRejected as error:  # refuses our question, so it says nothing about the refund
        if error.code == "REFUND_UNAVAILABLE":
            return Absent()
        raise UnexpectedAnswer(f"the lookup was refused: {error.code}") from error
    return Applied(refund, refund.refund_id)


@tool(
    effect="create",
    scopes=frozenset({"refunds:submit"}),
    timeout=10.0,
    authorize=own_draft,
    approval=True,
    intent=("draft_id",),
    idempotency=IdempotencyContract("Idempotency-Key"),
    reconcile=reconcile_refund,
    conclusive_after=timedelta(seconds=1),  # the shop answers from the database that it writes
    reference_field="refund_id",
)
def submit_refund(args: SubmitRefund, ctx: Context) -> Refund:
    """Pay out a drafted refund. Moves money and needs a person's approval; repeat the draft's terms exactly."""
    return _confirmed(args, result(ask(ctx.http, ctx.principal, "POST", "/refunds", args), Refund))


def _confirmed(args: BaseModel, answer: R) -> R:
    """A well-formed answer about something else confirms nothing."""
    for name, asked in args:
        if getattr(answer, name) != asked:
            raise UnexpectedAnswer(f"the shop confirmed another {name}")
    return answer


TOOLS = (get_order, get_refund_policy, draft_refund, submit_refund)
