"""The nouns of the pure core: frozen values, no I/O, no clock, no randomness."""

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What running a tool does to the outside world."""

    READ = "read"  # changes nothing; may be repeated
    OVERWRITE = "overwrite"  # same end state when repeated
    CREATE = "create"  # repeating it makes a second effect

    @property
    def writes(self) -> bool:
        return self is not Effect.READ


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """One tool call as the model wrote it: untrusted. `call_id` is the provider's and identifies nothing by itself."""

    call_id: str
    name: str
    arguments_text: str
