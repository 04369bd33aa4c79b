"""The shop over real HTTP and real PostgreSQL."""

import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from examples.support.scenario import ledger, seed, shop_command, shop_process
from tests.support.conftest import FOREIGN, ORDER, PLACED, World, key


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def test_reads_own_order(world: World) -> None:
    order = world.get(f"/orders/{ORDER}").json()
    assert order == {
        "order_id": ORDER,
        "status": "delivered",
        "total_cents": 8990,
        "refunded_cents": 0,
        "currency": "EUR",
        "version": 1,
    }


def test_unknown_and_foreign_look_the_same(world: World) -> None:
    unknown, foreign, malformed = (world.get(f"/orders/{i}") for i in ("ORD-999999", FOREIGN, "x"))
    assert code(unknown) == (404, "ORDER_UNAVAILABLE")
    assert unknown.content == foreign.content == malformed.content
    body = {"order_id": FOREIGN, "amount_cents": 100, "reason": "other"}
    assert code(world.post("/refund-drafts", body, key())) == (404, "ORDER_UNAVAILABLE")
    draft_id = world.draft()["draft_id"]
    assert world.get(f"/refund-drafts/{draft_id}").status_code == 200
    assert code(world.get(f"/refund-drafts/{draft_id}", subject="customer-8")) == (404, "DRAFT_UNAVAILABLE")


def test_tenants_are_apart(world: World, database_url: str) -> None:
    draft = world.draft()
    seed(database_url, tenant="other-tenant")
    other = World(world.shop, "other-tenant", world.http, database_url)
    assert code(other.get(f"/refund-drafts/{draft['draft_id']}")) == (404, "DRAFT_UNAVAILABLE")
    assert code(other.post("/refunds", draft, key())) == (404, "DRAFT_UNAVAILABLE")
    assert other.refunds() == []


def test_token_and_caller_are_required(world: World) -> None:
    url = f"{world.shop.url}/orders/{ORDER}"
    assert code(world.http.get(url)) == (401, "UNAUTHENTICATED")
    assert code(world.http.get(url, headers={"Authorization": "Bearer wrong"})) == (401, "UNAUTHENTICATED")
    token = {"Authorization": f"Bearer {world.shop.token}"}
    assert code(world.http.get(url, headers=token)) == (400, "CALLER_MISSING")


def test_names_beyond_ascii(world: World, database_url: str) -> None:
    seed(database_url, tenant="Käserei/№1", customer="Zoë 7")
    other = World(world.shop, "Käserei/№1", world.http, database_url)
    assert other.get(f"/orders/{ORDER}", subject="Zoë 7").status_code == 200


def test_refund_moves_money_once(world: World) -> None:
    draft = world.draft()
    assert world.refunds() == []
    refund = world.post("/refunds", draft, "k1")
    assert refund.status_code == 201
    assert refund.json() == {**draft, "refund_id": refund.json()["refund_id"], "status": "completed"}
    order = world.get(f"/orders/{ORDER}").json()
    assert (order["refunded_cents"], order["version"]) == (2450, 2)
    (row,) = world.refunds()
    assert (row.tenant, row.key, row.order_id, row.amount_cents) == (world.tenant, "k1", ORDER, 2450)
    assert world.get("/refunds/by-key/k1").json() == refund.json()


def test_same_key_and_body_replays(world: World) -> None:
    draft = world.draft()
    first, second = (world.post("/refunds", draft, "k1") for _ in range(2))
    assert (second.status_code, second.content) == (201, first.content)
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert len(world.refunds()) == 1


def test_same_key_with_another_body_conflicts(world: World) -> None:
    draft = world.draft()
    world.post("/refunds", draft, "k1").raise_for_status()
    assert code(world.post("/refunds", {**draft, "amount_cents": 1}, "k1")) == (409, "IDEMPOTENCY_CONFLICT")
    drafting = {"order_id": ORDER, "amount_cents": 100, "reason": "other"}
    assert code(world.post("/refund-drafts", drafting, "k1")) == (409, "IDEMPOTENCY_CONFLICT")
    assert len(world.refunds()) == 1


