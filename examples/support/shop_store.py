"""The shop's records in PostgreSQL: orders, refund drafts, refunds, kept answers, and the ledger of effects.

Every function takes a connection inside the request's one transaction and commits nothing itself.  A business refusal
is raised as `Refusal` before anything was written.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Literal

import rfc8785
from psycopg import Connection
from psycopg.types.json import Json
from pydantic import BaseModel, ConfigDict, Field

Row = dict[str, Any]
Db = Connection[Row]

REASONS = ("damaged", "not_received", "wrong_item", "other")
REFUNDABLE = ("shipped", "delivered")
MAX_CENTS = 10_000_000

OrderId = Annotated[str, Field(pattern=r"^ORD-[0-9]{6}$")]
DraftId = Annotated[str, Field(pattern=r"^DRF-[0-9A-F]{12}$")]
Cents = Annotated[int, Field(ge=1, le=MAX_CENTS)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NewDraft(_Body):
    order_id: OrderId
    amount_cents: Cents
    reason: Literal["damaged", "not_received", "wrong_item", "other"]


class NewRefund(_Body):
    """`draft_id` says which refund; the other fields repeat its terms, and a mismatch is refused."""

    draft_id: DraftId
    order_id: OrderId
    amount_cents: Cents
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom trusted tool code asks; each sees only their own."""

    tenant: str
    subject: str


@dataclass(frozen=True, slots=True)
class Keyed:
    """One request under an idempotency key; `digest` covers its endpoint, subject and body."""

    caller: Caller
    key: str
    endpoint: str
    digest: str


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    replayed: bool = False


class Refusal(Exception):
    """A definite no. `code` is stable; nothing was applied."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message

    @property
    def answer(self) -> Answer:
        return Answer(self.status, {"code": self.code, "message": self.message})


def prepare(db: Connection[Any]) -> None:
    """Create the schema where it is missing. The lock is there because IF NOT EXISTS races with itself."""
    db.execute("SELECT pg_advisory_xact_lock(hashtext('support_shop'))")
    db.execute(files(__package__).joinpath("shop_schema.sql").read_bytes())


def read_order(db: Db, caller: Caller, order_id: str) -> Answer:
    return Answer(200, _order(db, caller, order_id))


def read_policy() -> Answer:
    """The rules that `create_draft` enforces."""
    policy = {"refundable_statuses": REFUNDABLE, "reasons": REASONS, "partial_refunds": True, "max_cents": MAX_CENTS}
    return Answer(200, policy)


def read_draft(db: Db, caller: Caller, draft_id: str) -> Answer:
    return Answer(200, _public_draft(_draft(db, caller, draft_id)))


def create_draft(db: Db, caller: Caller, key: str, new: NewDraft) -> Answer:
    """Record what could be refunded. Moves no money and reserves none: submitting checks the amount again."""

    keyed = _keyed(caller, key, "POST /refund-drafts", new)

    def act() -> Answer:
        order = _order(db, caller, new.order_id)
        _check_refundable(order, new.amount_cents)
        draft = db.execute(
            "INSERT INTO support_shop.refund_drafts"
            " (tenant, draft_id, customer, order_id, amount_cents, currency, reason)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING *",
            (caller.tenant, _new_id("DRF"), caller.subject, new.order_id, new.amount_cents, order["currency"],
             new.reason),
        ).fetchone()  # fmt: skip
        assert draft is not None
        _append(db, keyed, "refund_draft", new.order_id, new.amount_cents)
        return Answer(201, _public_draft(draft))

    return _once(db, keyed, act)


def submit_refund(db: Db, caller: Caller, key: str, new: NewRefund) -> Answer:
    """Move the money of one draft, once."""

    keyed = _keyed(caller, key, "POST /refunds", new)

    def act() -> Answer:
        draft = _draft(db, caller, new.draft_id, lock=True)
        _check_terms(draft, new)
        _check_refundable(_order(db, caller, draft["order_id"], lock=True), draft["amount_cents"])
        return Answer(201, _move_money(db, keyed, draft))

    return _once(db, keyed, act)


def find_refund(db: Db, caller: Caller, key: str) -> Answer:
    """What became of the refund under `key`: 200 the refund, 404 no trace of it, 409 the refusal that was recorded."""
    kept = db.execute(
        "SELECT status, body FROM support_shop.kept_answers"
        " WHERE tenant = %s AND key = %s AND customer = %s AND endpoint = 'POST /refunds'",
        (caller.tenant, key, caller.subject),
    ).fetchone()
    if kept is None:
        raise Refusal(404, "REFUND_UNAVAILABLE", "no refund under this key")
    return Answer(200 if kept["status"] < 300 else 409, kept["body"])


def read_ledger(db: Db, tenant: str) -> Answer:
    rows = db.execute(
        "SELECT seq, tenant, key, kind, order_id, amount_cents, argument_digest, at"
        " FROM support_shop.ledger WHERE tenant = %s ORDER BY seq",
        (tenant,),
    ).fetchall()
    return Answer(200, [row | {"at": row["at"].isoformat()} for row in rows])


def _once(db: Db, keyed: Keyed, act: Callable[[], Answer]) -> Answer:
    """Run `act` for the first request under the key; a concurrent second waits for that one's commit and replays it."""
    claimed = db.execute(
        "INSERT INTO support_shop.kept_answers (tenant, key, customer, endpoint, digest)"
        " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (tenant, key) DO NOTHING",
        (keyed.caller.tenant, keyed.key, keyed.caller.subject, keyed.endpoint, keyed.digest),
    ).rowcount
    if not claimed:
        return _replay(db, keyed)
    try:
        answer = act()
    except Refusal as refusal:
        answer = refusal.answer
    db.execute(
        "UPDATE support_shop.kept_answers SET status = %s, body = %s WHERE tenant = %s AND key = %s",
        (answer.status, Json(answer.body), keyed.caller.tenant, keyed.key),
    )
    return answer


