"""How the tools speak to the shop: settings from the environment, one request, one mapping of its answers."""

import os
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from executors.http import ScopedClient
from executors.outcomes import ToolRejected, ToolUnavailable
from orchestrator.domain.errors import ConfigError
from policy.base import Principal

M = TypeVar("M", bound=BaseModel)


class UnexpectedAnswer(Exception):
    """The shop answered outside its contract: proof of nothing. A read fails, a write becomes UNKNOWN."""


@dataclass(frozen=True, slots=True)
class ShopSettings:
    """Where the shop is (`http://host:port`, no trailing slash) and the token it knows us by."""

    url: str
    token: str = field(repr=False)

    @classmethod
    def from_env(cls) -> "ShopSettings":
        """Raises ConfigError that names the variable to set."""
        url, token = os.environ.get("SUPPORT_SHOP_URL", ""), os.environ.get("SUPPORT_SHOP_TOKEN", "")
        if not url.startswith(("http://", "https://")):
            raise ConfigError("SUPPORT_SHOP_URL", "set SUPPORT_SHOP_URL to the shop's address, as http://host:port")
        if not token:
            raise ConfigError("SUPPORT_SHOP_TOKEN", "set SUPPORT_SHOP_TOKEN to the shop's bearer token")
        return cls(url.rstrip("/"), token)

    def headers(self, tenant: str, subject: str) -> dict[str, str]:
        """Percent-encoded, because a header holds ASCII only and a name may hold anything."""
        return {
            "Authorization": f"Bearer {self.token}",
            "X-Tenant": quote(tenant, safe=""),
            "X-Subject": quote(subject, safe=""),
        }


class RefusalBody(BaseModel):
    """The shop's own form of a definite no."""

    model_config = ConfigDict(strict=True)

    code: str
    message: str = ""


def ask(
    http: ScopedClient, principal: Principal, method: str, path: str, body: BaseModel | None = None
) -> httpx.Response:
    """One request on behalf of `principal`. Raises NotSent, ToolUnavailable or ConfigError."""
    settings = ShopSettings.from_env()
    headers = settings.headers(principal.tenant, principal.subject)
    content = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        content = body.model_dump_json().encode()
    return http.request(method, settings.url + path, headers=headers, content=content)


def result(response: httpx.Response, model: type[M]) -> M:
    """The answer as `model`.

    Raises ToolRejected for a definite refusal with a code, ToolUnavailable for 5xx and 429, UnexpectedAnswer for
    anything else.
    """
    if response.is_success:
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise UnexpectedAnswer(f"status {response.status_code}, not a {model.__name__}") from error
    if response.status_code in (404, 409, 422):
        refusal = refusal_of(response)
        raise ToolRejected(refusal.code, refusal.message)
    if response.status_code >= 500 or response.status_code == 429:
        raise ToolUnavailable(f"status {response.status_code}", _retry_after(response))
    raise UnexpectedAnswer(f"status {response.status_code}")


def refusal_of(response: httpx.Response) -> RefusalBody:
    """Raises UnexpectedAnswer when there is no code: a proxy's 404 is not the shop's word."""
    try:
        return RefusalBody.model_validate_json(response.content)
    except ValidationError as error:
        raise UnexpectedAnswer(f"status {response.status_code} without a code") from error


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None
