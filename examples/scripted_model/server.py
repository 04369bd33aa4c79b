"""The HTTP side: HTTP/1.1 with keep-alive on loopback, small enough not to be what a benchmark measures."""

import asyncio
import json
import signal
from contextlib import suppress
from http.client import responses as phrases
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import TypeAdapter, ValidationError

from examples.scripted_model.player import Answer, Player
from examples.scripted_model.script import Script

_SCRIPTS = TypeAdapter(list[Script])
_MAX_BODY = 64 * 1024 * 1024
_OK = {"ok": True}
# How a connection ends: the client is gone, wrote nonsense, or the server stops (which asyncio would report loudly).
_ENDS = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError, asyncio.CancelledError)


class Server:
    """`serve` returns after SIGTERM or SIGINT."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, port: int) -> None:
        stop = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=4096)
        print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(*_ENDS):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False ends the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _version = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        length = int(headers.get("content-length", 0))
        if length > _MAX_BODY or "transfer-encoding" in headers:
            return await _send(writer, _answer(411, {"error": "send a Content-Length"}))
        answer = self._answer(method, target, await reader.readexactly(length))
        if answer.delay:
            await asyncio.sleep(answer.delay)
        return await _send(writer, answer) and headers.get("connection", "").lower() != "close"

    def _answer(self, method: str, target: str, body: bytes) -> Answer:
        url = urlsplit(target)
        if method == "GET" and url.path == "/control/requests":
            return _answer(200, self._player.requests(parse_qs(url.query).get("script", [""])[0]))
        if method != "POST":
            return _answer(405, {"error": f"{method} {url.path}"})
        if url.path == "/control/scripts":
            return self._add(body)
        if url.path == "/control/reset":
            self._player.reset()
            return _answer(200, _OK)
        return self._player.answer(url.path, body)

    def _add(self, body: bytes) -> Answer:
        try:
            self._player.add(_SCRIPTS.validate_json(body))
        except ValidationError as error:
            return _answer(422, {"error": error.errors(include_url=False, include_context=False)})
        return _answer(200, _OK)


def _answer(status: int, body: Any) -> Answer:
    return Answer(status, json.dumps(body).encode())


def _head(status: int, fields: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {phrases.get(status, '')}\r\n{lines}\r\n".encode("latin-1")


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    if answer.cut == "before":
        return False
    if answer.events is not None:
        return await _stream(writer, answer, answer.events)
    fields = {"content-type": "application/json", **answer.headers, "content-length": str(len(answer.body))}
    data = _head(answer.status, fields) + answer.body
    writer.write(data[: -(len(answer.body) // 2) or None] if answer.cut == "half" else data)
    await writer.drain()
    return answer.cut is None


async def _stream(writer: asyncio.StreamWriter, answer: Answer, events: tuple[bytes, ...]) -> bool:
    """Chunked: one chunk per event, or pieces of a size that cares for no boundary."""
    writer.write(_head(answer.status, {**answer.headers, "transfer-encoding": "chunked"}))
    for index, event in enumerate(events):
        if answer.pause and index == answer.pause_after:
            await writer.drain()
            await asyncio.sleep(answer.pause)
        size = answer.chunk or len(event)
        for start in range(0, len(event), size):
            piece = event[start : start + size]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if answer.chunk:  # or the kernel would hand the pieces over together
                await writer.drain()
        if answer.cut is None:
            await writer.drain()
    if answer.cut is None:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return answer.cut is None
