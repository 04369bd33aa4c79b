"""The composed services as local processes, against this session's servers, the example shop and the scripted model."""

import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.scripted_model.process import ScriptedModel
from examples.support.scenario import INPUT, SCOPES, SUBJECT, TENANT, RunningShop, seed, shop_process
from examples.support.script import script
from orchestrator import commands
from orchestrator.app import App
from orchestrator.settings import Settings
from orchestrator.views import OperationView
from tests.deploy.compose import Local, in_order, load
from tests.system.scene import wait_until

PASSWORD = "flower-secret"


@dataclass(slots=True)
class Deployment:
    local: Local
    shop: RunningShop
    app: App

    def start(self, *names: str) -> None:
        """In dependency order, each when its dependencies are as they must be; returns when all are healthy."""
        started = [each for each in in_order(self.local.services) if each in names]
        for name in started:
            for needed, how in self.local.services[name]["depends_on"].items():
                if how["condition"] == "service_completed_successfully":
                    assert self.local.processes[needed].wait(60) == 0, self.local.log(needed).read_text()
                else:
                    self.wait_healthy(needed)
            self.local.start(name)
        for name in started:
            if self.local.services[name]["restart"] != "no":
                self.wait_healthy(name)

    def wait_healthy(self, name: str) -> None:
        wait_until(lambda: self.local.healthy(name) or self._ended(name))
        assert not self._ended(name), self.local.log(name).read_text()

    def _ended(self, name: str) -> bool:
        return self.local.processes[name].poll() is not None

    def run_refund(self) -> OperationView:
        """The support scenario, with a person who approves; its end."""
        request = commands.Submission(profile="support", input=INPUT, tenant=TENANT, subject=SUBJECT, scopes=SCOPES)
        operation_id = commands.submit(self.app, request).operation_id

        def ended() -> bool:
            for approval in commands.inspect(self.app, operation_id).open_approvals:
                commands.approve(self.app, approval.approval_id, by="tester")
            return commands.inspect(self.app, operation_id).ended_at is not None

        wait_until(ended)
        return commands.inspect(self.app, operation_id)


@pytest.fixture
def variables() -> dict[str, str]:
    """More variables of `docker compose`'s environment."""
    return {}


@pytest.fixture
def deployment(database_url: str, broker_url: str, variables: dict[str, str]) -> Iterator[Deployment]:
    home = Path(tempfile.mkdtemp(prefix="tq-deploy-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, home, ignore_errors=True)
        model = opened.enter_context(ScriptedModel.start())
        model.add(script())
        seed(database_url)
        shop = opened.enter_context(shop_process(database_url))
        services = load(
            {
                "POSTGRES_PASSWORD": "unused",
                "REDIS_PASSWORD": "unused",
                "TURNQUEUE_DATABASE_URL": database_url,
                "TURNQUEUE_BROKER_URL": broker_url,
                "TURNQUEUE_MODULES": "examples.support",
                "FLOWER_BASIC_AUTH": f"ops:{PASSWORD}",
                **variables,
            }
        )["services"]
        ours = {name: _without_servers(service) for name, service in services.items() if "command" in service}
        for server in ("redis", "rabbitmq"):
            ours.pop(server)
        files = {"tools.env": shop.env, "models.env": {"SUPPORT_MODEL_URL": f"{model.url}/v1"}, "senders.env": {}}
        local = Local(ours, home, {name: _replaced(name, service, files, home) for name, service in ours.items()})
        opened.callback(local.stop)
        settings = Settings(database_url=database_url, broker_url=broker_url, modules=("examples.support",))
        yield Deployment(local, shop, opened.enter_context(App.open(settings)))


def _without_servers(service: Mapping[str, Any]) -> dict[str, Any]:
    needs = {name: how for name, how in service.get("depends_on", {}).items() if name not in ("postgres", "redis")}
    return {**service, "depends_on": needs}


def _replaced(
    name: str, service: Mapping[str, Any], files: Mapping[str, Mapping[str, str]], home: Path
) -> dict[str, str]:
    """What differs on one machine without containers, and what the files named by `env_file` hold."""
    found: dict[str, str] = {"HOME": str(home)}
    for file in service.get("env_file", []):
        found |= files[file["path"]]
    if "TURNQUEUE_HEARTBEAT_FILE" in service["environment"]:
        found["TURNQUEUE_HEARTBEAT_FILE"] = str(home / f"{name}.heartbeat")
    if "FLOWER_PORT" in service["environment"]:
        found |= {"FLOWER_PORT": str(_free_port()), "FLOWER_ADDRESS": "127.0.0.1"}
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
