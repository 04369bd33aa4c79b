"""Which domains can be replayed. A domain is one object, kept beside the tools that it is about."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from examples.worlds.world import World

DOMAINS = {
    "retail": "examples.retail.tools:RETAIL",
    "airline": "examples.airline.tools:AIRLINE",
}


class EffectRow(Protocol):
    """One effect that really happened, from the domain's own ledger."""

    @property
    def world(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def arguments_digest(self) -> str: ...


class Records(Protocol):
    """The domain's own store. A world is a tenant: it starts as the seeded state and sees only its own changes."""

    def seed(self, state: Mapping[str, Mapping[str, dict[str, Any]]]) -> str: ...

    def state_digest(self, world: str) -> str: ...

    def effects(self, worlds: Sequence[str]) -> Sequence[EffectRow]: ...

    def close(self) -> None: ...


class Domain(Protocol):
    """`profile` and `modules` are Turnqueue's names for it; `any_scope` lets a principal use everybody's records."""

    @property
    def profile(self) -> str: ...
    @property
    def modules(self) -> tuple[str, ...]: ...
    @property
    def any_scope(self) -> str: ...

    def environment(
        self, *, database_url: str, model_url: str, provider: str, stream: bool = False
    ) -> dict[str, str]: ...

    def open(self, database_url: str) -> Records: ...

    def owner(self, world: World, arguments: Mapping[str, Any]) -> str | None:
        """Whose record a call uses; None where it is nobody's or does not exist. Pure."""
        ...

    def apply(self, world: World, tool: str, arguments: Mapping[str, Any]) -> Any:
        """A tool's result, and its changes on the world. Pure. Raises Refusal."""
        ...


def domain(name: str) -> Domain:
    """Raises LookupError where the domain is not registered."""
    if name not in DOMAINS:
        raise LookupError(f"domain {name!r} is not registered in tests/replay/domains.py; known: {', '.join(DOMAINS)}")
    module, _, attribute = DOMAINS[name].partition(":")
    return cast(Domain, getattr(import_module(module), attribute))
