"""docs/states.md shows the tables that the code runs by."""

import pytest

from orchestrator.domain.action import ActionState
from orchestrator.domain.operation import OperationState
from scripts import diagrams
from tests.shared import ROOT


def test_the_diagrams_are_in_step() -> None:
    text = diagrams.STATES.read_text()
    assert diagrams.updated(text) == text, "run `python -m scripts.diagrams`"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers of 'operation'"):
        diagrams.updated("# States\n")


@pytest.mark.parametrize("state", [*OperationState, *ActionState])
def test_every_state_is_drawn_and_explained(state: str) -> None:
    text = diagrams.STATES.read_text()
    assert f"    {state} --> " in text or f" --> {state}" in text
    assert f"| {state} | " in text


@pytest.mark.parametrize(
    "word",
    [
        "operation",
        "profile",
        "turn",
        "call",
        "action",
        "attempt",
        "approval",
        "observation",
        "binding",
        "event",
        "effect",
    ],
)
def test_the_glossary_has_every_word(word: str) -> None:
    assert f"| {word} | " in (ROOT / "docs" / "glossary.md").read_text()
