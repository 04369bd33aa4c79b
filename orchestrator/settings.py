"""Settings: read once from the environment, validated, frozen, passed down."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.domain.errors import ConfigError

PREFIX = "TURNQUEUE_"


class Sender(BaseModel):
    """A service that may enqueue by signed envelope: which key proves it, and for whom and what it may ask."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_env: str  # environment variable with the shared secret
    tenants: tuple[str, ...]
    profiles: tuple[str, ...]
    scopes: frozenset[str] = frozenset()


class Settings(BaseModel):
    """Every field is the environment variable `TURNQUEUE_<FIELD IN CAPITALS>`. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: str | None = Field(
        default=None, repr=False
    )  # postgresql://… ; none: the CLI starts the embedded server
    broker_url: str | None = Field(default=None, repr=False)  # redis://…, amqp://… ; none: likewise
    modules: tuple[str, ...] = ()  # modules whose `register(registry)` adds tools and profiles
    profiles: tuple[str, ...] = ()  # TOML files, one profile each
    queue_prefix: str = "turnqueue:"  # Redis key prefix
    lease_seconds: float = Field(default=15.0, gt=0.1)
    sweep_seconds: float = Field(default=5.0, gt=0.05)
    slice_seconds: float = Field(default=0.5, ge=0)
    hint_limit: int = Field(default=32, ge=1)  # waiting wake-ups per queue beyond which no more are published
    pool_size: int = Field(default=8, ge=1)
    ask_limit: int = Field(default=6, ge=1)  # failed requests of one turn before the operation fails
    lost_limit: int = Field(default=5, ge=1)  # lost leases in a row before the operation fails
    check_limit: int = Field(default=10, ge=1)  # reconciliations before an operator is asked
    # A worker with room that gets nothing for so long, while its queues and the database hold work, ends; 0: never.
    stall_seconds: float = Field(default=30.0, ge=0)
    # Beyond the 900 s after which Redis delivers a dead worker's messages again; each envelope works once in any case.
    envelope_seconds: float = Field(default=3600.0, gt=0)
    senders: Mapping[str, Sender] = Field(default_factory=dict)
    # Environment variables with the key that signs completion tokens, and after a comma with earlier ones.
    completion_key_env: str | None = None
    completion_seconds: float = Field(default=7 * 86400.0, gt=0)
    send_events: bool = False  # task events for Flower
    heartbeat_file: Path | None = None  # touched every few seconds, for a health check
    anchor_file: Path | None = None  # the sweeper writes the audit's chain heads there; best on other storage
    anchor_key_env: str | None = None  # environment variable with the key that signs them
    anchor_key_file: Path | None = None  # or the file with it
    anchor_seconds: float = Field(default=60.0, gt=0)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Raises ConfigError that names the variable. Unknown variables of our prefix are left to their owners."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name in cls.model_fields:
            raw = environ.get(PREFIX + name.upper())
            if raw:
                values[name] = _parse(name, raw)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = PREFIX + ".".join(str(part) for part in first["loc"]).upper()
            raise ConfigError("BAD_SETTING", f"{where}: {first['msg']}") from None

    def require_database(self) -> str:
        return sqlalchemy_url(self._require("database_url"))

    def require_broker(self) -> str:
        return self._require("broker_url")

    def _require(self, name: str) -> str:
        value: str | None = getattr(self, name)
        if value is None:
            raise ConfigError("MISSING_SETTING", f"{PREFIX}{name.upper()} is not set; `turnqueue up` starts a server")
        return value


def sqlalchemy_url(url: str) -> str:
    """`postgresql://` and `postgres://` mean psycopg 3 here."""
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{rest}"
    if scheme != "postgresql+psycopg":
        raise ConfigError("BAD_SETTING", f"{PREFIX}DATABASE_URL: scheme {scheme!r} is not postgresql")
    return url


def _parse(name: str, raw: str) -> Any:
    if name in ("modules", "profiles"):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if name == "senders":
        try:
            return json.loads(raw)
        except ValueError:
            raise ConfigError("BAD_SETTING", f"{PREFIX}SENDERS: not valid JSON") from None
    return raw
