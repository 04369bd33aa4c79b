"""Whose order and whose draft: asked of the shop, which owns the answer. No answer is a Deny."""

import functools
import time
from typing import Protocol, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict

from examples.support.client import UnexpectedAnswer, ask, result
from executors.http import ScopedClient, shared_client
from executors.outcomes import ToolError, ToolRejected
from orchestrator.domain.errors import ConfigError
from policy.base import Allow, Decision, Deny, Principal

TIMEOUT_SECONDS = 2.0

M = TypeVar("M", bound=BaseModel)


class _NamesOrder(Protocol):
    @property
    def order_id(self) -> str: ...


class _NamesDraft(_NamesOrder, Protocol):
    @property
    def draft_id(self) -> str: ...
    @property
    def amount_cents(self) -> int: ...
    @property
    def currency(self) -> str: ...


class _OwnOrder(BaseModel):
    model_config = ConfigDict(strict=True)

    order_id: str


class _OwnDraft(BaseModel):
    model_config = ConfigDict(strict=True)

    draft_id: str
    order_id: str
    amount_cents: int
    currency: str


def own_order(args: _NamesOrder, principal: Principal) -> Decision:
    """Allow when the order is the subject's; Deny ORDER_UNAVAILABLE or AUTHORIZATION_UNAVAILABLE otherwise."""
    order = _look_up(f"/orders/{args.order_id}", principal, _OwnOrder)
    if isinstance(order, Deny):
        return order
    return Allow() if order.order_id == args.order_id else _no_answer("the shop answered about another order")


def own_draft(args: _NamesDraft, principal: Principal) -> Decision:
    """Allow when the draft is the subject's and says what `args` say; a person is never asked about a mismatch.

    Its state is no matter here: this runs again before a refund is sent a second time under one key.
    """
    draft = _look_up(f"/refund-drafts/{args.draft_id}", principal, _OwnDraft)
    if isinstance(draft, Deny):
        return draft
    if draft.draft_id != args.draft_id:
        return _no_answer("the shop answered about another draft")
    for name in ("order_id", "amount_cents", "currency"):
        if getattr(draft, name) != getattr(args, name):
            return Deny("TERMS_MISMATCH", f"{name} is not what the draft says")
    return Allow()


def _look_up(path: str, principal: Principal, model: type[M]) -> M | Deny:
    http = ScopedClient(_client(), time.monotonic() + TIMEOUT_SECONDS)
    try:
        return result(ask(http, principal, "GET", path), model)
    except ToolRejected as error:
        return Deny(error.code, error.message)
    except (ToolError, UnexpectedAnswer, ConfigError) as error:
        return _no_answer(str(error))


def _no_answer(reason: str) -> Deny:
    return Deny("AUTHORIZATION_UNAVAILABLE", reason)


@functools.cache
def _client() -> httpx.Client:
    """One pool per process, opened by the first question and closed by the process's end."""
    return shared_client()
