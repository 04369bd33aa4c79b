"""The support example as `turnqueue up` and `demo` run it: its scripted model and its shop beside the workers.

Both listen on free ports of loopback that are chosen here, so that a restart finds the same address.
"""

import json
import secrets
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from embedded.servers import Servers
from embedded.supervisor import Process
from examples.support import scenario
from examples.support.script import AMOUNT_CENTS, SCRIPT_ID, script
from orchestrator.domain.errors import Unavailable
from orchestrator.local import Services

MODULE = "examples.support"
LISTENING = "listening on "
PLENTY = AMOUNT_CENTS * 4000  # `up` refunds the same order again and again
NOT_PAID = "The refund was not approved, so no money was moved."


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Support:
    """One play of the example for one tenant, whose order is worth `total_cents`."""

    tenant: str = scenario.TENANT
    total_cents: int = 8990
    model_port: int = field(default_factory=free_port)
    shop_port: int = field(default_factory=free_port)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def services(self, servers: Servers, directory: Path) -> Services:
        """Seed the shop's data and describe the two processes."""
        scenario.seed(servers.database_url, tenant=self.tenant, total_cents=self.total_cents)
        play = directory / "script.json"
        play.write_text(json.dumps(script()))
        model = (sys.executable, "-m", "examples.scripted_model", "--port", str(self.model_port), "--script", str(play))
        shop = scenario.shop_command(servers.database_url, self.token, port=self.shop_port)
        env = {
            "SUPPORT_MODEL_URL": f"{self.model_url}/v1",
            "SUPPORT_SHOP_URL": self.shop_url,
            "SUPPORT_SHOP_TOKEN": self.token,
        }
        processes = (
            Process("model", model, ready=LISTENING, support=True),
            Process("shop", shop.argv, env=shop.env, ready=LISTENING, support=True),
        )
        return Services(processes, env)

    @property
    def model_url(self) -> str:
        return f"http://127.0.0.1:{self.model_port}"

    @property
    def shop_url(self) -> str:
        return f"http://127.0.0.1:{self.shop_port}"

    def effects(self) -> list[dict[str, Any]]:
        """The shop's own record of what happened to this tenant, oldest first. Raises Unavailable SHOP_UNREACHABLE."""
        try:
            rows = scenario.ledger(self.shop_url, self.tenant, self.token)
        except httpx.HTTPError as error:
            raise Unavailable("SHOP_UNREACHABLE", f"the shop's ledger could not be read: {error}") from error
        return [row.model_dump() for row in rows]

    def tell_model_of_denial(self) -> None:
        """A scripted model does not read its results: after a denial it gets other last words.

        Twice, because it is asked again when what the profile requires was not done.
        """
        changed = script()
        changed["turns"][-1:] = [{"text": NOT_PAID}, {"text": NOT_PAID}]
        url = f"{self.model_url}/control/scripts"
        try:
            httpx.post(url, json=[changed], timeout=10, trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            raise Unavailable("MODEL_UNREACHABLE", f"the scripted model does not answer: {error}") from error


def submit_command() -> str:
    """How another shell submits the example's operation."""
    scopes = " ".join(f"--scope {scope}" for scope in sorted(scenario.SCOPES))
    return (
        f"turnqueue submit --profile {SCRIPT_ID} --tenant {scenario.TENANT} --subject {scenario.SUBJECT} {scopes} "
        f'--input "{scenario.INPUT}"'
    )
