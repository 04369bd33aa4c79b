"""From ground truth to operations: what each one is asked, for whom, and what the scripted model will propose."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.replay.workload import AuthzCase, Call, ErrorCase, Task

CLOSING = "Is there anything else I can help you with?"
STAFF = "staff"


@dataclass(frozen=True, slots=True)
class Job:
    """One operation to run. `id` (letters, digits, `_.-`) names the script too; `waves` are the calls of each turn."""

    id: str
    world: str
    subject: str
    scopes: frozenset[str]
    text: str
    waves: tuple[tuple[Call, ...], ...]
    closing: str = CLOSING

    @property
    def input(self) -> str:
        return f"[script:{self.id}] {self.text}"

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for wave in self.waves for call in wave)

    def script(self) -> dict[str, Any]:
        """`{"id", "turns": [{"calls": [{"name", "arguments"}]}, ..., {"text"}]}`."""
        turns: list[dict[str, Any]] = [{"calls": list(map(_scripted, wave))} for wave in self.waves]
        return {"id": self.id, "turns": [*turns, {"text": self.closing}]}


def _scripted(call: Call) -> dict[str, Any]:
    if call.text is None:
        return {"name": call.tool, "arguments": call.arguments}
    return {"name": call.tool, "arguments_text": call.text, "call_id": call.call_id}


def task_job(task: Task, any_scope: str, world: str | None = None) -> Job:
    """A task in a world of its own, or in a shared one.

    The customer may use only their own records. Where the ground truth itself identifies nobody, or uses records of
    others as well, the operation runs for staff.
    """
    others = task.owners - {task.subject}
    scopes = frozenset({any_scope}) if task.subject is None or others else frozenset[str]()
    name = task.id if world is None else f"{world}.{task.id}"
    return Job(name, world or task.id, task.subject or STAFF, scopes, task.text, task.waves)


def setup_jobs(cases: Iterable[ErrorCase], any_scope: str) -> list[Job]:
    """What must have happened before the cases' calls, each in an operation of its own."""
    return [
        Job(f"{case.id}.setup", case.id, STAFF, frozenset({any_scope}), "Prepare.", tuple((c,) for c in case.setup))
        for case in cases
        if case.setup
    ]


def error_job(case: ErrorCase, any_scope: str) -> Job:
    """Error cases name no customer: they are about the tools' own rules."""
    return Job(case.id, case.id, STAFF, frozenset({any_scope}), "Do this.", ((case.call,),))


def authz_job(case: AuthzCase) -> Job:
    return Job(case.id, case.id, case.subject, frozenset(), "Do this.", ((case.call,),))
