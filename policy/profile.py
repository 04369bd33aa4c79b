"""Profile: the named, versioned recipe of an operation. Frozen by digest when an operation starts."""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import rfc8785
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from orchestrator.domain.errors import ConfigError

_CREDENTIAL_HEADER = re.compile(r"authorization|cookie|token|secret|password|credential|(?:^|[-_])key$", re.IGNORECASE)


class _Frozen(BaseModel):
    # Errors name the field and never the value: a profile with a key in the wrong place is quoted in no log.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # Fields that came after the first release. While one has its default it is left out of what is stored, so that
    # recipes keep their digests over an update (what was approved stays approved) and older workers can read them.
    later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _as_first_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        whole: dict[str, Any] = handler(self)
        for name in self.later:
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                del whole[name]
        return whole


class Budgets(_Frozen):
    """Limits of one operation; None means no limit of that kind. All are counted in the database."""

    turns: int = Field(default=12, ge=1)
    calls: int = Field(default=50, ge=0)
    calls_per_tool: dict[str, int] = Field(default_factory=dict)
    writes: int = Field(default=10, ge=0)
    input_tokens: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    cost_usd: float | None = Field(default=None, gt=0)
    wall_seconds: float = Field(default=3600.0, gt=0)
    parallel: int = Field(default=8, ge=1, description="calls of one operation in flight at once")
    input_seconds: float = Field(default=86400.0, gt=0, description="how long a question waits for its answer")
    result_bytes: int = Field(default=1_000_000, ge=256, description="total of all observations")
    no_progress_turns: int = Field(default=3, ge=1, description="turns that only repeat known calls before it stops")


class ApprovalRule(_Frozen):
    """When a person must approve, beyond what the tools themselves ask. Every field that is given must match.

    `tools`: empty for every tool that writes or carries data out. `over`: some named argument is greater than its
    number; an argument that the tool has and the call leaves out, or whose value is no number, matches too.
    """

    tools: tuple[str, ...] = ()
    over: dict[str, float] = Field(default_factory=dict)
    tenants: tuple[str, ...] = ()
    tainted: bool | None = Field(default=None, description="whether the model has been shown untrusted text")
    approvers: int = Field(default=1, ge=1, le=20, description="so many different people")
    separate: bool = Field(default=False, description="none of them may be the requester")
    ttl_seconds: float | None = Field(default=None, gt=0, le=30 * 86400)


class Prices(_Frozen):
    """US dollars per million tokens."""

    input: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0)
    output: float = Field(default=0.0, ge=0)


class Model(_Frozen):
    """Where the model is and how it is asked.

    `api` names an adapter.  `api_key_env` names the environment variable that holds the key (the key itself is never
    stored).  `base_url` and the values of `headers` may be `$NAME`: then the environment variable NAME of the worker
    gives it; a header that carries a credential must.
    """

    api: str
    name: str
    base_url: str
    api_key_env: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    azure_deployment: str | None = None
    azure_api_version: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    max_output_tokens: int | None = Field(default=None, ge=1)
    timeout: float = Field(default=120.0, gt=0, description="seconds for one request")
    stream: bool = False
    idle_seconds: float = Field(default=60.0, gt=0, description="the longest silence within a streamed reply")
    parallel_calls: bool = True
    server_state: bool = Field(default=False, description="continue by previous response id instead of resending")
    provider_tools_on_loss: Literal["ask_again", "stop"] = "ask_again"

    @field_validator("base_url")
    @classmethod
    def _no_password(cls, value: str) -> str:
        if "@" in urlsplit(value).netloc:
            raise ValueError("holds a password, and profiles are stored; name an environment variable: $NAME")
        return value

    @field_validator("headers")
    @classmethod
    def _by_reference(cls, value: dict[str, str]) -> dict[str, str]:
        for name, given in value.items():
            if _CREDENTIAL_HEADER.search(name) and not given.startswith("$"):
                raise ValueError(f"{name} holds a credential, and profiles are stored; name a variable: $NAME")
        return value


class Profile(_Frozen):
    """One recipe. `tools` is what its operations may use, by name: registered is not enabled."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")
    version: str = "1"
    model: Model
    instructions: str
    tools: tuple[str, ...] = ()
    budgets: Budgets = Budgets()
    prices: Prices = Prices()
    required_tools: tuple[str, ...] = ()
    approvals: tuple[ApprovalRule, ...] = ()
    tainted_writes: Literal["allow", "ask", "deny"] = "allow"
    output_schema: dict[str, Any] | None = Field(
        default=None, description="JSON Schema of the final answer, for example a pydantic model's model_json_schema()"
    )

    @field_validator("output_schema")
    @classmethod
    def _checked_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """No answer would fit a broken schema, and an answer is an object."""
        if value is None:
            return None
        from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415 - slow to import, and rarely needed

        try:
            Draft202012Validator.check_schema(value)
        except SchemaError as error:
            raise ValueError(f"no valid JSON Schema: {error.message}") from None
        if value.get("type", "object") != "object":
            raise ValueError("the answer must be an object: give the schema the type 'object'")
        return value

    @property
    def digest(self) -> str:
        """SHA-256 hex of the RFC 8785 form: the same recipe has the same digest everywhere."""
        return hashlib.sha256(b"profile-v1\0" + rfc8785.dumps(self.model_dump(mode="json"))).hexdigest()

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """Read a TOML file; raises ConfigError that names the file and the field."""
        try:
            return cls.model_validate(tomllib.loads(path.read_text()))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError("BAD_PROFILE", f"{path}: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError("BAD_PROFILE", f"{path}: {where}: {first['msg']}") from None
