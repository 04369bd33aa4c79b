"""Recorded conversations of a real model, as scripts, and what must come of them.

A conversation goes back and forth between customer and agent; an operation has one input. It is played as one operation
whose model turns are the recorded messages that call tools, in order, with the recorded argument texts: what the
customer said in between and what the agent only said is left out, as no result depends on it. The first message of the
customer is the input, the agent's last words end it. The recorded call ids are used where the wire format is of the
family they come from (OpenAI's): that model used some ids again, which other services never do, and refuse.

What each call must lead to is worked out here by the domain's pure functions on a plain copy of the state, under
Turnqueue's rules: a tool that does not exist, arguments outside the schema and somebody else's record are refused,
and a write that has succeeded is not done again when it is proposed again.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from adapters.arguments import ArgumentError, parse_arguments
from examples.worlds.overlay import Base
from examples.worlds.world import Record, RecordKey, Refusal
from tests.replay.domains import Domain
from tests.replay.jobs import CLOSING, Job
from tests.replay.workload import Call, Workload

NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Recording:
    """`results` are the texts that the tools gave back then; `identical`: the data is still the same today."""

    id: str
    waves: tuple[tuple[Call, ...], ...]
    results: tuple[str, ...]
    first: str
    closing: str
    identical: bool

    @classmethod
    def of(cls, data: dict[str, Any]) -> "Recording":
        messages = data["messages"]
        said = [m["content"] for m in messages if m["role"] == "assistant" and m["content"]]
        return cls(
            data["id"],
            tuple(tuple(map(_call, m["tool_calls"])) for m in messages if m.get("tool_calls")),
            tuple(m["content"] for m in messages if m["role"] == "tool"),
            next(m["content"] for m in messages if m["role"] == "user"),
            said[-1] if said else CLOSING,
            data["replays_identically_on_benchmark_code"],
        )

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for wave in self.waves for call in wave)

    def with_ids_of_the_service(self) -> "Recording":
        """The same calls without the recorded ids."""
        return replace(self, waves=tuple(tuple(replace(call, call_id=None) for call in wave) for wave in self.waves))

    def job(self, subject: str) -> Job:
        """The customer of the conversation, with no rights but their own."""
        return Job(self.id, self.id, subject, frozenset(), self.first, self.waves, self.closing)


def _call(recorded: dict[str, Any]) -> Call:
    function = recorded["function"]
    return Call(function["name"], _object(function["arguments"]), function["arguments"], recorded["id"])


def _object(text: str) -> Any:
    """The arguments, or the text itself where it is no JSON: no schema takes it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def load(folder: Path) -> tuple[Recording, ...]:
    """All conversations of a folder, from `recorded_*.jsonl`; most folders have none."""
    lines = [line for path in sorted(folder.glob("recorded_*.jsonl")) for line in path.read_text().splitlines()]
    return tuple(Recording.of(json.loads(line)) for line in lines)


@dataclass(frozen=True, slots=True)
class Told:
    """What the model must be told about one call: exactly one of a result, the domain's refusal and Turnqueue's."""

    call: Call
    data: Any = None
    error: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """`effects` is what the ledger must hold, as in `checks.effects_wanted`."""

    subject: str
    told: tuple[Told, ...]
    digest: str
    effects: Counter[tuple[str, str]]


@dataclass(slots=True)
class PlainWorld:
    """A world in memory, to work out on what the real one must look like."""

    tables: Mapping[str, Mapping[str, Record]]
    changed: dict[RecordKey, Record] = field(default_factory=dict)

    def get(self, table: str, key: str) -> Record | None:
        return self.changed.get((table, key)) or self.tables.get(table, {}).get(key)

    def put(self, table: str, key: str, record: Record) -> None:
        self.changed[table, key] = record

    def all(self, table: str) -> Iterator[tuple[str, Record]]:
        own = {key: record for (of, key), record in self.changed.items() if of == table}
        yield from {**self.tables.get(table, {}), **own}.items()


class Oracle:
    """Works out what must come of a conversation. Pure but for a cache."""

    def __init__(self, domain: Domain, workload: Workload) -> None:
        self._domain = domain
        self._base = Base((t, key, r) for t, records in workload.state().items() for key, r in records.items())
        self._schemas = {tool["name"]: Draft202012Validator(tool["parameters"]) for tool in workload.tools}
        self._writes = {tool["name"] for tool in workload.tools if tool["effect"] == "write"}

    def expect(self, recording: Recording) -> Expected:
        world = PlainWorld(self._base.tables)
        subject, done = self._subject(recording), dict[tuple[str, str], Told]()
        told = []
        for call in recording.calls:
            before = done.get(call.identity)
            answer = replace(before, call=call) if before else self._told(world, call, subject)
            if call.tool in self._writes and answer.error is None and answer.code is None:
                done[call.identity] = answer
            told.append(answer)
        return Expected(subject, tuple(told), self._base.digest_with(world.changed), Counter(done.keys()))

    def _subject(self, recording: Recording) -> str:
        """Whose conversation it is: the owner of the first record that is used."""
        world = PlainWorld(self._base.tables)
        valid = (call for call in recording.calls if call.tool in self._schemas and self._valid(call))
        owners = (self._domain.owner(world, call.arguments) for call in valid)
        return next((owner for owner in owners if owner is not None), NOBODY)

    def _valid(self, call: Call) -> bool:
        return self._schemas[call.tool].is_valid(call.arguments)

    def _told(self, world: PlainWorld, call: Call, subject: str) -> Told:
        if call.tool not in self._schemas:
            return Told(call, code="UNKNOWN_TOOL")
        try:
            parse_arguments(call.text or "")
        except ArgumentError as error:
            return Told(call, code=error.code)
        if not self._valid(call):
            return Told(call, code="INVALID_ARGUMENTS")
        if self._domain.owner(world, call.arguments) not in (None, subject):
            return Told(call, code="FORBIDDEN_RESOURCE")
        try:
            return Told(call, data=self._domain.apply(world, call.tool, call.arguments))
        except Refusal as refusal:
            return Told(call, error=refusal.text)
