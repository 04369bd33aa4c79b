"""The tools' handlers, reconciliation and authorizers against the running shop."""

import json
import socket
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from examples.scripted_model.script import Script
from examples.support import register
from examples.support.authorization import own_draft, own_order
from examples.support.client import ShopSettings, UnexpectedAnswer, result
from examples.support.scenario import INPUT, SCOPES
from examples.support.script import SCRIPT_ID, script
from examples.support.tools import (
    DraftRefund,
    GetOrder,
    GetRefundPolicy,
    Order,
    Refund,
    RefundDraft,
    SubmitRefund,
    draft_refund,
    get_order,
    get_refund_policy,
    reconcile_refund,
    submit_refund,
)
from executors.outcomes import Absent, Applied, NotApplied, NotSent, ToolError, ToolRejected, ToolUnavailable
from executors.registry import Registry
from orchestrator.domain.errors import ConfigError
from policy.base import Allow, Deny
from tests.support.conftest import FOREIGN, ORDER, PLACED, World, key


def terms(world: World, amount_cents: int = 2450) -> SubmitRefund:
    return SubmitRefund.model_validate(world.draft(amount_cents))


@pytest.fixture
def closed_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_reads(world: World) -> None:
    order = get_order.handler(GetOrder(order_id=ORDER), world.context())
    assert order == Order(
        order_id=ORDER, status="delivered", total_cents=8990, refunded_cents=0, currency="EUR", version=1
    )
    policy = get_refund_policy.handler(GetRefundPolicy(), world.context())
    assert "damaged" in policy.reasons


def test_draft_then_refund(world: World) -> None:
    args = DraftRefund(order_id=ORDER, amount_cents=2450, reason="damaged")
    first, again = (draft_refund.handler(args, world.context("k-draft")) for _ in range(2))
    assert isinstance(first, RefundDraft)
    assert again == first
    submit = SubmitRefund(draft_id=first.draft_id, order_id=ORDER, amount_cents=2450, currency="EUR")
    refund = submit_refund.handler(submit, world.context("k-refund"))
    assert isinstance(refund, Refund)
    assert submit_refund.handler(submit, world.context("k-refund")) == refund
    assert [row.key for row in world.refunds()] == ["k-refund"]


@pytest.mark.parametrize("order_id", ["ORD-999999", FOREIGN])
def test_unavailable_order_is_rejected(world: World, order_id: str) -> None:
    with pytest.raises(ToolRejected) as caught:
        get_order.handler(GetOrder(order_id=order_id), world.context())
    assert caught.value.code == "ORDER_UNAVAILABLE"


def test_business_refusals_are_rejected(world: World) -> None:
    for order_id, cents, code in ((PLACED, 100, "ORDER_NOT_REFUNDABLE"), (ORDER, 8991, "AMOUNT_TOO_HIGH")):
        with pytest.raises(ToolRejected) as caught:
            draft_refund.handler(
                DraftRefund(order_id=order_id, amount_cents=cents, reason="other"), world.context(key())
            )
        assert caught.value.code == code
        assert caught.value.message


def test_terms_that_differ_from_the_draft_are_rejected(world: World) -> None:
    args = terms(world).model_copy(update={"amount_cents": 1})
    with pytest.raises(ToolRejected, match="TERMS_MISMATCH"):
        submit_refund.handler(args, world.context(key()))
    assert world.refunds() == []


@pytest.mark.parametrize("status", [500, 503, 429])
def test_server_errors_are_unavailable(world: World, status: int) -> None:
    world.fault("GET /orders", "status", status=status)
    world.fault("POST /refunds", "status", status=status)
    with pytest.raises(ToolUnavailable):
        get_order.handler(GetOrder(order_id=ORDER), world.context())
    with pytest.raises(ToolUnavailable):
        submit_refund.handler(terms(world), world.context(key()))


def test_statuses_outside_the_contract_are_a_surprise(world: World) -> None:
    world.fault("POST /refunds", "status", status=403)
    with pytest.raises(UnexpectedAnswer):
        submit_refund.handler(terms(world), world.context(key()))


@pytest.mark.parametrize("kind", ["cut_before", "cut_after_effect"])
def test_a_lost_connection_is_unavailable_and_counts_as_sent(world: World, kind: str) -> None:
    args, ctx = terms(world), world.context("k1")
    world.fault("POST /refunds", kind)
    with pytest.raises(ToolUnavailable):
        submit_refund.handler(args, ctx)
    assert ctx.http.sent_unsafe


def test_a_slow_answer_is_unavailable(world: World) -> None:
    args = terms(world)
    world.fault("POST /refunds", "delay", seconds=5)
    with pytest.raises(ToolUnavailable):
        submit_refund.handler(args, world.context("k1", seconds=0.2))


def test_garbage_is_a_surprise(world: World) -> None:
    args = terms(world)
    world.fault("GET /orders", "garbage")
    world.fault("POST /refunds", "garbage")
    with pytest.raises(UnexpectedAnswer):
        get_order.handler(GetOrder(order_id=ORDER), world.context())
    with pytest.raises(UnexpectedAnswer) as caught:
        submit_refund.handler(args, world.context("k1"))
    assert not isinstance(caught.value, ToolError)
    assert isinstance(reconcile_refund(args, "k1", None, world.context("k1")), Applied)


