"""The catalog filter: which tools this principal may be offered at all. Authorization still happens at execution."""

from collections.abc import Iterable

from policy.base import Principal


def eligible(tools: Iterable[tuple[str, frozenset[str]]], principal: Principal) -> tuple[str, ...]:
    """Names, in order, of the (name, scopes) pairs whose scopes the principal holds."""
    return tuple(name for name, scopes in tools if scopes <= principal.scopes)
