"""Turns whose model streams: the same records as otherwise, and progress for whoever looks."""

from typing import Any

import pytest

from adapters.base import Progress
from policy.profile import Model
from tests.orchestrator.desk import DONE, Desk, call, calls

LOOK = calls(call("look", text="a"))


def submit(desk: Desk, script: str, *turns: dict[str, Any]) -> str:
    """An operation whose model streams `turns`."""
    model = Model(api="openai-responses", name=script, base_url="$LAB_MODEL_URL", stream=True, idle_seconds=5)
    operation = desk.submit(model=model)
    desk.model.add({"id": script, "turns": list(turns)})
    desk.scripts[operation] = script
    desk.lab.will(json={"id": "7", "text": "blue"})
    return operation


def test_a_streamed_conversation_and_its_observer(desk: Desk) -> None:
    seen: list[tuple[str, Progress]] = []
    desk.app.observe = lambda operation, progress: seen.append((operation, progress))
    operation = submit(desk, "streamed", LOOK, DONE)
    view = desk.run(operation)
    assert (view.state, view.final_text, view.turns) == ("COMPLETED", "Done.", 2)
    assert all(body["stream"] is True for body in desk.requests(operation))
    assert {of for of, _ in seen} == {operation}
    assert [progress.name for _, progress in seen if progress.kind == "call"] == ["look"]
    assert "".join(progress.text for _, progress in seen if progress.kind == "text") == "Done."


@pytest.mark.parametrize("cut", ["half", "eof"])
def test_a_cut_stream_dispatches_nothing_and_is_asked_again(desk: Desk, cut: str) -> None:
    operation = submit(desk, f"cut-{cut}", {**LOOK, "fault": {"cut": cut, "after": -2, "times": 1}}, DONE)
    view = desk.run(operation)
    assert (view.state, len(view.calls), len(desk.requests(operation))) == ("COMPLETED", 1, 3)
    assert len(desk.lab.seen) == 1
