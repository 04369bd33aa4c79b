"""The composition root: what one process needs, opened lazily, passed down explicitly."""

import importlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import ValidationError

from adapters.base import Progress
from executors.http import shared_client
from executors.registry import Registry
from orchestrator.domain.errors import ConfigError
from orchestrator.engine import Wake
from orchestrator.hints import HintPublisher
from orchestrator.leases import LeaseKeeper
from orchestrator.provider import model_client
from orchestrator.settings import Settings
from policy.profile import Profile
from store import envelopes, operations, slots
from store.db import Database
from store.versions import NewerVersion

if TYPE_CHECKING:
    from sqlalchemy import Connection


def load_registry(settings: Settings) -> Registry:
    """Tools and profiles of the named modules and files. Raises ConfigError that names the module."""
    registry = Registry()
    for name in settings.modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a module of the user's may raise anything while it is imported
            raise ConfigError(
                "BAD_MODULE", f"TURNQUEUE_MODULES: cannot import {name!r}: {type(error).__name__}: {error}"
            ) from None
        register = getattr(module, "register", None)
        if register is None:
            raise ConfigError("BAD_MODULE", f"TURNQUEUE_MODULES: {name!r} has no register(registry)")
        register(registry)
    registry.add_profile(*(Profile.load(Path(path)) for path in settings.profiles))
    registry.check()
    return registry


class App:
    """One per process; safe to share between threads. Nothing connects before it is used."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings = settings
        self.registry = registry
        # Unique per boot: a restarted worker of the same name must not take the leases of the earlier one for its own.
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.database = Database(settings.require_database(), settings.pool_size)
        self.leases = LeaseKeeper(self.database, settings.lease_seconds)
        self.stopping = threading.Event()  # told to stop: finish the step at hand, claim nothing more
        self._profiles: dict[str, Profile] = {}
        self.stored_profiles: set[str] = set()  # digests whose recipe this process knows to be in the database
        # Shown what streams in, by operation id, on the thread of its turn; nothing is ever executed because of it.
        self.observe: Callable[[str, Progress], None] | None = None

    @classmethod
    @contextmanager
    def open(cls, settings: Settings) -> "Iterator[App]":
        app = cls(settings, load_registry(settings))
        try:
            yield app
        finally:
            app.close()

    @cached_property
    def model_http(self) -> httpx.Client:
        return model_client()

    @cached_property
    def tool_http(self) -> httpx.Client:
        return shared_client()

    @cached_property
    def hints(self) -> HintPublisher:
        return HintPublisher(self.settings)

    def publish(self, wakes: Sequence[Wake]) -> None:
        """Best effort, after the commit: what gets lost is found by the sweeper."""
        if wakes:
            self.hints.publish(
                [(w.queue, f"tool.{w.tool}" if w.tool else "turnqueue.advance", w.row_id) for w in wakes]
            )

    def profile(self, digest: str, open_connection: "Connection | None" = None) -> Profile:
        """The frozen recipe of an operation. Raises NewerVersion for one with fields that we do not know.

        Whoever has a connection open gives it: waiting for a second one, all of a small pool could wait for each other.
        """
        if digest not in self._profiles:
            with nullcontext(open_connection) if open_connection else self.database.autocommit() as connection:
                body = operations.profile_body(connection, digest)
            try:
                self._profiles[digest] = Profile.model_validate(body)
            except ValidationError:
                raise NewerVersion(f"profile {body.get('name')!r}") from None
        return self._profiles[digest]

    def clock(self) -> float:
        """Unix time on the database's clock, the only one that all processes share. Raises Unavailable."""
        with self.database.autocommit() as connection:
            return envelopes.clock(connection)

    @cached_property
    def read_queues(self) -> frozenset[str]:
        """Queues that hold plain reads; any queue can hold actions, since a profile may ask approval for a read."""
        return frozenset(spec.queue for spec in self.registry.tools if not spec.needs_action)

    def sync_slots(self) -> None:
        """Make the slot rows agree with the registered tools' limits."""
        limits = {spec.name: spec.concurrency for spec in self.registry.tools if spec.concurrency is not None}
        self.database.transact(lambda connection: slots.sync(connection, limits))

    def close(self) -> None:
        self.leases.close()
        opened: Mapping[str, Any] = self.__dict__
        for name in ("model_http", "tool_http", "hints"):
            if name in opened:
                opened[name].close()
        self.database.close()
