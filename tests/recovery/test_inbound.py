"""What the gate in front of Celery says of each forged message, without a broker; and that it lets ours through."""

import base64
import json
from typing import Any

import pytest

from orchestrator import inbound
from orchestrator.enqueue import MAX_SEALED
from tests.recovery.forgery import DROPPED, message

TASKS = {"turnqueue.advance", "turnqueue.submit", "tool.submit_refund"}
JUDGED = [
    pytest.param(code, make(), id=f"{code}-{number}")
    for code, kinds in DROPPED.items()
    if code != "MESSAGE_UNREADABLE"  # `transport` drops these: kombu cannot make a message of them
    for number, make in enumerate(kinds)
]


def judged(raw: bytes, *, as_text: bool = False) -> str | None:
    whole: dict[str, Any] = json.loads(raw)
    body: Any = base64.b64decode(whole["body"])
    if as_text:
        body = body.decode("utf-8", errors="replace")
    return inbound.problem(whole["headers"], whole["content-type"], whole["content-encoding"], body, TASKS)


@pytest.mark.parametrize(("code", "raw"), JUDGED)
def test_what_is_not_ours_is_dropped_with_its_code(code: str, raw: bytes) -> None:
    assert judged(raw) == code


@pytest.mark.parametrize("as_text", [False, True])
def test_ours_pass(as_text: bool) -> None:
    for raw in (
        message(),
        message("tool.submit_refund", ["act_06dz3k8w9q6g0f7t2v5r1x4y8m"]),
        message("turnqueue.submit", ["tq1." + "x" * MAX_SEALED]),
        message("turnqueue.submit", []),  # the envelope's own codes say what is wrong with it
    ):
        assert judged(raw, as_text=as_text) is None


def test_nothing_else_than_bytes_and_text_is_a_body() -> None:
    whole = json.loads(message())
    for body in (None, 7, ["op_x"], {"a": 1}):
        assert inbound.problem(whole["headers"], "application/json", "utf-8", body, TASKS) == "MESSAGE_MALFORMED"
