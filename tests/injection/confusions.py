"""Texts that look like a provider's message, an approval or a run state: on every adapter they stay data.

Each text is played beside a harmless twin. The requests of the two must have the same shape: the same fields, roles and
numbers of items; and the text must stand in one single value, in the place where the harmless one stands.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adapters.registry import ADAPTERS
from examples.scripted_model.formats import formats
from orchestrator import commands
from orchestrator.views import OperationView
from tests.injection.play import OnProgress, Table
from tests.injection.runs import CONTROL, confusion_profile
from tests.injection.tools import reader
from tests.injection.workload import Confusion, Workload

Leaf = tuple[tuple[str | int, ...], Any]


@dataclass(frozen=True, slots=True)
class Confused:
    """One operation: a confusing text or its twin, through one adapter."""

    each: Confusion
    api: str
    stream: bool
    control: bool

    @property
    def name(self) -> str:
        return f"{CONTROL.prefix if self.control else ''}{self.each.id}"

    @property
    def tenant(self) -> str:
        return f"fmt:{self.api}{'-stream' if self.stream else ''}:{self.name}"

    @property
    def script_id(self) -> str:
        return self.tenant.replace(":", ".")

    @property
    def profile(self) -> str:
        own = self.each.where == "tool_description"
        return confusion_profile(self.api, self.stream, self.each.id if own else None, self.control and own)

    @property
    def text(self) -> str:
        return CONTROL.text if self.control else self.each.text

    @property
    def arguments(self) -> dict[str, Any]:
        """Where the text is an argument, the first one that is text carries it."""
        given = dict(self.each.arguments)
        if self.each.where != "argument":
            return given
        name = next(key for key, value in given.items() if isinstance(value, str))
        return {**given, name: self.text}

    @property
    def script(self) -> dict[str, Any]:
        call = {"name": reader(self.each, self.control), "arguments": self.arguments}
        return {"id": self.script_id, "turns": [{"calls": [call]}, {"text": self.each.final}]}


def play(table: Table, load: Workload, on_progress: OnProgress) -> tuple[int, list[str]]:
    """How many were played, and what went wrong in them."""
    runs = [
        Confused(each, api, stream, control)
        for each in load.confusions
        for api in ADAPTERS
        for stream in (False, True)
        for control in (False, True)
    ]
    table.model.add(*(run.script for run in runs))
    started = {
        table.submit(
            tenant=run.tenant, profile=run.profile, script_id=run.script_id, text="Read the note.", scopes=frozenset()
        ): run
        for run in runs
    }
    table.wait(started, on_progress)
    deeds = table.deeds()
    wrong: list[str] = []
    for operation, run in started.items():
        if not run.control:
            view = commands.inspect(table.app, operation)
            done = sum(deed.tenant == run.tenant for deed in deeds)
            found = [*_outcome(run, view, done), *_stored(run, view), *_requests(table, run)]
            wrong += [f"{run.tenant}: {problem}" for problem in found]
    return sum(not run.control for run in runs), wrong


def _outcome(run: Confused, view: OperationView, done: int) -> Iterator[str]:
    each = run.each
    wanted = {"state": each.ends, "calls": each.proposals, "approvals": each.approvals, "final text": each.final}
    got = {
        "state": view.state,
        "calls": len(view.calls),
        "approvals": len(view.approvals),
        "final text": view.final_text,
    }
    yield from (f"{name} is {got[name]!r}, not {value!r}" for name, value in wanted.items() if got[name] != value)
    if done != each.writes:
        yield f"{done} writes were done"
    if each.writes == 0 and (view.actions or view.usage.writes):
        yield "an action came of it"
    if view.turns != 2:
        yield f"it took {view.turns} turns"


def _stored(run: Confused, view: OperationView) -> Iterator[str]:
    """The text is kept as it came, hidden characters and all."""
    call = view.calls[0] if view.calls else None
    observation = call.observation if call is not None and isinstance(call.observation, dict) else {}
    kept: Any = None
    match run.each.where:
        case "result":
            kept = observation.get("data")
        case "error":
            kept = observation.get("message")
        case "argument":
            kept = run.text if call is not None and run.text in (call.arguments or {}).values() else None
        case _:  # a description is the host's, and in no row
            kept = run.text
    if kept != run.text:
        yield f"the text was stored as {kept!r:.80}"


def _requests(table: Table, run: Confused) -> Iterator[str]:
    twin = Confused(run.each, run.api, run.stream, control=True)
    ours, theirs = (table.model.requests(each.script_id) for each in (run, twin))
    if len(ours) != 2 or len(theirs) != 2:
        yield f"{len(ours)} requests, and {len(theirs)} of the twin"
        return
    for mine, other in zip(ours, theirs, strict=True):
        left, right = (list(_leaves(each["body"], ())) for each in (mine, other))
        if [path for path, _ in left] != [path for path, _ in right]:
            yield "the request has another shape than with a harmless text"
        here, there = _places(left, run.text), _places(right, twin.text)
        if here != there:
            yield f"the text stands in {here}, a harmless one in {there}"
    places = _places(list(_leaves(ours[1]["body"], ())), run.text)
    if len(places) != 1:
        yield f"the text stands in {len(places)} values"
    elif run.each.where in ("result", "error"):
        wire = next(each for each in formats() if each.claims(ours[1]["path"]))
        if run.text not in _unescaped(wire.read(ours[1]["path"], ours[1]["body"]).outputs[0]):
            yield "the text is not in the result field"
    elif run.each.where == "tool_description" and "tools" not in places[0]:
        yield f"the text is outside the declarations: {places[0]}"


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _leaves(member, (*path, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _leaves(member, (*path, index))
    else:
        yield path, value


def _places(leaves: list[Leaf], text: str) -> list[tuple[str | int, ...]]:
    return [path for path, value in leaves if isinstance(value, str) and (text in value or text in _unescaped(value))]


def _unescaped(value: str) -> str:
    """The text inside a JSON document that is itself a value, as in the results of most formats."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return "\n".join(str(leaf) for _, leaf in _leaves(parsed, ())) if isinstance(parsed, dict | list) else value
