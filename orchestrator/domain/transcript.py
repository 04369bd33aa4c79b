"""What the model is shown, in our own words: an append-only list of items, each of one kind.

Stored items only ever gain kinds and optional fields; a stored item keeps its meaning for the life of its operation.
"""

from dataclasses import dataclass
from typing import Any

from orchestrator.domain.model import ProposedCall

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserText:
    """What the caller asked, or answered to a clarification."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Words of the host itself, for example that a required tool has not succeeded yet."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One reply of the model.

    `items` are the provider's own items, opaque to us, carried back unchanged by the adapter whose `api` they name.
    `text` and `calls` say the same in neutral form, for an adapter of another API and for people.
    """

    api: str
    response_id: str | None
    text: str
    calls: tuple[ProposedCall, ...] = ()
    items: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model is told about one of its calls; `output` is the text of the `model_result` projection."""

    call_id: str
    name: str
    output: str
    is_error: bool = False


TranscriptItem = UserText | Notice | ModelReply | Observation
