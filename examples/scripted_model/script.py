"""Scripts: what the model says in each turn of a conversation, and how the connection misbehaves.

{"id": "refund", "turns": [
    {"calls": [{"name": "draft_refund", "arguments": {"order_id": "A1"}}]},
    {"calls": [{"name": "submit_refund", "arguments": {"draft_id": "$result.0.draft_id"}}],
     "fault": {"status": 503, "headers": {"retry-after": "1"}, "times": 1}},
    {"text": "Refunded."}]}
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_REFERENCE = re.compile(r"\$result\.(\d{1,4})\.(.+)")
_MARK = re.compile(r"\[script:([A-Za-z0-9_.-]+)\]")


class ScriptError(ValueError):
    """The script cannot be played for this transcript; the message says what is missing."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Call(_Part):
    """`arguments` is an object, in which a string value "$result.<call>.<field>" stands for one field of the JSON
    output of an earlier call of the transcript (counted from 0; dots go deeper); `arguments_text` is sent as it is."""

    name: str
    arguments: dict[str, Any] | None = None
    arguments_text: str | None = None
    call_id: str | None = None

    @model_validator(mode="after")
    def _one_form(self) -> "Call":
        if self.arguments is not None and self.arguments_text is not None:
            raise ValueError("give arguments or arguments_text, not both")
        return self

    def text(self, outputs: Sequence[str]) -> str:
        """The argument text; `outputs` are the results of the transcript's calls. Raises ScriptError."""
        if self.arguments_text is not None:
            return self.arguments_text
        return json.dumps(_insert(self.arguments or {}, outputs))


class Fault(_Part):
    """What goes wrong before the turn's normal reply. `times`: only the first N times that this turn of this script is
    asked, by anyone; None means always. A `delay` (seconds) alone is followed by the normal reply.

    A stream goes wrong after `after` of its events (negative: so many before its end; None: half of them): `cut`
    "half" breaks the connection, "eof" ends the body as if it were whole, `error` sends an error event and ends,
    `pause` waits (seconds) and goes on. `chunk`: the stream is sent in pieces of so many bytes. A plain reply is cut
    in half, or is the error in a 200."""

    delay: float = Field(default=0.0, ge=0)
    status: int | None = Field(default=None, ge=300, le=599)
    body: Any = None
    headers: dict[str, str] = Field(default_factory=dict)
    cut: Literal["before", "half", "eof"] | None = None
    error: bool = False
    after: int | None = None
    pause: float = Field(default=0.0, ge=0)
    chunk: int | None = Field(default=None, ge=1)
    times: int | None = Field(default=None, ge=0)


class Turn(_Part):
    """Exactly one of `calls`, `text` (a final answer), `refusal` and `truncated` (the text so far).

    `reasoning` comes before it, in the format's own items, where the format has them."""

    calls: tuple[Call, ...] | None = None
    text: str | None = None
    refusal: str | None = None
    truncated: str | None = None
    reasoning: str | None = None
    fault: Fault | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Turn":
        if sum(kind is not None for kind in (self.calls, self.text, self.refusal, self.truncated)) != 1:
            raise ValueError("a turn is exactly one of calls, text, refusal, truncated")
        return self


class Script(_Part):
    id: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    turns: tuple[Turn, ...]

    def turn(self, index: int) -> Turn:
        """The turn after `index` replies; past the end the model only says that it is done."""
        return self.turns[index] if index < len(self.turns) else EXHAUSTED


EXHAUSTED = Turn(text="(the script is over)")
TOOLS_OFF = Turn(text="(tools are off)")


def marked(text: str) -> str | None:
    """The script that a message names as `[script:ID]`."""
    found = _MARK.search(text)
    return found.group(1) if found else None


def _insert(value: Any, outputs: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {name: _insert(member, outputs) for name, member in value.items()}
    if isinstance(value, list):
        return [_insert(member, outputs) for member in value]
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else _field(int(found.group(1)), found.group(2), outputs)


def _field(index: int, path: str, outputs: Sequence[str]) -> Any:
    try:
        value = json.loads(outputs[index])
        for name in path.split("."):
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (IndexError, KeyError, TypeError, ValueError):
        raise ScriptError(f"the result of call {index} has no field {path!r}") from None
    return value
