"""Real servers, a database of its own, the scripted model and the worker processes of one replay."""

import dataclasses
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from embedded.databases import drop_database
from embedded.servers import EmbeddedServers, Servers
from embedded.stack import Stack, Worker
from examples.scripted_model.process import ScriptedModel
from tests.replay.client import Client
from tests.replay.domains import Domain, Records


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """What a replay works with; all of it is stopped by `launch`."""

    client: Client
    records: Records
    model: ScriptedModel
    stack: Stack
    home: Path
    names: tuple[str, ...]  # of the worker processes in `stack`


@contextmanager
def launch(
    about: Domain,
    *,
    provider: str,
    stream: bool = False,
    workers: int = 1,
    keep: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Start everything and wait until it is ready. `keep` leaves data and logs in `home`; all processes get `env`."""
    with _servers(keep) as servers, ScriptedModel.start() as model:
        model_url = _model_url(model, provider)
        tools = about.environment(
            database_url=servers.database_url, model_url=model_url, provider=provider, stream=stream
        )
        env = {**(env or {}), **tools, "TURNQUEUE_QUEUE_PREFIX": f"replay-{uuid.uuid4().hex[:8]}:"}
        kinds = _workers(workers)
        with (
            closing(about.open(servers.database_url)) as records,
            Stack(servers, modules=about.modules, env=env, workers=kinds) as stack,
        ):
            stack.wait_ready()
            with Client.connect({**os.environ, **_settings(servers, about), **env}, about.profile) as client:
                yield Running(client, records, model, stack, servers.data_dir, tuple(each.name for each in kinds))


@contextmanager
def _servers(keep: bool) -> Iterator[Servers]:
    """Servers in a directory of their own (or those that the environment names), with a fresh database."""
    home = Path(tempfile.mkdtemp(prefix="tq-replay-"))
    try:
        with EmbeddedServers(home) as servers:
            name = f"replay_{uuid.uuid4().hex[:12]}"
            yield dataclasses.replace(servers, database_url=servers.database(name))
            if not keep:
                drop_database(servers.database_url, name)
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def _model_url(model: ScriptedModel, provider: str) -> str:
    """Base URLs of the OpenAI form include the version; the others' paths do."""
    return f"{model.url}/v1" if provider.startswith("openai") else model.url


def _settings(servers: Servers, about: Domain) -> dict[str, str]:
    return {
        "TURNQUEUE_DATABASE_URL": servers.database_url,
        "TURNQUEUE_BROKER_URL": servers.broker_url,
        "TURNQUEUE_MODULES": ",".join(about.modules),
    }


def _workers(number: int) -> list[Worker]:
    """So many processes of each kind."""
    return [
        worker
        for i in range(number)
        for worker in (
            Worker(f"orchestrator{i}", ("orchestrator",), log_level="INFO"),
            Worker(f"executors{i}", ("reads", "writes"), log_level="INFO"),
        )
    ]
