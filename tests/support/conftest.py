"""A real shop process over the module's database, and a tenant of its own for every test."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import psycopg
import pytest

from examples.support import authorization
from examples.support.client import ShopSettings
from examples.support.scenario import LedgerRow, RunningShop, ledger, seed, shop_process
from examples.support.shop import psycopg_url
from executors.context import Context
from executors.http import ScopedClient, shared_client
from policy.base import Principal

ORDER, PLACED, FOREIGN = "ORD-123456", "ORD-123457", "ORD-123458"
CUSTOMER = "customer-7"
SECONDS = 20.0


@pytest.fixture(scope="module")
def shop(database_url: str) -> Iterator[RunningShop]:
    with shop_process(database_url, faults=True) as running:
        yield running


@dataclass(frozen=True)
class World:
    """One tenant of the running shop, freshly seeded."""

    shop: RunningShop
    tenant: str
    http: httpx.Client
    database_url: str

    def get(self, path: str, subject: str = CUSTOMER) -> httpx.Response:
        return self.http.get(self.shop.url + path, headers=self._headers(subject))

    def post(self, path: str, body: object, key: str | None = None, **options: float) -> httpx.Response:
        keyed = {"Idempotency-Key": key} if key else {}
        return self.http.post(self.shop.url + path, json=body, headers=self._headers() | keyed, **options)

    def fault(self, endpoint: str, kind: str, **options: float) -> None:
        self.post("/control/faults", {"endpoint": endpoint, "kind": kind, **options}).raise_for_status()

    def draft(self, amount_cents: int = 2450) -> dict[str, object]:
        """A new draft, as the body of the refund that submits it."""
        body = {"order_id": ORDER, "amount_cents": amount_cents, "reason": "damaged"}
        draft = self.post("/refund-drafts", body, key()).raise_for_status().json()
        return {name: draft[name] for name in ("draft_id", "order_id", "amount_cents", "currency")}

    def refunds(self) -> list[LedgerRow]:
        rows = ledger(self.shop.url, self.tenant, self.shop.token)
        return [row for row in rows if row.kind == "refund"]

    def context(self, key: str | None = None, *, seconds: float = SECONDS, subject: str = CUSTOMER) -> Context:
        """What the executor would hand to a handler."""
        deadline = time.monotonic() + seconds
        http = ScopedClient(self.http, deadline, {"Idempotency-Key": key} if key else {})
        return Context(self.principal(subject), "op-1", "call-1", "attempt-1", deadline, http, None, key)

    def principal(self, subject: str = CUSTOMER) -> Principal:
        return Principal(self.tenant, subject)

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(psycopg_url(self.database_url))

    def _headers(self, subject: str = CUSTOMER) -> dict[str, str]:
        return ShopSettings(self.shop.url, self.shop.token).headers(self.tenant, subject)


@pytest.fixture
def world(shop: RunningShop, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name, value in shop.env.items():
        monkeypatch.setenv(name, value)
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    seed(database_url, tenant=tenant, customer=CUSTOMER)
    with shared_client() as http:
        yield World(shop, tenant, http, database_url)
        http.delete(f"{shop.url}/control/faults", headers={"Authorization": f"Bearer {shop.token}"}).raise_for_status()
    authorization._client().close()
    authorization._client.cache_clear()


def key() -> str:
    return uuid.uuid4().hex