def _replay(db: Db, keyed: Keyed) -> Answer:
    kept = db.execute(
        "SELECT digest, status, body FROM support_shop.kept_answers WHERE tenant = %s AND key = %s",
        (keyed.caller.tenant, keyed.key),
    ).fetchone()
    assert kept is not None
    if kept["digest"] != keyed.digest:
        raise Refusal(409, "IDEMPOTENCY_CONFLICT", "this idempotency key was used for another request")
    return Answer(kept["status"], kept["body"], replayed=True)


def _move_money(db: Db, keyed: Keyed, draft: Row) -> Row:
    caller = keyed.caller
    of_order = (caller.tenant, draft["order_id"])
    db.execute(
        "UPDATE support_shop.orders SET refunded_cents = refunded_cents + %s, version = version + 1"
        " WHERE tenant = %s AND order_id = %s",
        (draft["amount_cents"], *of_order),
    )
    db.execute(
        "UPDATE support_shop.refund_drafts SET status = 'submitted' WHERE tenant = %s AND draft_id = %s",
        (caller.tenant, draft["draft_id"]),
    )
    refund = db.execute(
        "INSERT INTO support_shop.refunds"
        " (tenant, order_id, refund_id, idempotency_key, customer, draft_id, amount_cents, currency)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
        " RETURNING refund_id, draft_id, order_id, amount_cents, currency, status",
        (
            *of_order,
            _new_id("REF"),
            keyed.key,
            caller.subject,
            draft["draft_id"],
            draft["amount_cents"],
            draft["currency"],
        ),
    ).fetchone()
    assert refund is not None
    _append(db, keyed, "refund", draft["order_id"], draft["amount_cents"])
    return refund


def _order(db: Db, caller: Caller, order_id: str, *, lock: bool = False) -> Row:
    query = (
        "SELECT order_id, status, total_cents, refunded_cents, currency, version FROM support_shop.orders"
        " WHERE tenant = %s AND order_id = %s AND customer = %s"
    )
    order = db.execute(
        query + " FOR NO KEY UPDATE" if lock else query, (caller.tenant, order_id, caller.subject)
    ).fetchone()
    if order is None:  # unknown and somebody else's look the same
        raise Refusal(404, "ORDER_UNAVAILABLE", "no such order for this customer")
    return order


def _draft(db: Db, caller: Caller, draft_id: str, *, lock: bool = False) -> Row:
    query = "SELECT * FROM support_shop.refund_drafts WHERE tenant = %s AND draft_id = %s AND customer = %s"
    draft = db.execute(
        query + " FOR NO KEY UPDATE" if lock else query, (caller.tenant, draft_id, caller.subject)
    ).fetchone()
    if draft is None:
        raise Refusal(404, "DRAFT_UNAVAILABLE", "no such refund draft for this customer")
    return draft


def _public_draft(draft: Row) -> Row:
    names = ("draft_id", "order_id", "amount_cents", "currency", "reason", "status")
    return {name: draft[name] for name in names}


def _check_refundable(order: Row, amount_cents: int) -> None:
    if order["status"] not in REFUNDABLE:
        raise Refusal(409, "ORDER_NOT_REFUNDABLE", f"an order that is {order['status']} cannot be refunded")
    left = order["total_cents"] - order["refunded_cents"]
    if amount_cents > left:
        raise Refusal(422, "AMOUNT_TOO_HIGH", f"at most {left} cents can still be refunded")


def _check_terms(draft: Row, new: NewRefund) -> None:
    if draft["status"] != "open":
        raise Refusal(409, "DRAFT_ALREADY_SUBMITTED", "this draft was submitted before")
    for name in ("order_id", "amount_cents", "currency"):
        if draft[name] != getattr(new, name):
            raise Refusal(422, "TERMS_MISMATCH", f"{name} is not what the draft says")


def _append(db: Db, keyed: Keyed, kind: str, order_id: str, amount_cents: int) -> None:
    db.execute(
        "INSERT INTO support_shop.ledger (tenant, key, kind, order_id, amount_cents, argument_digest)"
        " VALUES (%s, %s, %s, %s, %s, %s)",
        (keyed.caller.tenant, keyed.key, kind, order_id, amount_cents, keyed.digest),
    )


def _keyed(caller: Caller, key: str, endpoint: str, request: BaseModel) -> Keyed:
    facts: dict[str, Any] = {"endpoint": endpoint, "subject": caller.subject, "body": request.model_dump(mode="json")}
    return Keyed(caller, key, endpoint, hashlib.sha256(rfc8785.dumps(facts)).hexdigest())


def _new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(6).upper()}"
