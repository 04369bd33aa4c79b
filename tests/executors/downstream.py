"""A downstream on loopback whose answers a test writes byte by byte, and which remembers the effects that it had."""

import json
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Plan:
    """What happens to one request. `effect`: applied before anything else goes wrong.

    `hang`: no answer at all; `wait`: the answer comes once the test sets `released`.
    """

    status: int = 200
    body: bytes = b'{"id":"r-1","text":"done"}'
    headers: tuple[str, ...] = ()
    effect: bool = True
    cut: bool = False
    half: bool = False
    hang: bool = False
    wait: bool = False


@dataclass
class Downstream:
    url: str
    plans: deque[Plan] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    effects: list[Seen] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def will(self, **plan: Any) -> None:
        body = plan.pop("json", None)
        self.plans.append(Plan(**plan) if body is None else Plan(body=json.dumps(body).encode(), **plan))


@contextmanager
def downstream() -> Iterator[Downstream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Downstream(f"http://127.0.0.1:{listener.getsockname()[1]}")
        threads: list[threading.Thread] = []
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=_serve, args=(server, connection), daemon=True))
                threads[-1].start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield server
        finally:
            stop.set()
            server.released.set()
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(10)
            for thread in threads:
                thread.join(10)


def _serve(server: Downstream, connection: socket.socket) -> None:
    """One request per connection."""
    with connection, connection.makefile("rb") as reader:
        request = _read(reader)
        if request is None:
            return
        server.seen.append(request)
        plan = server.plans.popleft() if server.plans else Plan()
        if plan.effect and request.method != "GET":
            server.effects.append(request)
        if plan.hang or plan.wait:
            server.released.wait(60)
        if plan.hang or plan.cut:
            return
        head = (f"HTTP/1.1 {plan.status} -", "Connection: close", f"Content-Length: {len(plan.body)}", *plan.headers)
        data = "\r\n".join((*head, "", "")).encode() + plan.body
        try:
            connection.sendall(data[: len(data) - len(plan.body) // 2] if plan.half else data)
        except OSError:
            return  # the client has heard enough


def _read(reader: Any) -> Seen | None:
    first = reader.readline().decode().split()
    if len(first) < 2:
        return None
    headers = {}
    while (line := reader.readline().decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Seen(first[0], first[1], headers, reader.read(int(headers.get("content-length", 0))))


def refusing_url() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