def test_a_draft_is_submitted_once_under_any_key(world: World) -> None:
    draft = world.draft()
    world.post("/refunds", draft, "k1").raise_for_status()
    assert code(world.post("/refunds", draft, "k2")) == (409, "DRAFT_ALREADY_SUBMITTED")
    assert len(world.refunds()) == 1


def test_refusals(world: World) -> None:
    too_high = {"order_id": ORDER, "amount_cents": 8991, "reason": "damaged"}
    assert code(world.post("/refund-drafts", too_high, key())) == (422, "AMOUNT_TOO_HIGH")
    placed = {"order_id": PLACED, "amount_cents": 100, "reason": "damaged"}
    assert code(world.post("/refund-drafts", placed, key())) == (409, "ORDER_NOT_REFUNDABLE")
    mismatch = {**world.draft(), "amount_cents": 2451}
    assert code(world.post("/refunds", mismatch, key())) == (422, "TERMS_MISMATCH")
    assert world.refunds() == []


def test_drafts_reserve_nothing(world: World) -> None:
    first, second = world.draft(8000), world.draft(8000)
    world.post("/refunds", first, "k1").raise_for_status()
    assert code(world.post("/refunds", second, "k2")) == (422, "AMOUNT_TOO_HIGH")
    assert len(world.refunds()) == 1


def test_a_recorded_refusal_stays(world: World) -> None:
    first, second = world.draft(8000), world.draft(8000)
    world.post("/refunds", first, "k1").raise_for_status()
    refused = [world.post("/refunds", second, "k2") for _ in range(2)]
    assert refused[1].headers["idempotent-replayed"] == "true"
    assert code(world.get("/refunds/by-key/k2")) == (409, "AMOUNT_TOO_HIGH")
    assert code(world.get("/refunds/by-key/k3")) == (404, "REFUND_UNAVAILABLE")
    assert code(world.get("/refunds/by-key/k1", subject="customer-8")) == (404, "REFUND_UNAVAILABLE")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"order_id": ORDER, "amount_cents": 100},
        {"order_id": ORDER, "amount_cents": 0, "reason": "other"},
        {"order_id": ORDER, "amount_cents": 1.5, "reason": "other"},
        {"order_id": ORDER, "amount_cents": "100", "reason": "other"},
        {"order_id": "ORD-1", "amount_cents": 100, "reason": "other"},
        {"order_id": ORDER, "amount_cents": 100, "reason": "other", "currency": "USD"},
    ],
)
def test_malformed_requests(world: World, body: object) -> None:
    assert code(world.post("/refund-drafts", body, "k1")) == (422, "INVALID_REQUEST")
    assert world.post("/refund-drafts", {"order_id": ORDER, "amount_cents": 1, "reason": "other"}, "k1").is_success


def test_keys_bodies_and_paths(world: World) -> None:
    draft = world.draft()
    assert code(world.post("/refunds", draft)) == (400, "IDEMPOTENCY_KEY_MISSING")
    assert code(world.post("/refunds", "x" * 70_000, "k1")) == (413, "BODY_REFUSED")
    assert code(world.get("/nothing")) == (404, "NO_SUCH_ENDPOINT")
    assert code(world.get("/orders/%00")) == (404, "NO_SUCH_ENDPOINT")
    assert world.refunds() == []


def test_twenty_threads_on_one_key(world: World) -> None:
    """All twenty are under way before the first can commit: it is held up by a lock on the draft."""
    draft = world.draft()
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'support-shop' AND wait_event_type = 'Lock'"
    )
    with ThreadPoolExecutor(20) as threads, world.connect() as watch, world.connect() as lock:
        watch.autocommit = True
        lock.execute("SELECT 1 FROM support_shop.refund_drafts WHERE draft_id = %s FOR UPDATE", (draft["draft_id"],))
        answers = [threads.submit(world.post, "/refunds", draft, "k1", timeout=60) for _ in range(20)]
        try:
            until(lambda: watch.execute(waiting).fetchone() == (16,))  # the shop's whole pool
        finally:
            lock.rollback()
        responses = [answer.result() for answer in answers]
    assert {r.status_code for r in responses} == {201}
    assert len({r.content for r in responses}) == 1
    assert sum("idempotent-replayed" not in r.headers for r in responses) == 1
    assert len(world.refunds()) == 1
    assert world.get(f"/orders/{ORDER}").json()["refunded_cents"] == 2450


