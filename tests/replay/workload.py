"""A workload folder as values: tasks with their ground truth, batches, error cases and authorization cases.

The folders have one shape for every domain; nothing here knows what a tool does.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rfc8785

Json = dict[str, Any]


def digest(value: Any) -> str:
    """SHA-256, hex, of the RFC 8785 form."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


@dataclass(frozen=True, slots=True)
class Call:
    """`text` and `call_id` where a recording says exactly how the model wrote it."""

    tool: str
    arguments: Json
    text: str | None = None
    call_id: str | None = None

    @classmethod
    def of(cls, data: Json) -> "Call":
        return cls(data["name"], data["arguments"])

    @property
    def identity(self) -> tuple[str, str]:
        """As the effects ledger names it: tool and digest of the arguments."""
        return self.tool, digest(self.arguments)


@dataclass(frozen=True, slots=True)
class Action:
    """One call of the ground truth. Exactly one of `result_digest` and `error` is set."""

    call: Call
    wave: int
    writes: bool
    result_digest: str | None
    error: str | None

    @classmethod
    def of(cls, data: Json) -> "Action":
        expect = data["expect"]
        return cls(
            Call.of(data), data["wave"], data["effect"] == "write", expect.get("result_digest"), expect.get("error")
        )


@dataclass(frozen=True, slots=True)
class Task:
    """`subject` is None where the conversation never identifies a user; `owners` are those whose records it uses."""

    id: str
    text: str
    subject: str | None
    owners: frozenset[str]
    actions: tuple[Action, ...]
    final_digest: str

    @classmethod
    def of(cls, data: Json) -> "Task":
        return cls(
            data["id"],
            data["instruction"],
            data["principal_user_id"],
            frozenset(data.get("record_owner_ids") or ()),
            tuple(map(Action.of, data["actions"])),
            data["final"]["db_digest"],
        )

    @property
    def waves(self) -> tuple[tuple[Call, ...], ...]:
        """The calls of each turn, in order."""
        numbers = sorted({action.wave for action in self.actions})
        return tuple(tuple(a.call for a in self.actions if a.wave == number) for number in numbers)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tasks that use different records of one state, and the digest of the state after all of them."""

    tasks: tuple[Task, ...]
    final_digest: str

    @classmethod
    def of(cls, data: Json, tasks: tuple[Task, ...]) -> "Batch":
        by_id = {task.id: task for task in tasks}
        return cls(tuple(by_id[i] for i in data["task_ids"]), data["final_db_digest"])


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """`call` after `setup` is refused with exactly `error`; `valid` says whether its arguments match the schema."""

    id: str
    setup: tuple[Call, ...]
    call: Call
    valid: bool
    error: str
    digest: str

    @classmethod
    def of(cls, data: Json) -> "ErrorCase":
        return cls(
            data["id"],
            tuple(map(Call.of, data["setup"])),
            Call.of(data["call"]),
            data["arguments_match_schema"],
            data["expect"]["error"],
            data["expect"]["db_digest_before"],
        )


@dataclass(frozen=True, slots=True)
class AuthzCase:
    """`call` uses somebody else's record: refused for `subject` before anything starts."""

    id: str
    subject: str
    call: Call
    digest: str

    @classmethod
    def of(cls, data: Json) -> "AuthzCase":
        return cls(data["id"], data["principal_user_id"], Call.of(data["call"]), data["expect"]["db_digest"])


@dataclass(frozen=True, slots=True)
class Workload:
    domain: str
    folder: Path
    base_digest: str
    tasks: tuple[Task, ...]
    batch: Batch
    volume: tuple[Task, ...] = ()
    volume_batch: Batch | None = None
    errors: tuple[ErrorCase, ...] = ()
    authz: tuple[AuthzCase, ...] = ()
    tools: tuple[Json, ...] = field(default=(), repr=False)

    def state(self) -> dict[str, dict[str, Json]]:
        """The starting state, `{table: {key: record}}` in file order."""
        state: dict[str, dict[str, Json]] = _read(self.folder / "db.json")
        return state

    @classmethod
    def load(cls, folder: Path) -> "Workload":
        """Read a folder. Raises OSError, or KeyError where a file has another shape."""
        main = _read(folder / "tasks.json")
        tasks = tuple(map(Task.of, main["tasks"]))
        volume: tuple[Task, ...] = ()
        volume_batch = None
        if (folder / "volume_tasks.json").exists():
            data = _read(folder / "volume_tasks.json")
            volume = tuple(map(Task.of, data["tasks"]))
            volume_batch = Batch.of(data["batch"], volume)
        return cls(
            domain=main["domain"],
            folder=folder,
            base_digest=main["base"]["db_digest"],
            tasks=tasks,
            batch=Batch.of(_read(folder / "batch.json"), tasks),
            volume=volume,
            volume_batch=volume_batch,
            errors=tuple(map(ErrorCase.of, _read(folder / "error_cases.json"))),
            authz=tuple(map(AuthzCase.of, _read(folder / "authz_cases.json"))),
            tools=tuple(_read(folder / "tools.json")),
        )


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
