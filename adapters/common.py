"""What every wire format needs to say a neutral request: profile parameters, tool choice, history order."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.base import ToolChoice
from adapters.names import ToolNames
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.transcript import JsonObject, ModelReply, Notice, Observation, TranscriptItem, UserText

NOTICE_PREFIX = "[Notice from the host application, not from the user] "

# No tool name may contain these, so a call that carries one of them resolves to nothing in the registry.
FOREIGN_MARK = "::"


def merge_parameters(body: JsonObject, parameters: Mapping[str, Any], reserved: frozenset[str]) -> None:
    """The profile's parameters win over our defaults, None removes one; what the loop owns is a ConfigError."""
    for name, value in parameters.items():
        if name in reserved:
            raise ConfigError("BAD_PARAMETERS", f"profile parameter {name!r} is set by Turnqueue; remove it")
        if value is None:
            body.pop(name, None)
        elif isinstance(value, dict) and isinstance(body.get(name), dict):
            body[name] = {**value, **body[name]}
        else:
            body[name] = value


def hosted_tools(parameters: Mapping[str, Any]) -> list[JsonObject]:
    """Provider-side tools that the profile adds under `tools` (web search, ...); functions come only from us."""
    tools = parameters.get("tools") or []
    for hosted in tools:
        if not isinstance(hosted, dict) or hosted.get("type") in (None, "function", "custom"):
            raise ConfigError("BAD_PARAMETERS", "profile parameter 'tools' may only list provider-side tools")
    return list(tools)


def check_choice(choice: ToolChoice, names: ToolNames) -> None:
    """Raises ConfigError for a choice that names no tool of the request, or not as many as its mode takes."""
    wrong = [name for name in choice.names if name not in names]
    if wrong:
        raise ConfigError("BAD_TOOL_CHOICE", f"tool_choice names {wrong[0]!r}, which this request does not offer")
    if (choice.mode == "named" and len(choice.names) != 1) or (choice.mode == "allowed" and not choice.names):
        raise ConfigError("BAD_TOOL_CHOICE", f"tool_choice {choice.mode!r} has {len(choice.names)} names")


def notice_text(notice: Notice) -> str:
    return NOTICE_PREFIX + notice.text


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model reply with the results of its calls, which must follow it directly, and what was said after."""

    reply: ModelReply | None
    results: tuple[Observation, ...]
    others: tuple[UserText | Notice, ...]


def exchanges(items: Iterable[TranscriptItem]) -> Iterator[Exchange]:
    """The transcript in the order the APIs want: reply, all its results in call order, then other messages.

    Raises ValueError for a result without its call or a call without its result: the provider would answer 400.
    """
    reply: ModelReply | None = None
    rest: list[Observation | UserText | Notice] = []
    for item in items:
        if isinstance(item, ModelReply):
            yield _exchange(reply, rest)
            reply, rest = item, []
        else:
            rest.append(item)
    yield _exchange(reply, rest)


def _exchange(reply: ModelReply | None, rest: list[Observation | UserText | Notice]) -> Exchange:
    found: dict[str, list[Observation]] = {}
    for item in rest:
        if isinstance(item, Observation):
            found.setdefault(item.call_id, []).append(item)
    order = list(dict.fromkeys(call.call_id for call in reply.calls)) if reply else []
    if set(order) != found.keys():
        odd = sorted(set(order) ^ found.keys())[0]
        raise ValueError(f"call {odd!r} and its result do not stand together in the transcript")
    results = tuple(result for call_id in order for result in found[call_id])
    return Exchange(reply, results, tuple(item for item in rest if not isinstance(item, Observation)))


def unseen(items: tuple[TranscriptItem, ...], kept: str | None) -> tuple[TranscriptItem, ...]:
    """What a provider that keeps the reply `kept` does not have yet, led by that reply; everything for None."""
    if kept is None:
        return items
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, ModelReply) and item.response_id == kept:
            return items[index:]
    raise ValueError(f"previous response {kept!r} is not in the transcript")
