"""A downstream that forgets nothing and refuses nothing: `python -m tests.chaos.ledger --file PATH [--seed N]`.

Its own process, standard library only. Every request and every effect is a line of an append-only file, with no unique
key anywhere: what arrives twice stands there twice. The first line of its output is `listening on URL`.

    POST /effects/TOOL     headers Idempotency-Key, Attempt-Id; body: the arguments, a JSON object
    GET  /by-key/KEY       {"ref", "n"} of the first effect under the key, 404 without one
    GET  /facts/TOOL/NAME  a read
    POST /control          any of {"faults": {KIND: probability}, "next": [KIND...], "enforced": [TOOL...],
                           "late_s", "hide_s"}; `next` comes before probability, one for each write
    GET  /control          {"seen", "effects", "next"}

Faults of a write: `before` and `after` reset the connection before or after the effect, `silent` never answers
(effect applied), `unanswered` the same without the effect, `status` is a 503 after the effect, `garbage` a 200 that is
no JSON, `late` an answer `late_s` seconds after the effect, `slow` an effect `late_s` seconds after the request,
`refuse` a 422 without effect (which an enforced key remembers), `hide` resets after the effect and keeps the record
from lookups for `hide_s` seconds. Faults of a read: `before`, `status`, `late`. For a tool in `enforced` a second
request under a key gets the first one's answer and no effect.

Lines: {"event": "arrived"|"effect"|"left", "at": seconds since 1970, "tool", "key", "attempt", "tenant", "n",
"in_flight", and for effects "digest" (of the arguments, as the system defines it) and "ref"}.
"""

import argparse
import hashlib
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

READ_FAULTS = ("before", "status", "late")
SILENT_SECONDS = 60.0  # at most, for a client that never goes away


class Gone(Exception):
    """The connection is to be reset."""


@dataclass
class Book:
    """The file, the effects by key, and what goes wrong next. Everything under one lock."""

    path: Path
    random: random.Random
    faults: dict[str, float] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)
    enforced: set[str] = field(default_factory=set)
    late_s: float = 0.5
    hide_s: float = 1.5
    lock: threading.Lock = field(default_factory=threading.Lock)
    effects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    hidden: dict[str, float] = field(default_factory=dict)
    in_flight: Counter[str] = field(default_factory=Counter)
    seen: int = 0

    def control(self, order: dict[str, Any]) -> None:
        with self.lock:
            self.faults = order.get("faults", self.faults)
            self.next += order.get("next", [])
            self.enforced = set(order.get("enforced", self.enforced))
            self.late_s = order.get("late_s", self.late_s)
            self.hide_s = order.get("hide_s", self.hide_s)

    def arrive(self, request: dict[str, Any], *, read: bool) -> tuple[int, str]:
        """The request's number and its fault; "" for none."""
        with self.lock:
            self.seen += 1
            self.in_flight[request["tool"]] += 1
            number = self.seen
            fault = self._fault(read)
            self._line("arrived", {**request, "n": number, "fault": fault})
            return number, fault

    def _fault(self, read: bool) -> str:
        if not read and self.next:
            return self.next.pop(0)
        drawn = self.random.random()
        for kind, probability in self.faults.items():
            if read and kind not in READ_FAULTS:
                continue
            drawn -= probability
            if drawn < 0:
                return kind
        return ""

    def leave(self, request: dict[str, Any], number: int) -> None:
        with self.lock:
            self.in_flight[request["tool"]] -= 1
            self._line("left", {**request, "n": number})

    def apply(self, request: dict[str, Any], number: int, arguments: bytes, fault: str) -> dict[str, Any] | None:
        """The answer: of a new effect, or of the first one under its key where that is enforced. None: refused."""
        with self.lock:
            known = self.effects.setdefault(request["key"], [])
            enforced = request["tool"] in self.enforced
            if known and enforced:
                return known[0]
            if fault == "refuse" or (enforced and request["key"] in self.refused):
                self.refused.add(request["key"])
                return None
            answer = {"ref": f"E{number}", "n": number}
            known.append(answer)
            if fault == "hide":
                self.hidden[request["key"]] = time.monotonic() + self.hide_s
            digest = hashlib.sha256(b"arguments-v1\0" + canonical(arguments)).hexdigest()
            self._line("effect", {**request, "n": number, "digest": digest, "arguments": json.loads(arguments)})
            return answer

    def find(self, key: str) -> dict[str, Any] | None:
        with self.lock:
            if self.hidden.get(key, 0.0) > time.monotonic():
                return None
            return next(iter(self.effects.get(key, [])), None)

    def _line(self, event: str, body: dict[str, Any]) -> None:
        line = {"event": event, "at": time.time(), **body, "in_flight": self.in_flight[body["tool"]]}
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)


