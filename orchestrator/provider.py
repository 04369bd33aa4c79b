"""One model request over HTTP: total deadline, size cap, idle timeout of streams, no redirect, no retry.

Transport errors become a Reply. A stream that was cut proposes nothing.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

import httpx
import structlog

from adapters.base import (
    Accumulator,
    Adapter,
    Boundary,
    Completion,
    Endpoint,
    Failure,
    HttpRequest,
    HttpResponse,
    ModelRequest,
    Progress,
    Reply,
)
from adapters.failures import INTERRUPTED, protocol_failure
from adapters.streaming import interrupted
from orchestrator.domain.errors import ConfigError
from policy.profile import Model

CONNECT_SECONDS = 10.0
MAX_REPLY_BYTES = 16 * 1024 * 1024  # far above any real reply; a runaway server must not fill the memory
MAX_STREAM_BYTES = 4 * MAX_REPLY_BYTES  # the same reply as small events
IDLE_SECONDS = 60.0  # longer than the pauses of models that think, shorter than a lost connection goes unnoticed
DRAIN_SECONDS = 0.25

Observer = Callable[[Progress], None]

log = structlog.get_logger()


def model_client() -> httpx.Client:
    """A pool for one process; the caller owns and closes it."""
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=100, keepalive_expiry=60)
    return httpx.Client(limits=limits, follow_redirects=False, trust_env=False)


def endpoint(model: Model) -> Endpoint:
    """Resolve references to the environment just before use. Raises ConfigError that names the variable."""
    base_url = _given(model.base_url, "base_url")
    return Endpoint(
        base_url=base_url.rstrip("/"),
        api_key=_variable(model.api_key_env, "api_key_env") if model.api_key_env else None,
        headers={name: _given(value, f"headers.{name}") for name, value in model.headers.items()},
        azure_deployment=model.azure_deployment,
        azure_api_version=model.azure_api_version,
    )


def _given(value: str, field: str) -> str:
    return _variable(value[1:], field) if value.startswith("$") else value


def _variable(name: str, field: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError("MISSING_VARIABLE", f"profile field model.{field}: environment variable {name} is not set")
    return value


def ask(
    client: httpx.Client,
    adapter: Adapter,
    request: ModelRequest,
    wire: HttpRequest,
    seconds: float,
    *,
    idle_seconds: float = IDLE_SECONDS,
    observe: Observer | None = None,
) -> Reply:
    """Send `wire` and read the whole reply within `seconds`.

    A streamed one may also not be silent for longer than `idle_seconds`; `observe` is shown its progress, and what it
    raises ends only the showing.
    """
    exchange = _Exchange(client, adapter, request, wire, time.monotonic() + seconds)
    try:
        return exchange.stream(idle_seconds, observe) if request.stream else exchange.plain()
    except httpx.TimeoutException:
        return _unreachable("TIMEOUT")
    except _TooLarge:
        return Reply(Completion.API_FAILURE, failure=protocol_failure("REPLY_TOO_LARGE"))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        sent = not isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol | httpx.InvalidURL)
        return _unreachable("CONNECTION_LOST" if sent else "UNREACHABLE")


def _unreachable(code: str) -> Reply:
    return Reply(Completion.API_FAILURE, failure=_unavailable(code))


def _unavailable(code: str) -> Failure:
    return Failure(Boundary.PROVIDER_UNAVAILABLE, code, retryable=True)


class _TooLarge(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request and the reading of its answer."""

    client: httpx.Client
    adapter: Adapter
    request: ModelRequest
    wire: HttpRequest
    deadline: float

    def _open(self, idle: float) -> AbstractContextManager[httpx.Response]:
        left = max(0.1, self.deadline - time.monotonic())
        connect = min(CONNECT_SECONDS, left)
        timeout = httpx.Timeout(left, read=min(idle, left), connect=connect, pool=connect)
        wire = self.wire
        return self.client.stream(wire.method, wire.url, headers=dict(wire.headers), content=wire.body, timeout=timeout)

    def plain(self) -> Reply:
        with self._open(float("inf")) as response:
            return self._whole(response)

    def _whole(self, response: httpx.Response) -> Reply:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_REPLY_BYTES:
                raise _TooLarge
            if time.monotonic() > self.deadline:  # httpx has no total deadline of its own
                raise httpx.ReadTimeout("deadline passed while reading")
        return self.adapter.from_response(_head(response, bytes(body)), self.request)

    def stream(self, idle: float, observe: Observer | None) -> Reply:
        with self._open(idle) as response, _Cutter(response) as cutter:
            cutter.within(self.deadline - time.monotonic())
            if response.status_code >= 300:
                return self._whole(response)
            accumulator = self.adapter.accumulator(_head(response, b""), self.request)
            failure: Failure | None = None
            try:
                self._read(response, accumulator, cutter, observe)
            except httpx.TimeoutException:
                failure = _unavailable("TIMEOUT")
            except httpx.HTTPError:
                failure = protocol_failure(INTERRUPTED, retryable=True)
            if failure is not None and time.monotonic() > self.deadline:
                failure = _unavailable("TIMEOUT")
            return _ended(accumulator, failure)

    def _read(
        self, response: httpx.Response, accumulator: Accumulator, cutter: "_Cutter", observe: Observer | None
    ) -> None:
        size = 0
        chunks = response.iter_bytes()
        for chunk in chunks:
            size += len(chunk)
            if size > MAX_STREAM_BYTES:
                raise _TooLarge
            observe = _show(accumulator.feed(chunk), observe)
            if accumulator.done:
                # The end of the body usually stands right behind; having read it, the connection can be used again.
                cutter.within(DRAIN_SECONDS)
                next(chunks, None)
                return
            if time.monotonic() > self.deadline:
                break
        if time.monotonic() > self.deadline:  # by the watch, or cut by it: that end is not the server's
            raise httpx.ReadTimeout("deadline passed while reading")


def _head(response: httpx.Response, body: bytes) -> HttpResponse:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpResponse(response.status_code, headers, body)


def _ended(accumulator: Accumulator, failure: Failure | None) -> Reply:
    """A reply whose end was seen stands, whatever became of the connection; any other is what cut it short."""
    reply = accumulator.finish()
    if failure is None or accumulator.done:
        return reply
    told = reply.failure is not None and reply.failure.code not in (INTERRUPTED, "UNREADABLE_BODY")
    return reply if told else replace(interrupted(reply), failure=failure)


def _show(progress: Sequence[Progress], observe: Observer | None) -> Observer | None:
    if observe is not None:
        try:
            for one in progress:
                observe(one)
        except Exception as error:  # noqa: BLE001 - an observer is no part of the turn
            log.warning("observer.failed", error=type(error).__name__)
            return None
    return observe


class _Cutter:
    """Ends the reading of a response at a moment: httpx times single reads only, and one may begin just before it."""

    def __init__(self, response: httpx.Response) -> None:
        network = response.extensions.get("network_stream")
        self._socket: socket.socket | None = network.get_extra_info("socket") if network else None
        self._timer: threading.Timer | None = None

    def within(self, seconds: float) -> None:
        """From now on; replaces the earlier moment."""
        self._cancel()
        self._timer = threading.Timer(max(0.0, seconds), self._cut)
        self._timer.daemon = True
        self._timer.start()

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # also under TLS, which would wait for its peer

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> "_Cutter":
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel()
