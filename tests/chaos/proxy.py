"""A network between two programs that goes wrong, in a process of its own: the seed draws what, and when.

    python -m tests.chaos.proxy --to HOST:PORT|unix:PATH [--listen tcp|unix:PATH] [--seed N] [--postgres]

The first line of its output is `listening on ADDRESS, control on HOST:PORT`. Each line that is sent to the control
port is an order, a JSON object, and is answered with the counts, one too:

    {"faults": {KIND: probability}, "times": N, "then": {KIND: probability}, "delay_s": seconds at most,
     "refuse": bool, "reset_all": true}

all optional; after `times` faults those of `then` go on, none where it is not given. Without an order nothing goes
wrong. Drawn for each connection:

    drop        taken and closed at once

drawn for each chunk of either direction:

    delay       passed on up to `delay_s` seconds later, and all behind it
    reset       not passed on; both sides are reset (RST; on a unix socket: closed)
    half        half of it passed on, then the same
    swallow     neither it nor what follows in this direction is passed on; the other one works
    blackhole   the connection stays open and nothing is passed on any more

and with --postgres, drawn for each statement that may be cut (see `proxy_postgres`):

    commit      COMMIT of a transaction that has changed something: passed on, its answer awaited, the client reset
    uncommitted COMMIT of such a transaction: not passed on, both sides reset, which looks the same to the client
    answer      a statement outside of a transaction that changes something: the same

A commit counts as cut only when the server has said that it is durable. `refuse` closes the listening socket, as if
nothing ran there; `reset_all` resets what is open. Counts: the kinds, `connections`, `open` (now), `unreachable`
(the other end did not take a connection) and `commits` (whose answer went through).
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from tests.chaos.proxy_link import Relay, Weather

PORTS = {"postgresql": 5432, "redis": 6379, "amqp": 5672, "http": 80}


async def serve(options: argparse.Namespace) -> None:
    listen = "127.0.0.1:0" if options.listen == "tcp" else options.listen
    relay = Relay(listen, options.to, Weather(options.seed), postgres=options.postgres)
    over = asyncio.Event()

    async def controlled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                said: dict[str, Any] = await relay.obey(json.loads(line))
            except (ValueError, AttributeError, OSError) as error:
                said = {"error": str(error)}
            writer.write(json.dumps(said).encode() + b"\n")
            await writer.drain()
        writer.close()
        if options.once:
            over.set()

    control = await asyncio.start_server(controlled, "127.0.0.1", 0)
    host, port = control.sockets[0].getsockname()
    print(f"listening on {await relay.listen()}, control on {host}:{port}", flush=True)
    await over.wait()


def target(url: str) -> str:
    """Where a server listens, from the URL of a database, a broker or an HTTP service."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if parts.scheme == "redis+socket":
        return f"unix:{unquote(parts.path)}"
    port = parts.port or PORTS[parts.scheme.partition("+")[0]]
    host = parts.hostname or query.get("host", "")
    return f"unix:{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"


def through(url: str, address: str) -> str:
    """The same URL with the HOST:PORT of a proxy in it."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if parts.scheme == "redis+socket":
        return f"redis://{address}/{query.get('virtual_host', 0)}"
    query.pop("host", None)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return urlunsplit(parts._replace(netloc=user + address, query=urlencode(query)))


class Proxy:
    """The proxy as tests use it; its process ends with the `with` block, or with this process.

    with Proxy(target(url), seed=1, postgres=True) as proxy:
        proxy.control(faults={"commit": 0.1})
        ...  # connect to through(url, proxy.address)
        proxy.counts()["commit"]
    """

    def __init__(self, to: str, seed: int = 0, *, listen: str = "tcp", postgres: bool = False) -> None:
        argv = [
            sys.executable,
            "-m",
            "tests.chaos.proxy",
            "--to",
            to,
            "--seed",
            str(seed),
            "--listen",
            listen,
            "--once",
        ]
        self._process = subprocess.Popen([*argv, *(["--postgres"] * postgres)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        self.address, _, control = line.removeprefix("listening on ").partition(", control on ")
        host, _, port = control.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._control = self._socket.makefile("rw")

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def control(self, **order: Any) -> Counter[str]:
        """Give an order; returns the counts so far. Raises ValueError for one that is not understood."""
        self._control.write(json.dumps(order) + "\n")
        self._control.flush()
        said = json.loads(self._control.readline())
        if "error" in said:
            raise ValueError(said["error"])
        return Counter(said)

    def counts(self) -> Counter[str]:
        return self.control()

    def heal(self, *, reset: bool = True) -> Counter[str]:
        """Nothing more goes wrong. Without `reset` what hangs goes on hanging, as behind a box that forgot it."""
        return self.control(faults={}, refuse=False, reset_all=reset)

    def close(self) -> None:
        with suppress(OSError):
            self._control.close()
            self._socket.close()
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", required=True)
    parser.add_argument("--listen", default="tcp", help="tcp for a free port of 127.0.0.1, or HOST:PORT, or unix:PATH")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--once", action="store_true", help="end with the first control connection")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
