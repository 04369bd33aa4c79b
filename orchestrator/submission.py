"""What a caller asks for. Light to import: a service that only enqueues needs no database library for it."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from orchestrator.domain.errors import UserError

MAX_INPUT = 256 * 1024  # characters; longer text belongs into a tool's reach, not into every request


def _storable(text: str) -> str:
    """PostgreSQL holds no NUL, and neither it nor HTTP can carry half of a surrogate pair."""
    if "\0" in text:
        raise ValueError("must not contain NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode text") from None
    return text


Text = Annotated[str, AfterValidator(_storable)]
Person = Annotated[Text, Field(min_length=1, max_length=256)]
Correction = Annotated[Text, Field(min_length=1, max_length=MAX_INPUT)]


class Submission(BaseModel):
    """What a caller asks for. Tenant, subject and scopes come from the caller's authentication, never from its text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: Text = Field(min_length=1, max_length=64)
    input: Text = Field(min_length=1, max_length=MAX_INPUT)
    tenant: str = Field(default="default", pattern=r"^[A-Za-z0-9_.@:-]{1,128}$")
    subject: Text = Field(default="local", min_length=1, max_length=256)
    scopes: frozenset[Annotated[Text, Field(min_length=1, max_length=128)]] = Field(frozenset(), max_length=64)
    idempotency_key: Text | None = Field(default=None, min_length=1, max_length=256)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The proof that came with a submission by message: consumed with it, once. `expires_at` is Unix time."""

    sender: str
    nonce: str
    expires_at: float


def submission(**fields: Any) -> Submission:
    """Build a Submission; raises UserError that names the field and what is wrong with it."""
    try:
        return Submission.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise UserError("BAD_FIELD", f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