def test_nobody_listens(world: World, closed_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = terms(world)
    monkeypatch.setenv("SUPPORT_SHOP_URL", closed_url)
    with pytest.raises(NotSent):
        submit_refund.handler(args, world.context("k1"))


def test_a_refusal_without_a_code_proves_nothing() -> None:
    for content in (b"<html>not found</html>", b"{}", b'{"code": 7}'):
        with pytest.raises(UnexpectedAnswer):
            result(httpx.Response(404, content=content), Order)


def test_retry_after_is_passed_on() -> None:
    with pytest.raises(ToolUnavailable) as caught:
        result(httpx.Response(503, headers={"Retry-After": "7"}), Order)
    assert caught.value.retry_after == 7


def test_missing_settings_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUPPORT_SHOP_TOKEN", "SUPPORT_SHOP_URL"):
        monkeypatch.delenv(name)
        with pytest.raises(ConfigError, match=name):
            get_order.handler(GetOrder(order_id=ORDER), world.context())
    assert "secret" not in repr(ShopSettings("http://shop", "secret"))


def test_reconciliation(world: World) -> None:
    args, refused = terms(world), terms(world, 8000)
    assert reconcile_refund(args, "k1", None, world.context("k1")) == Absent()
    refund = submit_refund.handler(args, world.context("k1"))
    assert reconcile_refund(args, "k1", None, world.context("k1")) == Applied(refund, refund.refund_id)
    with pytest.raises(ToolRejected, match="AMOUNT_TOO_HIGH"):
        submit_refund.handler(refused, world.context("k2"))
    found = reconcile_refund(refused, "k2", None, world.context("k2"))
    assert isinstance(found, NotApplied)
    assert found.code == "AMOUNT_TOO_HIGH"


def test_reconciliation_does_not_take_another_refund_for_ours(world: World) -> None:
    args = terms(world)
    submit_refund.handler(args, world.context("k1"))
    with pytest.raises(UnexpectedAnswer):
        reconcile_refund(args.model_copy(update={"amount_cents": 9}), "k1", None, world.context("k1"))


def test_reconciliation_without_an_answer(world: World) -> None:
    world.fault("GET /refunds/by-key", "status", status=500)
    world.fault("GET /refunds/by-key", "status", status=404)  # with a code that does not say "no such refund"
    with pytest.raises(ToolUnavailable):
        reconcile_refund(terms(world), "k1", None, world.context("k1"))
    with pytest.raises(UnexpectedAnswer, match="FAULT"):
        reconcile_refund(terms(world), "k1", None, world.context("k1"))


def test_own_order(world: World) -> None:
    assert own_order(GetOrder(order_id=ORDER), world.principal()) == Allow()
    for order_id in (FOREIGN, "ORD-999999"):
        decision = own_order(GetOrder(order_id=order_id), world.principal())
        assert isinstance(decision, Deny)
        assert decision.code == "ORDER_UNAVAILABLE"


def test_own_draft(world: World) -> None:
    args = terms(world)
    assert own_draft(args, world.principal()) == Allow()
    submit_refund.handler(args, world.context("k1"))
    assert own_draft(args, world.principal()) == Allow()
    denied = {
        "TERMS_MISMATCH": own_draft(args.model_copy(update={"amount_cents": 1}), world.principal()),
        "DRAFT_UNAVAILABLE": own_draft(args, world.principal("customer-8")),
    }
    for code, decision in denied.items():
        assert isinstance(decision, Deny)
        assert decision.code == code


@pytest.mark.parametrize("kind", ["cut_before", "garbage"])
def test_no_authorization_without_an_answer(world: World, kind: str) -> None:
    world.fault("GET /orders", kind)
    decision = own_order(GetOrder(order_id=ORDER), world.principal())
    assert isinstance(decision, Deny)
    assert decision.code == "AUTHORIZATION_UNAVAILABLE"


def test_no_authorization_without_settings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPPORT_SHOP_URL")
    decision = own_order(GetOrder(order_id=ORDER), world.principal())
    assert isinstance(decision, Deny)
    assert (decision.code, "SUPPORT_SHOP_URL" in decision.reason) == ("AUTHORIZATION_UNAVAILABLE", True)


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (GetOrder, {"order_id": "ORD-12345"}),
        (GetOrder, {"order_id": "ORD-123456\n"}),
        (GetOrder, {"order_id": ORDER, "tenant": "acme"}),
        (GetRefundPolicy, {"order_id": ORDER}),
        (DraftRefund, {"order_id": ORDER, "amount_cents": 0, "reason": "other"}),
        (DraftRefund, {"order_id": ORDER, "amount_cents": "5", "reason": "other"}),
        (DraftRefund, {"order_id": ORDER, "amount_cents": 5, "reason": "because"}),
        (SubmitRefund, {"draft_id": "DRF-1", "order_id": ORDER, "amount_cents": 5, "currency": "EUR"}),
    ],
)
def test_arguments_are_refused(model: Any, arguments: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(arguments)


def test_everything_is_registered() -> None:
    registry = Registry()
    register(registry)
    registry.check()
    profile = registry.profile("support")
    assert profile is not None
    assert profile.model.name == SCRIPT_ID
    assert set().union(*(spec.scopes for spec in registry.tools)) == SCOPES


def test_the_script_plays_to_its_end(world: World) -> None:
    """The script's own calls, carried through the real handlers, lead to one refund."""
    registry = Registry()
    register(registry)
    outputs: list[str] = []
    *turns, last = Script.model_validate(script()).turns
    for call in (call for turn in turns for call in turn.calls or ()):
        spec = registry.tool(call.name)
        assert spec is not None
        args = spec.arguments.model_validate_json(call.text(outputs))
        if spec.authorize is not None:
            assert spec.authorize(args, world.principal()) == Allow()
        data = spec.handler(args, world.context(key())).model_dump(mode="json")
        outputs.append(json.dumps({"state": "succeeded", "data": data}))
    (row,) = world.refunds()
    assert (row.order_id, row.amount_cents) == (ORDER, 2450)
    assert ORDER in INPUT
    assert last.text is not None
    assert "24.50 EUR" in last.text
