"""A real RabbitMQ from Debian's packages, alone on loopback, in a folder of its own; nothing of it is left at the end.

with RabbitMQ(folder) as broker:
    broker.url(1)    # amqp://…/tq1, one of VHOSTS empty virtual hosts
"""

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import amqp
import pytest

from embedded.supervisor import start_guarded
from orchestrator.hints import CORE_QUEUES

VHOSTS = 16
START_SECONDS = 90.0  # on a loaded machine; 3 otherwise
USER = PASSWORD = "turnqueue"
_WRAPPER = "rabbitmq-script-wrapper"  # Debian's, which insists on the system's own user and folders


def program(name: str = "rabbitmq-server") -> Path | None:
    """Behind Debian's wrapper; None when it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        return None
    real = Path(found).resolve()
    return real.with_name(name) if real.name == _WRAPPER else real


def need_rabbitmq() -> Path:
    """Skips the test where it is not installed; .ci/run installs it."""
    found = program()
    if found is None:
        pytest.skip("needs RabbitMQ: apt-get install rabbitmq-server")
    return found


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


class RabbitMQ:
    """`settings`: the application environment of the server (advanced.config), as Erlang terms by name."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._server = need_rabbitmq()
        self._folder = folder
        self._settings = dict(settings or {})
        self.port, self._dist, self._epmd_port = free_ports(3)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._running: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_files()
        # In the foreground and as our own child: started by the server it would outlive it.
        epmd = ("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
        self._epmd = start_guarded(epmd, self._env, self._folder / "epmd.log")
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def url(self, vhost: int = 0) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/tq{vhost}"

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    def start(self) -> None:
        """Also after `kill`, with what the last one had on disk."""
        log = self._folder / "server.log"
        self._running = start_guarded((str(self._server),), self._env, log)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            tail = log.read_text(errors="replace")[-2000:]
            assert self._running.poll() is None, f"RabbitMQ ended while it started: {tail}"
            assert time.monotonic() < until, f"RabbitMQ did not start in {START_SECONDS:g} s: {tail}"
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to it and the helpers that it has started."""
        _end(self._running)
        self._running = None

    def stop(self) -> None:
        self.kill()
        _end(self._epmd)
        self._epmd = None

    def control(self, *arguments: str) -> str:
        """What `rabbitmqctl` says; it takes seconds."""
        tool = program("rabbitmqctl")
        assert tool is not None
        done = subprocess.run(
            [tool, *arguments], env={**os.environ, **self._env}, capture_output=True, text=True, check=True
        )
        return done.stdout

    def _answers(self) -> bool:
        try:
            connection = amqp.Connection(
                f"127.0.0.1:{self.port}", USER, PASSWORD, virtual_host="tq0", connect_timeout=2
            )
            connection.connect()
            connection.close()
        except (OSError, amqp.AMQPError):
            return False
        return True

    @property
    def _env(self) -> dict[str, str]:
        folder = str(self._folder)
        return {
            "HOME": folder,  # of the cookie
            "RABBITMQ_NODENAME": f"tq{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/no-such-file",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/generated",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +A 8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The server itself is our child then, and no shell that waits for it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
        }

    def _write_files(self) -> None:
        (self._folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"load_definitions = {self._folder}/definitions.json\n"
            "disk_free_limit.absolute = 1MB\n"  # a test's disk may be small
            "vm_memory_high_watermark.relative = 0.6\n"
            "log.console = true\n"
            "log.file = false\n"
        )
        terms = ", ".join(f"{{{name}, {value}}}" for name, value in self._settings.items())
        (self._folder / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")
        (self._folder / "enabled_plugins").write_text("[].\n")
        (self._folder / "definitions.json").write_text(json.dumps(_definitions()))


@contextmanager
def channel(url: str) -> Iterator[amqp.Channel]:
    """With publisher confirms."""
    parts = urlsplit(url)
    connection = amqp.Connection(
        f"{parts.hostname}:{parts.port}", unquote(parts.username or ""), unquote(parts.password or ""),
        virtual_host=unquote(parts.path[1:]), confirm_publish=True, connect_timeout=10, read_timeout=30,
    )  # fmt: skip
    connection.connect()
    try:
        yield connection.channel()
    finally:
        connection.collect()


def clean(url: str) -> None:
    """No queue is left in this virtual host, nor anybody who consumes from one."""
    with channel(url) as opened:
        for name in CORE_QUEUES:
            opened.queue_delete(name)


def _definitions() -> dict[str, object]:
    salt = b"salt"
    sealed = base64.b64encode(salt + hashlib.sha256(salt + PASSWORD.encode()).digest()).decode()
    names = [f"tq{number}" for number in range(VHOSTS)]
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [
            {"name": USER, "password_hash": sealed, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}
        ],
        "vhosts": [{"name": name} for name in names],
        "permissions": [{"user": USER, "vhost": name, **everything} for name in names],
    }


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
