"""The HTTP client that handlers get: one shared connection pool per process, and a scope per attempt.

The scope keeps every request inside the attempt's deadline, adds the idempotency key where the contract says so, and
tells apart "nothing was sent" from "may have arrived". It follows no redirect and retries nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from executors.outcomes import NotSent, ToolUnavailable
from orchestrator.failpoints import failpoint

CONNECT_SECONDS = 5.0
MAX_BODY = 4 * 1024 * 1024
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


def shared_client() -> httpx.Client:
    """A pool for one process; the caller owns and closes it."""
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=100, keepalive_expiry=30)
    return httpx.Client(limits=limits, follow_redirects=False, trust_env=False)


@dataclass(slots=True)
class ScopedClient:
    """One attempt's HTTP. `deadline` is on `time.monotonic`'s clock; `held` says whether the attempt is still ours."""

    client: httpx.Client
    deadline: float
    headers: dict[str, str] = field(default_factory=dict)
    held: Callable[[], bool] = lambda: True
    sent_unsafe: bool = False  # a request that may change something has left in this attempt

    def get(self, url: str, **options: Any) -> httpx.Response:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> httpx.Response:
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> httpx.Response:
        return self.request("PUT", url, **options)

    def request(
        self, method: str, url: str, *, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """Send one request and read the whole answer, whatever its status.

        Raises NotSent when nothing of this or an earlier changing request of the attempt has left, ToolUnavailable
        when it may have arrived (timeout, lost connection, oversize answer). An attempt whose lease is lost sends
        nothing more.
        """
        unsafe = method.upper() not in _SAFE
        try:
            if not self.held():
                raise httpx.PoolTimeout("lease lost before sending")
            return self._exchange(method, url, {**self.headers, **(headers or {})}, unsafe, options)
        except _NOTHING_SENT as error:
            if self.sent_unsafe:
                raise ToolUnavailable(f"{type(error).__name__} after an earlier request was sent") from error
            raise NotSent(type(error).__name__) from error
        except httpx.HTTPError as error:
            self.sent_unsafe = self.sent_unsafe or unsafe
            raise ToolUnavailable(type(error).__name__) from error

    def _exchange(
        self, method: str, url: str, headers: dict[str, str], unsafe: bool, options: dict[str, Any]
    ) -> httpx.Response:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise httpx.PoolTimeout("deadline passed before sending")
        if unsafe:
            failpoint("write.sending")
        timeout = httpx.Timeout(left, connect=min(CONNECT_SECONDS, left), pool=min(CONNECT_SECONDS, left))
        with self.client.stream(method, url, headers=headers, timeout=timeout, **options) as response:
            self.sent_unsafe = self.sent_unsafe or unsafe
            if unsafe:
                failpoint("write.unread")
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_BODY:
                    raise httpx.ReadError(f"answer over {MAX_BODY} bytes")
                if time.monotonic() > self.deadline:  # httpx has no total deadline of its own
                    raise httpx.ReadTimeout("deadline passed while reading")
            kept = [(k, v) for k, v in response.headers.items() if k not in ("content-encoding", "content-length")]
            return httpx.Response(response.status_code, headers=kept, content=bytes(body), request=response.request)
