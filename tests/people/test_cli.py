"""The same verbs at the command line, as a process of its own."""

from pathlib import Path

import pytest

from policy.profile import ApprovalRule
from tests.cli.conftest import Shell
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import CAREFUL, at_approval, outcomes, question, submit


@pytest.fixture
def shell(hall: Desk, tmp_path: Path, broker_url: str) -> Shell:
    settings = hall.app.settings
    return Shell(
        tmp_path,
        {
            "TURNQUEUE_DATABASE_URL": str(settings.database_url), "TURNQUEUE_BROKER_URL": broker_url,
            "TURNQUEUE_MODULES": "tests.people.scene",
        },
    )  # fmt: skip


def test_approve_one_of_two(hall: Desk, shell: Shell) -> None:
    operation, asked = at_approval(hall, calls(CAREFUL), DONE, rules=[ApprovalRule(approvers=2, separate=True)])
    shown = shell("show", operation).out
    assert asked in shown
    shell("approve", asked, "--by", "alice").failed(4, "SAME_PRINCIPAL")
    first = shell("approve", operation, "--by", "ann", "--json").json
    assert (first["state"], first["missing"]) == ("PENDING", 1)
    shell("approve", asked, "--by", "ann").failed(4, "ALREADY_DECIDED")
    assert shell("approve", asked, "--by", "ben").out == f"{asked} APPROVED by ben\n"
    assert hall.run(operation).state == "COMPLETED"


def test_approve_with_an_edit(hall: Desk, shell: Shell) -> None:
    operation, asked = at_approval(hall, calls(CAREFUL), DONE)
    shell("approve", asked, "--arguments", "{").failed(5, "BAD_FIELD")
    shell("approve", asked, "--arguments", "[]").failed(5, "BAD_FIELD")
    shell("approve", asked, "--arguments", '{"size": "x"}').failed(5, "BAD_ARGUMENTS")
    done = shell("approve", asked, "--by", "boss", "--arguments", '{"text": "a", "size": 1}', "--json").json
    assert done["action_id"] == hall.actions(operation)[1].action_id
    assert hall.run(operation).state == "COMPLETED"
    assert outcomes(hall, operation) == ["EDITED", "SUCCEEDED"]
    assert "EDITED by boss" in shell("show", operation).out


def test_answer(hall: Desk, shell: Shell) -> None:
    ask = calls(call("ask_user", question="Which day?", choices=["Monday", "Friday"]))
    again = calls(call("ask_user", question="How many?", answer_schema={"type": "integer"}))
    operation = submit(hall, ask, again, DONE)
    hall.advance(operation)
    asked = question(hall, operation).question_id
    assert "Which day?" in shell("show", operation).out
    shell("answer", asked).failed(5, "BAD_FIELD")
    shell("answer", asked, "Sunday").failed(5, "BAD_ANSWER")
    assert shell("answer", asked, "Friday", "--by", "alice").out == f"{asked} ANSWERED by alice\n"
    hall.advance(operation)
    assert shell("answer", operation, "--json-answer", "3", "--json").json["state"] == "ANSWERED"
    assert hall.run(operation).state == "COMPLETED"
    shell("answer", "ask_nothing", "x").failed(3, "UNKNOWN_QUESTION")


def test_amend(hall: Desk, shell: Shell) -> None:
    operation, _ = at_approval(hall, calls(CAREFUL), DONE)
    assert shell("amend", operation, "--input", "Other.", "--json").json == {"operation_id": operation, "revision": 2}
    assert hall.run(operation).state == "COMPLETED"
    shell("amend", operation, "--input", "Late.").failed(4, "ALREADY_ENDED")
