"""The transcript as Anthropic's `messages`: alternating roles, each call's result first in the message after it."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from adapters.arguments import ArgumentError, parse_arguments
from adapters.common import Exchange, exchanges, notice_text
from adapters.documents import as_text, text_or_none
from adapters.names import ToolNames
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import JsonObject, ModelReply, Observation, TranscriptItem, UserText

CONTAINER = "container"  # our own kind of item: the container that a reply's code ran in
_ID = re.compile(r"[A-Za-z0-9_-]+")


def messages(items: Iterable[TranscriptItem], api: str, names: ToolNames) -> tuple[list[JsonObject], str | None]:
    """The messages, and the id of the last container. Replies of another `api` are rebuilt from their neutral form.

    Raises ValueError for a result without its call or a call without its result: the provider would answer 400.
    """
    history = _History(api, names)
    for exchange in exchanges(items):
        history.add(exchange)
    return history.messages, history.container


def unreadable(text: str) -> JsonObject:
    """What stands for arguments that are no object: the model reads its own words, and the API gets an object."""
    return {"INVALID_JSON": text}


class _History:
    def __init__(self, api: str, names: ToolNames) -> None:
        self._api = api
        self._names = names
        self._used: set[str] = set()  # the API wants each id of a call once in the whole conversation
        self.messages: list[JsonObject] = []
        self.container: str | None = None

    def add(self, exchange: Exchange) -> None:
        ids: dict[str, str] = {}
        if exchange.reply is not None and exchange.reply.api == self._api:
            blocks = _echo(exchange, exchange.reply)
            self._used.update(as_text(block.get("id")) for block in blocks)
            self._say("assistant", blocks)
            self.container = _container(exchange.reply) or self.container
        elif exchange.reply is not None:
            ids = self._ids(exchange.reply.calls)
            self._say("assistant", self._rebuilt(exchange.reply, ids))
        toolsets = _toolsets(exchange.reply)
        results = [_result(seen, ids.get(seen.call_id, seen.call_id), toolsets) for seen in exchange.results]
        said = [item.text if isinstance(item, UserText) else notice_text(item) for item in exchange.others]
        self._say("user", results + [{"type": "text", "text": text} for text in said if text.strip()])

    def _say(self, role: str, blocks: list[JsonObject]) -> None:
        """One message per change of role: a reply without any content leaves no message behind."""
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": list(blocks)})

    def _ids(self, calls: Iterable[ProposedCall]) -> dict[str, str]:
        """Ids of other providers, where this one would refuse them, become digests that stay the same every time."""
        ids: dict[str, str] = {}
        for call in calls:
            fits = _ID.fullmatch(call.call_id) and (call.call_id in ids or call.call_id not in self._used)
            place = f"{len(self.messages)}/{call.call_id}".encode("utf-8", "surrogatepass")
            ids.setdefault(call.call_id, call.call_id if fits else f"call_{hashlib.sha256(place).hexdigest()[:24]}")
        self._used.update(ids.values())
        return ids

    def _rebuilt(self, reply: ModelReply, ids: dict[str, str]) -> list[JsonObject]:
        blocks: list[JsonObject] = [{"type": "text", "text": reply.text}] if reply.text.strip() else []
        waiting = dict(ids)
        for call in reply.calls:
            identity = waiting.pop(call.call_id, None)  # a call id that the model wrote twice is answered once
            name, given = self._names.to_wire(call.name), _input(call.arguments_text)
            if identity is not None:
                blocks.append({"type": "tool_use", "id": identity, "name": name, "input": given})
        return blocks


def _input(text: str) -> JsonObject:
    try:
        return parse_arguments(text)
    except ArgumentError as error:
        return {} if error.code == "EMPTY" else unreadable(text)


def _echo(exchange: Exchange, reply: ModelReply) -> list[JsonObject]:
    """The reply's blocks as they came, less what the API refuses to read back.

    That is text of white space only, a second call with the same id, and, where something else than the model speaks
    next, a call that nobody answers (of a turn that was paused and then not resumed).
    """
    resumed = not exchange.results and not exchange.others
    waiting = {call.call_id for call in reply.calls}
    finished = {block.get("tool_use_id") for block in reply.items}
    kept: list[JsonObject] = []
    seen: set[Any] = set()
    for block in reply.items:
        kind, identity = as_text(block.get("type")), block.get("id")
        if kind == CONTAINER or (kind == "text" and not as_text(block.get("text")).strip()):
            continue
        if kind == "tool_use":
            if identity in seen or not (resumed or identity in waiting):
                continue
            seen.add(identity)
        elif kind.endswith("tool_use") and not (resumed or waiting or identity in finished):
            continue
        kept.append(block)
    return kept


def _container(reply: ModelReply) -> str | None:
    found = [text_or_none(item.get("id")) for item in reply.items if item.get("type") == CONTAINER]
    return found[-1] if found else None


def _toolsets(reply: ModelReply | None) -> dict[Any, str]:
    """The toolset of each call that belongs to one; its result must name it too."""
    items = reply.items if reply is not None else ()
    return {i.get("id"): i["toolset_name"] for i in items if i.get("type") == "tool_use" and i.get("toolset_name")}


def _result(observation: Observation, call_id: str, toolsets: dict[Any, str]) -> JsonObject:
    result: JsonObject = {"type": "tool_result", "tool_use_id": call_id, "content": observation.output}
    if observation.is_error:
        # The API refuses an error that says nothing.
        result |= {"content": observation.output or "error", "is_error": True}
    if call_id in toolsets:
        result["toolset_name"] = toolsets[call_id]
    return result
