"""The support example, step by step in this process: its own shop, its ledger as the independent witness of effects."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from examples import support
from examples.scripted_model.process import ScriptedModel
from examples.support import authorization
from examples.support.scenario import SCOPES, SUBJECT, LedgerRow, RunningShop, ledger, seed, shop_process
from examples.support.script import ORDER_ID, script
from executors.registry import Registry
from orchestrator import commands
from orchestrator.app import App
from orchestrator.settings import Settings
from tests.executors.downstream import Downstream
from tests.orchestrator.desk import Desk


@pytest.fixture(scope="module")
def shop(database_url: str) -> Iterator[RunningShop]:
    with shop_process(database_url, faults=True) as running:
        yield running


class Support(Desk):
    shop: RunningShop
    tenant: str

    def begin(self, **changed: Any) -> str:
        request = commands.submission(
            profile="support", input=f"[script:{self.tenant}] Please refund {ORDER_ID}.", tenant=self.tenant,
            subject=SUBJECT, scopes=changed.pop("scopes", SCOPES), **changed,
        )  # fmt: skip
        return commands.submit(self.app, request).operation_id

    def to_approval(self) -> str:
        operation = self.begin()
        assert self.run(operation).state == "WAITING_APPROVAL"
        commands.approve(self.app, self.approval(operation), by="boss")
        return operation

    def fault(self, endpoint: str, kind: str, **options: Any) -> None:
        body = {"endpoint": endpoint, "kind": kind, **options}
        headers = {"Authorization": f"Bearer {self.shop.token}"}
        self.app.tool_http.post(f"{self.shop.url}/control/faults", json=body, headers=headers).raise_for_status()

    def refunds(self) -> list[LedgerRow]:
        return [row for row in ledger(self.shop.url, self.tenant, self.shop.token) if row.kind == "refund"]


@pytest.fixture
def desk(
    settings: Settings, migrated: None, model: ScriptedModel, shop: RunningShop, lab_server: Downstream,
    database_url: str, monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Support]:  # fmt: skip
    for name, value in {**shop.env, "SUPPORT_MODEL_URL": f"{model.url}/v1"}.items():
        monkeypatch.setenv(name, value)
    registry = Registry()
    support.register(registry)
    registry.check()
    app = App(settings, registry)
    app.sync_slots()
    opened = Support(app, model, lab_server)
    opened.shop, opened.tenant = shop, f"t{uuid.uuid4().hex[:8]}"
    seed(database_url, tenant=opened.tenant)
    model.add(script() | {"id": opened.tenant})
    for table in ("operations", "calls", "actions"):
        opened.sql(f"UPDATE {table} SET wake_at = NULL WHERE wake_at IS NOT NULL")
    yield opened
    app.tool_http.delete(f"{shop.url}/control/faults", headers={"Authorization": f"Bearer {shop.token}"})
    app.close()
    authorization._client().close()
    authorization._client.cache_clear()


def test_the_whole_task(desk: Support) -> None:
    operation = desk.to_approval()
    assert desk.refunds() == [], "nothing is paid before the approval"
    view = desk.run(operation)
    assert (view.state, view.turns) == ("COMPLETED", 4)
    assert [a.tool for a in view.actions if a.state == "SUCCEEDED"] == ["draft_refund", "submit_refund"]
    [refund] = desk.refunds()
    submitted = view.actions[1]
    assert (refund.key, refund.amount_cents) == (submitted.idempotency_key, 2450)
    assert submitted.external_ref
    assert (view.pending or {})["unresolved"] == []


@pytest.mark.parametrize("kind", ["cut_after_effect", "garbage"])
def test_an_effect_without_an_answer_is_found_and_happens_once(desk: Support, kind: str) -> None:
    operation = desk.to_approval()
    desk.fault("POST /refunds", kind)
    desk.step("writes")
    assert desk.actions(operation)[1].state == "UNKNOWN"
    assert desk.view(operation).state == "RECONCILING"
    assert desk.run(operation).state == "COMPLETED"
    action = desk.actions(operation)[1]
    assert (action.state, action.attempts, len(desk.refunds())) == ("SUCCEEDED", 1, 1)


def test_a_request_that_never_arrived_is_sent_again_under_its_key(desk: Support) -> None:
    operation = desk.to_approval()
    desk.fault("POST /refunds", "cut_before")
    assert desk.run(operation).state == "COMPLETED"
    action = desk.actions(operation)[1]
    assert (action.state, action.attempts, len(desk.refunds())) == ("SUCCEEDED", 2, 1)


def test_a_5xx_proves_nothing_either_way(desk: Support) -> None:
    operation = desk.to_approval()
    desk.fault("POST /refunds", "status", status=503)
    desk.fault("GET /refunds/by-key", "status", status=500, times=2)
    assert desk.run(operation).state == "COMPLETED"
    assert len(desk.refunds()) == 1
    assert [row["body"]["outcome"] for row in desk.audit(operation, "action.checked")] == ["lost", "lost", "nowhere"]


def test_a_read_that_stays_unavailable_stops_the_refund(desk: Support) -> None:
    """Without an answer about whose order it is, nothing is allowed; the model gets an error and goes on."""
    desk.fault("GET /orders", "status", status=503, times=50)
    view = desk.run(desk.begin())
    assert view.calls[0].code == "AUTHORIZATION_UNAVAILABLE"
    assert view.state in ("INCOMPLETE", "FAILED")
    assert desk.refunds() == []


def test_without_the_scope_the_tool_is_not_even_offered(desk: Support) -> None:
    operation = desk.begin(scopes=frozenset({"orders:read"}))
    view = desk.run(operation)
    request = desk.model.requests(desk.tenant)[0]["body"]
    assert {tool["name"] for tool in request["tools"]} == {"get_order", "get_refund_policy"}
    assert [c.code for c in view.calls[2:3]] == ["TOOL_NOT_OFFERED"]
    assert desk.refunds() == []


def test_a_shop_that_is_away_is_proof_that_nothing_was_sent(desk: Support, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = desk.to_approval()
    # Authorization asks the shop too, so the last look before the start must still reach it.
    desk.fault("GET /refund-drafts", "status", status=503)
    desk.step("writes")
    action = desk.actions(operation)[1]
    assert (action.state, action.code, desk.refunds()) == ("REJECTED", "AUTHORIZATION_UNAVAILABLE", [])
