"""What the tests of people's verbs have in common."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from executors.registry import Registry, ToolSpec
from orchestrator.domain.errors import Conflict, UserError
from orchestrator.views import ApprovalView, QuestionView
from policy.profile import ApprovalRule
from tests.orchestrator import lab
from tests.orchestrator.desk import Desk, call

_BY_NAME = {spec.name: spec for spec in lab.TOOLS}


def _like(known: str, /, **changes: Any) -> ToolSpec:
    return replace(_BY_NAME[known], **changes)


TOOLS = (
    _like("look", name="mail", untrusted=True),
    _like("write", name="post", untrusted=True),
)
NAMES = (*_BY_NAME, *(spec.name for spec in TOOLS), "ask_user")
CAREFUL = call("careful", text="a", size=5)


def submit(hall: Desk, *turns: Any, rules: Sequence[ApprovalRule] = (), **changed: Any) -> str:
    return hall.submit(*turns, tools=NAMES, approvals=tuple(rules), **changed)


def at_approval(hall: Desk, *turns: Any, rules: Sequence[ApprovalRule] = (), **changed: Any) -> tuple[str, str]:
    """(operation, approval) of one that waits for a person."""
    operation = submit(hall, *turns, rules=rules, **changed)
    assert hall.advance(operation).state == "WAITING_APPROVAL"
    return operation, hall.approval(operation)


def approval(hall: Desk, operation: str) -> ApprovalView:
    return hall.view(operation).approvals[-1]


def question(hall: Desk, operation: str) -> QuestionView:
    [only] = hall.view(operation).open_questions
    return only


def outcomes(hall: Desk, operation: str) -> list[str]:
    return [action.code or action.state for action in hall.actions(operation)]


def observations(hall: Desk, operation: str) -> list[Any]:
    return [made.observation for made in hall.view(operation).calls]


def refused(hall: Desk, operation: str, code: str, kind: str = "approval.refused") -> bool:
    """Whether the audit says that somebody was refused with this code."""
    return code in [entry["body"]["code"] for entry in hall.audit(operation, kind)]


def at_once(*verbs: Callable[[], Any]) -> list[bool]:
    """Run all at the same moment; which of them were not refused."""
    barrier, done = threading.Barrier(len(verbs)), [False] * len(verbs)

    def run(index: int) -> None:
        barrier.wait(60)
        try:
            verbs[index]()
            done[index] = True
        except (Conflict, UserError):
            pass

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(verbs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return done


def register(registry: Registry) -> None:
    """These tools as a module of TURNQUEUE_MODULES, for the command line."""
    registry.add(*lab.TOOLS, *TOOLS)
