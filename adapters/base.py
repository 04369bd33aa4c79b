"""The one interface between Turnqueue and a provider's wire format: pure translation, no client, no retry, no clock.

An adapter builds one HTTP request from a neutral `ModelRequest` and turns one HTTP response (or one finished stream)
into a neutral `Reply`.  Nothing provider-specific leaks past this package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import JsonObject, TranscriptItem


class Completion(StrEnum):
    """What one reply amounts to. Anything unknown is API_FAILURE, never FINAL_TEXT or TOOL_PROPOSALS."""

    FINAL_TEXT = "FINAL_TEXT"
    TOOL_PROPOSALS = "TOOL_PROPOSALS"
    REFUSAL = "REFUSAL"
    TRUNCATED = "TRUNCATED"
    PAUSED = "PAUSED"
    API_FAILURE = "API_FAILURE"


class Boundary(StrEnum):
    """Who must act on a failed model request; these are the FAILED reasons of an operation."""

    PROVIDER_AUTH = "PROVIDER_AUTH"  # key, permission, billing
    PROVIDER_CONFIG = "PROVIDER_CONFIG"  # our request or the deployment is wrong
    PROVIDER_UNAVAILABLE = "PROVIDER_UNAVAILABLE"  # overload, outage, transport
    PROTOCOL = "PROTOCOL"  # the reply breaks the wire contract, or the model wrote an unusable call


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gave no usable reply. `code` is stable and ours; provider text is kept out of it."""

    boundary: Boundary
    code: str
    retryable: bool
    retry_after: float | None = None  # seconds the provider asked us to wait


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. Unknown is None, never 0. `cached` is part of `input`, `reasoning` part of `output`."""

    input: int | None = None
    cached: int | None = None
    output: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """One eligible tool as the model sees it; `parameters` is canonical JSON Schema 2020-12."""

    name: str
    description: str
    parameters: JsonObject
    strict: bool = True


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`named` takes one name, `allowed` a subset (with `required` saying whether one of them must be called)."""

    mode: Literal["auto", "required", "none", "named", "allowed"] = "auto"
    names: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One turn's request in neutral form.

    `parameters` are passed to the provider as they are (temperature, reasoning effort, ...); they come from the
    profile, never from the model or the caller.  `previous_response_id` set means: the provider keeps the earlier
    items, send only what follows that response (its reply was asked for with `server_state`).
    """

    model: str
    instructions: str
    items: tuple[TranscriptItem, ...]
    tools: tuple[ToolDeclaration, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel: bool = True
    max_output_tokens: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    output_schema: JsonObject | None = None
    server_state: bool = False  # the provider keeps this reply, so that the next request can name it
    previous_response_id: str | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send it. `api_key` is resolved from its reference just before sending and never printed."""

    base_url: str  # OpenAI: ".../v1"; Azure: the resource's endpoint; Gemini: see its module
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    azure_deployment: str | None = None  # set: Azure's URL and `api-key` header
    azure_api_version: str | None = None  # None with a deployment: the `/openai/v1` form


@dataclass(frozen=True, slots=True)
class HttpRequest:
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status, headers (names in lower case) and the whole body, already capped in size by the transport."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply in neutral form. `calls` is non-empty only with TOOL_PROPOSALS; `failure` only with API_FAILURE.

    `items` are the provider's output items to be carried back unchanged in the next request (see `ModelReply`).
    """

    completion: Completion
    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    refusal: str | None = None
    raw_reason: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    model: str | None = None
    usage: Usage = Usage()
    items: tuple[JsonObject, ...] = ()
    failure: Failure | None = None


class Progress(NamedTuple):
    """What an observer may show while a reply streams in. Never a reason to execute anything."""

    kind: Literal["text", "reasoning", "refusal", "call"]
    text: str = ""  # the new piece of text; empty for a call, whose arguments are not shown
    name: str | None = None  # the tool that the model is preparing to call


class Accumulator(Protocol):
    """Collects one streamed reply. Pure: no I/O, no clock; any split of the bytes gives the same result."""

    done: bool  # the explicit completion event has been seen; what follows is not needed

    def feed(self, chunk: bytes) -> Sequence[Progress]:
        """Take the next bytes of the body. Never raises: a stream that breaks the contract fails in `finish`."""

    def finish(self) -> Reply:
        """The body has ended or was cut here. Without the completion event: API_FAILURE, and nothing is proposed."""


class Adapter(Protocol):
    """`api` names the wire format (profiles choose by it); `revision` changes whenever the translation does."""

    api: str
    revision: str

    def to_request(self, request: ModelRequest, endpoint: Endpoint) -> HttpRequest: ...

    def from_response(self, response: HttpResponse, request: ModelRequest) -> Reply: ...

    def accumulator(self, head: HttpResponse, request: ModelRequest) -> Accumulator:
        """For the body of a successful streamed response; `head` has its status and headers and an empty body.

        A body that turns out to be one JSON document (a server that ignores `stream`) is read as that.
        """
