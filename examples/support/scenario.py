"""Helpers to play the scenario: the shop as a process, its seed data, and its ledger over HTTP."""

import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import psycopg
from pydantic import BaseModel, ConfigDict, TypeAdapter

from examples.support.client import ShopSettings
from examples.support.script import ORDER_ID
from examples.support.shop import psycopg_url
from examples.support.shop_store import prepare

TENANT = "acme"
SUBJECT = "customer-7"
SCOPES = frozenset({"orders:read", "refunds:draft", "refunds:submit"})
INPUT = f"My order {ORDER_ID} arrived with a broken teapot. It cost EUR 24.50; please refund it."
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Command:
    """How to start the shop; secrets travel in the environment, where `ps` does not show them."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunningShop:
    """A shop that listens. `env` is what workers need to reach it."""

    url: str
    token: str = field(repr=False)
    process: subprocess.Popen[str] = field(repr=False)

    @property
    def env(self) -> dict[str, str]:
        return {"SUPPORT_SHOP_URL": self.url, "SUPPORT_SHOP_TOKEN": self.token}


class LedgerRow(BaseModel):
    """One effect that happened, as the shop recorded it; `at` is ISO 8601."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seq: int
    tenant: str
    key: str
    kind: str
    order_id: str
    amount_cents: int
    argument_digest: str
    at: str


def shop_command(database_url: str, token: str, *, port: int = 0, faults: bool = False) -> Command:
    argv = (sys.executable, "-m", "examples.support.shop", "--port", str(port))
    env = {**os.environ, "SHOP_DATABASE_URL": database_url, "SHOP_TOKEN": token}
    return Command((*argv, "--faults") if faults else argv, env)


@contextmanager
def shop_process(
    database_url: str, *, token: str | None = None, port: int = 0, faults: bool = False
) -> Iterator[RunningShop]:
    """Start the shop, wait until it listens, and stop it at the end. Raises RuntimeError when it does not start.

    Its errors go to our stderr.
    """
    token = token or secrets.token_urlsafe(24)
    command = shop_command(database_url, token, port=port, faults=faults)
    with subprocess.Popen(command.argv, env=command.env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield RunningShop(_address(process), token, process)
        finally:
            _stop(process)


def seed(
    database_url: str,
    *,
    tenant: str = TENANT,
    customer: str = SUBJECT,
    order_id: str = ORDER_ID,
    total_cents: int = 8990,
) -> None:
    """Create the schema and the demo orders where they are missing; what is there stays as it is.

    The refundable one is `order_id` (delivered); beside it are an order that was only placed and one of
    another customer.
    """
    number = int(order_id.removeprefix("ORD-"))
    orders = (
        (tenant, order_id, customer, "delivered", total_cents, "EUR"),
        (tenant, f"ORD-{(number + 1) % 1_000_000:06}", customer, "placed", 4200, "EUR"),
        (tenant, f"ORD-{(number + 2) % 1_000_000:06}", f"not-{customer}", "delivered", 15000, "EUR"),
    )
    with psycopg.connect(psycopg_url(database_url)) as db:
        prepare(db)
        db.cursor().executemany(
            "INSERT INTO support_shop.orders (tenant, order_id, customer, status, total_cents, currency)"
            " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            orders,
        )


def ledger(url: str, tenant: str, token: str | None = None) -> list[LedgerRow]:
    """The effects of one tenant, oldest first. Without `token` that of SUPPORT_SHOP_TOKEN is used.

    Raises httpx.HTTPError when the shop does not answer with them.
    """
    settings = ShopSettings(url, token) if token else ShopSettings.from_env()
    headers = settings.headers(tenant, "auditor")
    response = httpx.get(f"{url}/ledger", headers=headers, timeout=10, trust_env=False).raise_for_status()
    return TypeAdapter(list[LedgerRow]).validate_json(response.content)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else ""
    if not line.startswith("listening on "):
        raise RuntimeError(f"the shop did not start (exit code {process.poll()}, first line {line!r})")
    return line.removeprefix("listening on ").strip()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
