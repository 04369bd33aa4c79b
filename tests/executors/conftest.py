"""A downstream per test, and contexts as the dispatcher builds them."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from executors.context import Context
from executors.http import ScopedClient, shared_client
from policy.base import Principal
from tests.executors.downstream import Downstream, downstream

ContextOf = Callable[..., Context]


@pytest.fixture
def server() -> Iterator[Downstream]:
    with downstream() as running:
        yield running


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with shared_client() as client:
        yield client


@pytest.fixture
def context(http: httpx.Client) -> ContextOf:
    def build(*, seconds: float = 20.0, key: str | None = None, headers: dict[str, str] | None = None) -> Context:
        deadline = time.monotonic() + seconds
        scoped = ScopedClient(http, deadline, headers or {})
        extra: dict[str, Any] = {"action_id": "act_1", "idempotency_key": key} if key else {}
        return Context(Principal("acme", "customer-7"), "op_1", "call_1", "att_1", deadline, scoped, **extra)

    return build