def canonical(arguments: bytes) -> bytes:
    """RFC 8785 for objects with ASCII names, texts and small integers, which is all that is sent here."""
    return json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


class Handler(BaseHTTPRequestHandler):
    book: Book
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _at_work: tuple[dict[str, Any], int] | None = None

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionResetError("half of a request")
        if self.path == "/control":
            self.book.control(json.loads(body))
            self._answer(200, {})
            return
        self._guarded(self.path.removeprefix("/effects/"), body)

    def do_GET(self) -> None:
        kind, _, rest = self.path[1:].partition("/")
        if kind == "control":
            effects = sum(map(len, self.book.effects.values()))
            self._answer(200, {"seen": self.book.seen, "effects": effects, "next": self.book.next})
        elif kind == "by-key":
            found = self.book.find(rest)
            self._answer(200 if found else 404, found or {})
        else:
            self._guarded(rest.partition("/")[0], None)

    def _guarded(self, tool: str, body: bytes | None) -> None:
        request = {
            "tool": tool, "key": self.headers.get("idempotency-key"), "attempt": self.headers.get("attempt-id"),
            "read": body is None, "tenant": self.headers.get("tenant"),
        }  # fmt: skip
        number, fault = self.book.arrive(request, read=body is None)
        self._at_work = request, number
        try:
            if body is None:
                self._read(fault)
            else:
                self._write(request, number, fault, body)
        except (Gone, ConnectionError):
            self._leave()
            self._reset()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Work on a request ends before it is answered: the client may send the next one at once."""
        if self._at_work is not None:
            self.book.leave(*self._at_work)
            self._at_work = None

    def _read(self, fault: str) -> None:
        if fault == "before":
            raise Gone
        if fault == "late":
            self._wait(self.book.late_s)
        self._answer(503 if fault == "status" else 200, {"ref": self.path.rpartition("/")[2], "n": 0})

    def _write(self, request: dict[str, Any], number: int, fault: str, body: bytes) -> None:
        match fault:
            case "before":
                raise Gone
            case "unanswered":
                self._leave()
                self._wait(SILENT_SECONDS)
                raise Gone
            case "slow":
                time.sleep(self.book.late_s)  # whether or not the client is still there
        answer = self.book.apply(request, number, body, fault)
        if answer is None:
            self._answer(422, {"code": "REFUSED"})
            return
        match fault:
            case "after":
                raise Gone
            case "silent":
                self._leave()
                self._wait(SILENT_SECONDS)
                raise Gone
            case "hide":
                raise Gone
            case "status":
                self._answer(503, {})
                return
            case "garbage":
                self._answer(200, None)
                return
            case "late":
                self._wait(self.book.late_s)
        self._answer(200, answer)

    def _wait(self, seconds: float) -> None:
        """Until the time has passed or the client has gone."""
        if select.select([self.connection], [], [], seconds)[0]:
            raise Gone

    def _answer(self, status: int, body: dict[str, Any] | None) -> None:
        self._leave()
        data = b"<html>all is well" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        """RST instead of FIN: the client is told that something broke."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ValueError):
            return  # reset by us, or by a client that was killed

    def finish(self) -> None:
        try:
            super().finish()
        except (ConnectionError, ValueError):
            return


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def shutdown_request(self, request: Any) -> None:
        try:
            super().shutdown_request(request)
        except OSError:
            return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    Handler.book = Book(options.file, random.Random(options.seed))
    server = Server(("127.0.0.1", 0), Handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
