"""One installation with a password on everything and tools that talk too much, and a search of all that it leaves."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from sqlalchemy import create_engine, text

from embedded.servers import Servers
from embedded.stack import Stack, Worker
from embedded.supervisor import CrashLimit, Process
from embedded.wheels import valkey_programs
from examples.scripted_model.process import ScriptedModel
from orchestrator import auditing, commands, people
from orchestrator.app import App
from orchestrator.engine import ORCHESTRATOR_QUEUE, Wake
from orchestrator.enqueue import Enqueuer
from orchestrator.settings import Settings
from store.tables import metadata
from tests.redaction.canaries import Canaries, Personal
from tests.system.scene import wait_until

PERSON = Personal()
# Where personal values may stand: what the model said and was told, and the caller's own words.
PROTECTED = {
    "items": {"body"},
    "calls": {"arguments", "observation", "evidence"},
    "actions": {"arguments", "observation"},
    "operations": {"final_text"},
}


@dataclass(slots=True)
class Left:
    """Everything that was left behind, by where it was found."""

    texts: dict[str, str] = field(default_factory=dict)
    protected: dict[str, str] = field(default_factory=dict)
    to_the_model: str = ""
    seen_by_handler: Any = None
    approval: Any = None
    states: set[str] = field(default_factory=set)
    call_codes: set[str | None] = field(default_factory=set)


@contextmanager
def _valkey(home: Path, password: str) -> Iterator[str]:
    """A broker with a password, which it is told on its standard input."""
    port = _free_port()
    process = subprocess.Popen(
        [str(valkey_programs().executable), "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        cwd=home,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(f'port {port}\nbind 127.0.0.1\nsave ""\nrequirepass {password}\n'.encode())
    process.stdin.close()
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    try:
        wait_until(lambda: _pings(url))
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _pings(url: str) -> bool:
    with suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
        return bool(client.ping())
    return False


class Monitor(threading.Thread):
    """All commands that the broker is sent, as it says them itself."""

    def __init__(self, port: int, password: str) -> None:
        super().__init__(daemon=True)
        self._said = bytearray()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(f"AUTH {password}\r\nMONITOR\r\n".encode())

    def run(self) -> None:
        with suppress(OSError):
            while piece := self._socket.recv(65536):
                self._said += piece

    @property
    def text(self) -> str:
        return self._said.decode(errors="replace")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join()
        self._socket.close()


SCRIPT: dict[str, Any] = {
    "id": "canary",
    "turns": [
        {"calls": [{"name": name, "arguments": {"email": PERSON.email}} for name in
                   ("look_up", "explode", "refuse", "guarded")]},
        {"calls": [{"name": "transfer", "arguments": {
            "iban": PERSON.iban, "cents": 5, "address": {"street": PERSON.street, "city": "Bonn"}}}]},
        {"text": "Done."},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def canaries() -> Canaries:
    return Canaries.plant()


@pytest.fixture(scope="module")
def left(
    canaries: Canaries, servers: Servers, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Left]:
    home = tmp_path_factory.mktemp("canary")
    with ExitStack() as opened, pytest.MonkeyPatch.context() as patch:
        broker_url = opened.enter_context(_valkey(home, canaries.broker_password))
        model = opened.enter_context(ScriptedModel.start())
        failing: dict[str, Any] = {
            "status": 503, "times": 1, "body": {"error": {"message": f"{canaries.key_in_provider_error} refused"}},
            "headers": {"x-request-id": "r1", "x-debug": canaries.key_in_provider_error},
        }  # fmt: skip
        turns = [SCRIPT["turns"][0] | {"fault": failing}, *SCRIPT["turns"][1:]]
        model.add({"id": "canary", "turns": turns})
        env = _settings(canaries, home, f"{model.url}/v1")
        password = canaries.database_password
        here = Servers(database_url.replace("postgres@", f"postgres:{password}@", 1), broker_url, home)
        assert password in here.database_url
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setenv("TURNQUEUE_DATABASE_URL", here.database_url)
        patch.setenv("TURNQUEUE_BROKER_URL", here.broker_url)
        patch.setenv("TURNQUEUE_HOME", str(home / "none"))
        workers = (Worker("orchestrator", ("orchestrator", "submit"), 2), Worker("executors", ("reads", "writes"), 2))
        flower = (sys.executable, "-m", "celery", "-A", "orchestrator.tasks", "flower", "--address=127.0.0.1",
                  f"--port={(port := _free_port())}", "--read_only=True", "--enable_events=False")  # fmt: skip
        monitor = Monitor(int(urlsplit(broker_url).port or 0), canaries.broker_password)
        opened.callback(monitor.close)
        monitor.start()
        stack = opened.enter_context(
            Stack(
                here, env=env, workers=workers, log_dir=home / "logs", extra=(Process("flower", flower),),
                crash_limit=CrashLimit(deaths=100),
            )
        )  # fmt: skip
        stack.wait_ready()
        app = opened.enter_context(App.open(Settings.from_env()))
        yield _play(Left(), canaries, app, stack, model, monitor, home, port)


def _settings(canaries: Canaries, home: Path, model_url: str) -> dict[str, str]:
    sender = {"desk": {"key_env": "CANARY_ENVELOPE_KEY", "tenants": ["acme"], "profiles": ["canary"]}}
    return canaries.env | {
        "CANARY_MODEL_URL": model_url,
        "CANARY_SEEN": str(home / "seen.json"),
        "TURNQUEUE_MODULES": "tests.redaction.tools",
        "TURNQUEUE_SENDERS": json.dumps(sender),
        "TURNQUEUE_SEND_EVENTS": "1",
        "TURNQUEUE_SWEEP_SECONDS": "0.5",
        "TURNQUEUE_COMPLETION_KEY_ENV": "CANARY_COMPLETION_KEY",
        "TURNQUEUE_ANCHOR_FILE": str(home / "anchors"),
        "TURNQUEUE_ANCHOR_KEY_ENV": "CANARY_ANCHOR_KEY",
        "TURNQUEUE_ANCHOR_SECONDS": "1",
    }


def _play(
    left: Left,
    canaries: Canaries,
    app: App,
    stack: Stack,
    model: ScriptedModel,
    monitor: Monitor,
    home: Path,
    port: int,
) -> Left:
    from celery import Celery

    _wait_for_flower(canaries, app, port)
    request: dict[str, Any] = {"profile": "canary", "input": "Please.", "tenant": "acme", "subject": "somebody"}
    operations = [commands.submit(app, commands.submission(**request)).operation_id]
    broker = Celery(broker=app.settings.require_broker())
    broker.conf.broker_transport_options = {"global_keyprefix": app.settings.queue_prefix}
    Enqueuer(broker, sender="desk", key=canaries.envelope_key).submit(**request)
    broker.close()
    wait_until(lambda: len(commands.list_operations(app)) == 2)
    operations = [row["operation_id"] for row in commands.list_operations(app)]

    def waiting(operation: str) -> bool:
        return bool(commands.inspect(app, operation).open_approvals)

    wait_until(lambda: all(map(waiting, operations)))
    shows = [_turnqueue("show", operation, "--json") for operation in operations]
    stack.kill("executors")  # the action is run by a process that never saw the proposal
    [asked] = commands.inspect(app, operations[0], personal=True).open_approvals
    left.approval = asked.arguments
    for operation in operations:
        [approval] = commands.inspect(app, operation).open_approvals
        people.approve(app, approval.approval_id, by="boss")
    wait_until(lambda: all(commands.inspect(app, each).ended_at is not None for each in operations))
    left.states = {commands.inspect(app, each).state for each in operations}
    left.call_codes = {call.code for call in commands.inspect(app, operations[0]).calls}
    left.seen_by_handler = json.loads((home / "seen.json").read_text())
    wait_until((home / "anchors").exists)
    _collect(left, canaries, app, home, port, [*shows, *(_turnqueue("show", each, "--json") for each in operations)])
    left.to_the_model = json.dumps(model.requests("canary"))
    left.texts["broker traffic"] = monitor.text
    left.texts["settings"] = repr(app.settings)
    return left


def _wait_for_flower(canaries: Canaries, app: App, port: int) -> None:
    """It starts slower than the workers, and hears only of what happens from then on."""

    def listens() -> bool:
        app.publish([Wake(ORCHESTRATOR_QUEUE, "op_nobody")])
        with suppress(httpx.HTTPError):
            tasks = httpx.get(
                f"http://127.0.0.1:{port}/api/tasks", auth=("ops", canaries.flower_password), trust_env=False
            )
            return len(tasks.raise_for_status().json()) > 0
        return False

    wait_until(listens)


def _collect(left: Left, canaries: Canaries, app: App, home: Path, port: int, shows: list[str]) -> None:
    texts = left.texts
    auditing.verify(app.database, export=home / "export.jsonl")
    for file in [*(home / "logs").iterdir(), home / "export.jsonl", home / "anchors"]:
        texts[file.name] = file.read_text(errors="replace")
    texts["show"] = "\n".join(shows)
    texts["list"] = _turnqueue("list", "--json")
    texts["compose"] = (Path(__file__).parents[2] / "docker-compose.yml").read_text()
    texts["command lines"] = _command_lines()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", auth=("ops", canaries.flower_password), trust_env=False
    ) as flower:
        wait_until(lambda: "tool.look_up" in flower.get("/api/tasks").text)
        tasks = flower.get("/api/tasks").raise_for_status().json()
        for page in ("/api/tasks", "/tasks", "/workers", "/metrics", "/broker", *(f"/task/{each}" for each in tasks)):
            texts[f"flower {page}"] = flower.get(page).text
    engine = create_engine(app.settings.require_database())
    with engine.connect() as connection:
        for table in metadata.sorted_tables:
            kept = PROTECTED.get(table.name, set())
            rows = [dict(row) for row in connection.execute(text(f"SELECT * FROM {table.name}")).mappings()]
            texts[f"table {table.name}"] = repr([{k: v for k, v in row.items() if k not in kept} for row in rows])
            left.protected[table.name] = repr([{k: v for k, v in row.items() if k in kept} for row in rows])
    engine.dispose()


def _turnqueue(*arguments: str) -> str:
    program = Path(sys.executable).with_name("turnqueue")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _command_lines() -> str:
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    assert any("orchestrator.tasks" in line for line in lines)
    return "\n".join(lines)


def hits(wanted: Mapping[str, str], texts: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, where) for where, content in texts.items() for name, value in wanted.items() if value in content]


def test_the_scene_was_what_it_should_be(left: Left, canaries: Canaries) -> None:
    """The planted values were really used: nothing below passes because nothing happened."""
    assert left.states == {"COMPLETED"}
    assert {"TOOL_ERROR", "DENIED", "AUTHORIZATION_UNAVAILABLE"} <= left.call_codes
    assert len(canaries.all) + len(PERSON.all) >= 20
    assert "tool.look_up" in left.texts["broker traffic"]
    assert "tool.look_up" in left.texts["flower /api/tasks"]
    assert "call.settled" in left.texts["export.jsonl"]
    assert "ready" in left.texts["orchestrator.log"]
    assert PERSON.iban in left.protected["actions"]


def test_personal_arguments_reach_the_approver_and_the_handler_of_another_process(left: Left) -> None:
    whole = {"iban": PERSON.iban, "cents": 5, "address": {"street": PERSON.street, "city": "Bonn"}}
    assert left.approval == whole
    assert left.seen_by_handler == {"arguments": whole, "token": True}


def test_no_credential_is_found_anywhere(left: Left, canaries: Canaries) -> None:
    assert hits(canaries.all, left.texts | {f"protected {name}": each for name, each in left.protected.items()}) == []


def test_no_credential_reaches_the_model(left: Left, canaries: Canaries) -> None:
    assert hits(canaries.all, {"model": left.to_the_model}) == []


def test_no_personal_value_outside_the_protected_columns(left: Left) -> None:
    assert hits(PERSON.all, left.texts) == []


def test_the_model_sees_personal_fields_only_by_the_allowlist(left: Left) -> None:
    assert hits(PERSON.never_to_the_model, {"model": left.to_the_model}) == []
    assert PERSON.shown in left.to_the_model
