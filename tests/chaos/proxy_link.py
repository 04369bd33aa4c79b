"""The fault proxy's connections: what passes through, and what is done to it. The kinds are explained in `proxy`."""

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.proxy_postgres import Session

CONNECTION_KINDS = ("drop",)
CHUNK_KINDS = ("delay", "reset", "half", "swallow", "blackhole")
POSTGRES_KINDS = ("commit", "uncommitted", "answer")
KINDS = (*CONNECTION_KINDS, *CHUNK_KINDS, *POSTGRES_KINDS)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: close sends RST


class Weather:
    """What goes wrong at the moment, and what went."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.faults: dict[str, float] = {}
        self.delay_s = 0.2
        self.counts: Counter[str] = Counter()
        self._times: int | None = None  # how many more faults; None: no limit
        self._then: dict[str, float] = {}

    def change(self, faults: Mapping[str, float], times: int | None, then: Mapping[str, float]) -> None:
        """From now on, for so many faults; and what comes after them."""
        if unknown := {*faults, *then} - {*KINDS}:
            raise ValueError(f"unknown faults {sorted(unknown)}")
        self.faults, self._times, self._then = dict(faults), times, dict(then)

    def probability(self, kind: str) -> float:
        return self.faults.get(kind, 0.0)

    def happened(self, kind: str) -> None:
        self.counts[kind] += 1
        if self._times is not None:
            self._times -= 1
            if self._times == 0:
                self.faults, self._times = self._then, None

    def draw(self, chosen: random.Random, kinds: tuple[str, ...]) -> str:
        """One of these kinds; "" for none."""
        drawn = chosen.random()
        for kind in kinds:
            drawn -= self.probability(kind)
            if drawn < 0:
                return kind
        return ""


class Side(asyncio.Protocol):
    """One end of a connection."""

    transport: asyncio.Transport | None = None

    def __init__(self, link: "Link") -> None:
        self._link = link
        self._reasons: set[str] = set()  # why nothing is read from it now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        self._link.arrived(self, data)

    def eof_received(self) -> bool:
        self._link.ended(self)
        return True  # half-closed; the link decides

    def connection_lost(self, _error: Exception | None) -> None:
        self._link.ended(self)

    def pause_writing(self) -> None:
        self._link.other(self).pause("full")

    def resume_writing(self) -> None:
        self._link.other(self).resume("full")

    def pause(self, reason: str) -> None:
        self._reasons.add(reason)
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self, reason: str) -> None:
        self._reasons.discard(reason)
        if self.transport is not None and not self._reasons and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self.transport is not None and data and not self.transport.is_closing():
            self.transport.write(data)

    @property
    def closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        if self.transport is None:
            return
        raw = self.transport.get_extra_info("socket")
        with suppress(OSError):  # closed already
            if raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class Link:
    """One connection: client, server and what is wrong between them."""

    def __init__(self, relay: "Relay") -> None:
        self._relay = relay
        self._weather = relay.weather
        relay.weather.counts["connections"] += 1
        # Of its own, so that the scheduling of the others does not change what is drawn for it.
        self._random = random.Random(f"{relay.weather.seed}:{relay.weather.counts['connections']}")
        self._client, self._server = Side(self), Side(self)
        self._swallowed: set[Side] = set()  # what comes from these goes nowhere
        self._session = Session(self._choose) if relay.postgres else None

    def other(self, side: Side) -> Side:
        return self._server if side is self._client else self._client

    def accept(self) -> Side:
        return self._client

    def made(self, side: Side) -> None:
        if side is self._server:
            self._client.resume("connecting")
            return
        self._relay.links.add(self)
        if kind := self._weather.draw(self._random, CONNECTION_KINDS):
            self._weather.happened(kind)
            self._client.close()
            return
        self._client.pause("connecting")
        self._relay.spawn(self._connect())

    async def _connect(self) -> None:
        try:
            await self._relay.connect(self._server)
        except OSError:
            self._weather.counts["unreachable"] += 1
            self.reset()
            return
        if self._client.closed:
            self._server.close()

    def ended(self, side: Side) -> None:
        """One end has closed: so does the other, unless it is not to hear of it."""
        side.close()
        if side not in self._swallowed:
            self.other(side).close()
        if self.other(side).closed:
            self._relay.links.discard(self)

    def reset(self) -> None:
        self._relay.links.discard(self)
        self._client.reset()
        self._server.reset()

    # --- what passes through ------------------------------------------------------------------------------------------

    def arrived(self, side: Side, data: bytes) -> None:
        if side in self._swallowed:
            return
        if self._session is not None:
            data = self._statements(self._session, side, data)
            if not data:
                return
        kind = self._weather.draw(self._random, CHUNK_KINDS)
        if kind:
            self._weather.happened(kind)
        match kind:
            case "delay":
                side.pause("delay")
                seconds = self._random.uniform(0, self._weather.delay_s)
                asyncio.get_running_loop().call_later(seconds, self._late, side, data)
            case "reset":
                self.reset()
            case "half":
                self._half(side, data)
            case "swallow":
                self._swallowed.add(side)
            case "blackhole":
                self._swallowed |= {self._client, self._server}
            case _:
                self.other(side).write(data)

    def _half(self, side: Side, data: bytes) -> None:
        to = self.other(side)
        to.write(data[: len(data) // 2])
        # RST throws away what the peer has not read yet, which may be all of it: it is given a moment.
        side.pause("half")
        asyncio.get_running_loop().call_later(0.02, self.reset)

    def _late(self, side: Side, data: bytes) -> None:
        if side not in self._swallowed:
            self.other(side).write(data)
        side.resume("delay")

    def _statements(self, session: Session, side: Side, data: bytes) -> bytes:
        if side is self._client:
            forward, back = session.ask(data)
            self._client.write(back)
            if session.uncommitted:
                self._weather.happened("uncommitted")
                self.reset()
                return b""
            return forward
        verdict = session.answer(data)
        self._weather.counts["commits"] += session.commits
        session.commits = 0
        if verdict.cut:
            self._weather.happened(verdict.cut)
            self.reset()
        return verdict.forward

    def _choose(self, kind: str) -> bool:
        return self._random.random() < self._weather.probability(kind)


class Relay:
    """Listens, connects, obeys."""

    def __init__(self, listen: str, to: str, weather: Weather, *, postgres: bool) -> None:
        self.weather = weather
        self.postgres = postgres
        self.links: set[Link] = set()
        self._listen, self._to = listen, to
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def connect(self, side: Side) -> None:
        loop = asyncio.get_running_loop()
        if path := _unix(self._to):
            await loop.create_unix_connection(lambda: side, path)
        else:
            host, _, port = self._to.rpartition(":")
            await loop.create_connection(lambda: side, host, int(port))

    async def listen(self) -> str:
        """Returns the address, which stays the same when it listens again."""
        loop = asyncio.get_running_loop()
        if path := _unix(self._listen):
            Path(path).unlink(missing_ok=True)
            self._server = await loop.create_unix_server(lambda: Link(self).accept(), path, backlog=256)
        else:
            host, _, port = self._listen.rpartition(":")
            server = await loop.create_server(lambda: Link(self).accept(), host, int(port), backlog=256)
            self._server = server
            self._listen = "{}:{}".format(*server.sockets[0].getsockname())
        return self._listen

    async def obey(self, order: Mapping[str, Any]) -> dict[str, int]:
        if "faults" in order:
            self.weather.change(order["faults"], order.get("times"), order.get("then", {}))
        self.weather.delay_s = order.get("delay_s", self.weather.delay_s)
        if order.get("refuse") is True and self._server is not None:
            self._server.close()
            self._server = None
        if order.get("refuse") is False and self._server is None:
            await self.listen()
        if order.get("reset_all"):
            for link in list(self.links):
                link.reset()
        return dict(self.weather.counts) | {"open": len(self.links)}


def _unix(address: str) -> str | None:
    return address.removeprefix("unix:") if address.startswith("unix:") else None
