"""One model request over HTTP: total deadline, body cap, no redirect, no retry. Transport errors become a Reply."""

import os
import time

import httpx

from adapters.base import (
    Adapter,
    Boundary,
    Completion,
    Endpoint,
    Failure,
    HttpRequest,
    HttpResponse,
    ModelRequest,
    Reply,
)
from orchestrator.domain.errors import ConfigError
from policy.profile import Model

CONNECT_SECONDS = 10.0
MAX_REPLY_BYTES = 16 * 1024 * 1024  # far above any real reply; a runaway server must not fill the memory


def model_client() -> httpx.Client:
    """A pool for one process; the caller owns and closes it."""
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=100, keepalive_expiry=60)
    return httpx.Client(limits=limits, follow_redirects=False, trust_env=False)


def endpoint(model: Model) -> Endpoint:
    """Resolve references to the environment just before use. Raises ConfigError that names the variable."""
    base_url = _variable(model.base_url[1:], "base_url") if model.base_url.startswith("$") else model.base_url
    return Endpoint(
        base_url=base_url.rstrip("/"),
        api_key=_variable(model.api_key_env, "api_key_env") if model.api_key_env else None,
        headers=model.headers,
        azure_deployment=model.azure_deployment,
        azure_api_version=model.azure_api_version,
    )


def _variable(name: str, field: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError("MISSING_VARIABLE", f"profile field model.{field}: environment variable {name} is not set")
    return value


def ask(client: httpx.Client, adapter: Adapter, request: ModelRequest, wire: HttpRequest, seconds: float) -> Reply:
    """Send `wire` and read the whole reply within `seconds`."""
    try:
        response = _exchange(client, wire, seconds)
    except httpx.TimeoutException:
        return _unreachable("TIMEOUT")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        sent = not isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol | httpx.InvalidURL)
        return _unreachable("CONNECTION_LOST" if sent else "UNREACHABLE")
    return adapter.from_response(response, request)


def _unreachable(code: str) -> Reply:
    failure = Failure(Boundary.PROVIDER_UNAVAILABLE, code, retryable=True)
    return Reply(Completion.API_FAILURE, failure=failure)


def _exchange(client: httpx.Client, wire: HttpRequest, seconds: float) -> HttpResponse:
    deadline = time.monotonic() + seconds
    timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds), pool=min(CONNECT_SECONDS, seconds))
    with client.stream(
        wire.method, wire.url, headers=dict(wire.headers), content=wire.body, timeout=timeout
    ) as response:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_REPLY_BYTES:
                raise httpx.ReadError(f"reply over {MAX_REPLY_BYTES} bytes")
            if time.monotonic() > deadline:  # httpx has no total deadline of its own
                raise httpx.ReadTimeout("deadline passed while reading")
        headers = {name.lower(): value for name, value in response.headers.items()}
        return HttpResponse(response.status_code, headers, bytes(body))
