"""The downstream of the support example: a small shop with refunds, over HTTP/1.1 and PostgreSQL.

    SHOP_TOKEN=... python -m examples.support.shop --database-url URL --port 0 [--faults]

The first line it prints is `listening on http://HOST:PORT`; it serves until SIGTERM.  Every request carries
`Authorization: Bearer SHOP_TOKEN` and, percent-encoded, `X-Tenant` and `X-Subject`.  Both POSTs need an
`Idempotency-Key`: the same key with the same body replays the stored answer (header `Idempotent-Replayed: true`),
with another body it is 409.  Refusals are `{"code", "message"}`.
"""

import argparse
import hmac
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout
from pydantic import BaseModel, ValidationError

from examples.support import shop_store as store
from examples.support.shop_faults import Fault, Faults
from examples.support.shop_store import Answer, Caller, Db, Refusal

MAX_BODY = 64 * 1024
IDLE_SECONDS = 90  # longer than the 30 s for which clients keep a connection, so that they close it and not we
KEY = re.compile(r"^[\x21-\x7e]{1,255}$")

M = TypeVar("M", bound=BaseModel)


class Headers(Protocol):
    """Names in any case, as HTTP has them."""

    def get(self, name: str, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One authenticated request; `id` is the path's variable part."""

    caller: Caller
    id: str
    headers: Headers
    body: bytes

    @property
    def key(self) -> str:
        key = self.headers.get("Idempotency-Key") or ""
        if not KEY.match(key):
            raise Refusal(400, "IDEMPOTENCY_KEY_MISSING", "send an Idempotency-Key of 1-255 visible characters")
        return key

    def read(self, model: type[M]) -> M:
        return _parse(self.body, model)


@dataclass(frozen=True, slots=True)
class Route:
    endpoint: str
    path: re.Pattern[str]
    answer: Callable[[Db, Request], Answer]

    @property
    def method(self) -> str:
        return self.endpoint.split(" ")[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes on the wire."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def _route(endpoint: str, path: str, answer: Callable[[Db, Request], Answer]) -> Route:
    return Route(endpoint, re.compile(f"^{path}$"), answer)


ROUTES = (
    _route("GET /orders", "/orders/([^/]+)", lambda db, r: store.read_order(db, r.caller, r.id)),
    _route("GET /refund-policy", "/refund-policy()", lambda db, r: store.read_policy()),
    _route(
        "POST /refund-drafts",
        "/refund-drafts()",
        lambda db, r: store.create_draft(db, r.caller, r.key, r.read(store.NewDraft)),
    ),
    _route("GET /refund-drafts", "/refund-drafts/([^/]+)", lambda db, r: store.read_draft(db, r.caller, r.id)),
    _route(
        "POST /refunds",
        "/refunds()",
        lambda db, r: store.submit_refund(db, r.caller, r.key, r.read(store.NewRefund)),
    ),
    _route("GET /refunds/by-key", "/refunds/by-key/([^/]+)", lambda db, r: store.find_refund(db, r.caller, r.id)),
    _route("GET /ledger", "/ledger()", lambda db, r: store.read_ledger(db, r.caller.tenant)),
)


class Shop:
    """Requests in, replies out, one transaction each; knows nothing of sockets."""

    def __init__(self, pool: ConnectionPool[Db], token: str, faults: Faults | None = None) -> None:
        self._pool = pool
        self._token = token
        self._faults = faults

    def handle(self, method: str, target: str, headers: Headers, body: bytes) -> Reply | None:
        """The reply; None means: close the connection without one."""
        try:
            self._authenticate(headers)
            path = urlsplit(target).path
            if path == "/control/faults" and self._faults is not None:
                return _encode(_control(self._faults, method, body))
            route, variable = _find(method, path)
            request = Request(_caller(headers), variable, headers, body)
        except Refusal as refusal:
            return _encode(refusal.answer)
        fault = self._faults.take(route.endpoint) if self._faults is not None else None
        return self._faulty(fault, route, request) if fault else _encode(self._answer(route, request))

    def _authenticate(self, headers: Headers) -> None:
        given = (headers.get("Authorization") or "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise Refusal(401, "UNAUTHENTICATED", "the bearer token is missing or wrong")

    def _answer(self, route: Route, request: Request) -> Answer:
        try:
            with self._pool.connection() as db:
                return route.answer(db, request)
        except Refusal as refusal:
            return refusal.answer
        except (psycopg.OperationalError, PoolTimeout):
            return Answer(503, {"code": "UNAVAILABLE", "message": "the shop's database does not answer"})
        except Exception:  # noqa: BLE001 - the boundary: a fault of ours is a 500, not a cut connection
            traceback.print_exc()
            return Answer(500, {"code": "INTERNAL", "message": "the shop failed"})

    def _faulty(self, fault: Fault, route: Route, request: Request) -> Reply | None:
        if fault.kind == "status":
            assert fault.status is not None
            return _encode(Answer(fault.status, {"code": "FAULT", "message": "ordered by a test"}))
        if fault.kind == "cut_before":
            return None
        if fault.kind == "delay":
            assert fault.seconds is not None
            time.sleep(fault.seconds)
        answer = self._answer(route, request)
        if fault.kind == "cut_after_effect":
            return None
        return Reply(200, b"<html>not what you") if fault.kind == "garbage" else _encode(answer)


def _control(faults: Faults, method: str, body: bytes) -> Answer:
    if method == "DELETE":
        faults.clear()
    elif method == "POST":
        faults.add(_parse(body, Fault))
    else:
        raise Refusal(404, "NO_SUCH_ENDPOINT", "POST adds a fault, DELETE removes all")
    return Answer(200, {})


def _find(method: str, path: str) -> tuple[Route, str]:
    for route in ROUTES:
        if route.method == method and (match := route.path.match(path)) and "%00" not in path:
            return route, unquote(match[1])
    raise Refusal(404, "NO_SUCH_ENDPOINT", "no such endpoint")


def _caller(headers: Headers) -> Caller:
    tenant, subject = unquote(headers.get("X-Tenant") or ""), unquote(headers.get("X-Subject") or "")
    if not tenant or not subject or "\0" in tenant + subject:
        raise Refusal(400, "CALLER_MISSING", "send X-Tenant and X-Subject")
    return Caller(tenant, subject)


def _parse(body: bytes, model: type[M]) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Refusal(422, "INVALID_REQUEST", f"{where}: {first['msg']}") from None


def _encode(answer: Answer) -> Reply:
    headers = {"Idempotent-Replayed": "true"} if answer.replayed else {}
    return Reply(answer.status, json.dumps(answer.body, separators=(",", ":")).encode(), headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # the default of 5 drops connections when a fleet opens its own at once

    def __init__(self, address: tuple[str, int], shop: Shop) -> None:
        super().__init__(address, _Handler)
        self.shop = shop

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a caller that went away is its own business
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "support-shop"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: head and body leave in one packet
    timeout = IDLE_SECONDS
    server: _Server

    def _serve(self) -> None:
        body = self._body()
        if body is None:
            self._send(Reply(413, b'{"code":"BODY_REFUSED","message":"send a Content-Length of at most 64 KiB"}'))
            self.close_connection = True
            return
        reply = self.server.shop.handle(self.command, self.path, self.headers, body)
        if reply is None:
            self.close_connection = True
        else:
            self._send(reply)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the names that BaseHTTPRequestHandler looks for

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or int(length) > MAX_BODY:
            return None
        return self.rfile.read(int(length))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply.content)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the ledger is the record."""


def psycopg_url(url: str) -> str:
    """Also take SQLAlchemy's spelling of the scheme."""
    return re.sub(r"^postgresql\+psycopg(?=:)", "postgresql", url)


def open_pool(database_url: str, size: int) -> ConnectionPool[Db]:
    """The caller closes it. Raises PoolTimeout when the database does not answer within 15 s."""
    pool: ConnectionPool[Db] = ConnectionPool(
        psycopg_url(database_url),
        connection_class=psycopg.Connection[store.Row],
        kwargs={"row_factory": dict_row, "connect_timeout": 10, "application_name": "support-shop"},
        min_size=1,
        max_size=size,
        open=False,
    )
    pool.open(wait=True, timeout=15)
    return pool


def serve(options: argparse.Namespace, token: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # before any thread starts, so that only sigwait sees them
    with open_pool(options.database_url, options.pool_size) as pool:
        with pool.connection() as db:
            store.prepare(db)
        with _Server((options.host, options.port), Shop(pool, token, Faults() if options.faults else None)) as server:
            print(f"listening on http://{options.host}:{server.server_port}", flush=True)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
            thread.start()
            signal.sigwait(stop)
            server.shutdown()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="The downstream of the support example.")
    parser.add_argument("--database-url", default=os.environ.get("SHOP_DATABASE_URL"), help="or SHOP_DATABASE_URL")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--pool-size", type=int, default=16, help="database connections at most")
    parser.add_argument("--faults", action="store_true", help="let callers order faults (tests only)")
    options = parser.parse_args()
    token = os.environ.get("SHOP_TOKEN")
    if not options.database_url or not token:
        parser.error("set --database-url (or SHOP_DATABASE_URL), and SHOP_TOKEN in the environment")
    serve(options, token)


if __name__ == "__main__":
    main()