def test_many_keys_never_refund_more_than_was_paid(world: World) -> None:
    drafts = [world.draft(1000) for _ in range(12)]
    with ThreadPoolExecutor(12) as threads:
        statuses = [r.status_code for r in threads.map(lambda d: world.post("/refunds", d, key()), drafts)]
    assert sorted(statuses) == [201] * 8 + [422] * 4
    assert sum(row.amount_cents for row in world.refunds()) == 8000


def test_the_ledger_is_append_only(world: World) -> None:
    world.draft()
    for change in ("UPDATE support_shop.ledger SET amount_cents = 0", "TRUNCATE support_shop.ledger"):
        with world.connect() as db, pytest.raises(psycopg.errors.RaiseException):
            db.execute(change)


def test_cut_after_effect(world: World) -> None:
    draft = world.draft()
    world.fault("POST /refunds", "cut_after_effect")
    with pytest.raises(httpx.RemoteProtocolError):
        world.post("/refunds", draft, "k1")
    assert [row.key for row in world.refunds()] == ["k1"]
    found = world.get("/refunds/by-key/k1")
    assert found.json()["draft_id"] == draft["draft_id"]
    assert world.post("/refunds", draft, "k1").json() == found.json()
    assert len(world.refunds()) == 1


def test_cut_before_and_status_have_no_effect(world: World) -> None:
    draft = world.draft()
    world.fault("POST /refunds", "cut_before")
    world.fault("POST /refunds", "status", status=503, times=2)
    with pytest.raises(httpx.RemoteProtocolError):
        world.post("/refunds", draft, "k1")
    assert [world.post("/refunds", draft, "k1").status_code for _ in range(2)] == [503, 503]
    assert world.refunds() == []
    assert world.get("/refunds/by-key/k1").status_code == 404
    assert world.post("/refunds", draft, "k1").status_code == 201


def test_garbage_has_its_effect(world: World) -> None:
    world.fault("POST /refunds", "garbage")
    response = world.post("/refunds", world.draft(), "k1")
    with pytest.raises(ValueError, match="Expecting value"):
        response.json()
    assert len(world.refunds()) == 1


def test_a_delayed_request_arrives_late(world: World) -> None:
    draft = world.draft()
    world.fault("POST /refunds", "delay", seconds=1)
    with pytest.raises(httpx.ReadTimeout):
        world.post("/refunds", draft, "k1", timeout=0.1)
    until(lambda: world.get("/refunds/by-key/k1").status_code == 200)
    assert len(world.refunds()) == 1


def test_bad_faults_are_refused(world: World) -> None:
    for body in ({"endpoint": "POST /nothing", "kind": "garbage"}, {"endpoint": "POST /refunds", "kind": "delay"}):
        assert code(world.post("/control/faults", body)) == (422, "INVALID_REQUEST")


def test_no_faults_unless_started_with_them(database_url: str) -> None:
    with shop_process(database_url) as shop, httpx.Client() as http:
        headers = {"Authorization": f"Bearer {shop.token}"}
        body = {"endpoint": "POST /refunds", "kind": "garbage"}
        assert http.post(f"{shop.url}/control/faults", json=body, headers=headers).status_code == 404
        assert ledger(shop.url, "nobody", shop.token) == []


def test_sigterm_ends_it_cleanly(database_url: str) -> None:
    with shop_process(database_url) as shop:
        shop.process.send_signal(signal.SIGTERM)
        assert shop.process.wait(timeout=30) == 0


def test_what_is_missing_is_named(database_url: str) -> None:
    command = shop_command(database_url, token="")
    ended = subprocess.run(command.argv, env=command.env, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "SHOP_TOKEN" in ended.stderr
    with pytest.raises(RuntimeError, match="did not start"), shop_process(database_url, port=70_000):
        pass


def test_seeding_again_changes_nothing(world: World) -> None:
    world.post("/refunds", world.draft(), "k1").raise_for_status()
    seed(world.database_url, tenant=world.tenant)
    assert world.get(f"/orders/{ORDER}").json()["refunded_cents"] == 2450
