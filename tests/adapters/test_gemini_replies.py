"""Gemini replies that are not on record: odd statuses and reasons, unusable calls, arguments in pieces."""

from typing import Any

import pytest

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import Completion
from adapters.gemini_partial import PartialCall
from tests.adapters.test_gemini_requests import GENERATE, INTERACTIONS, STEPS, candidate, reply

# --- odd replies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "retryable"),
    [
        (candidate(finishReason="MISSING_THOUGHT_SIGNATURE"), "SIGNATURE_MISSING", False),
        (candidate(finishReason="TOO_MANY_TOOL_CALLS"), "MODEL_OUTPUT_INVALID", False),
        (candidate({"text": "x"}, finishReason="SOMETHING_NEW"), "UNKNOWN_REASON", False),
        (candidate({"text": "x"}, finishReason="CONTINUATION"), "UNKNOWN_REASON", False),
        (candidate({"functionCall": {"args": {}}}), "MODEL_OUTPUT_INVALID", False),
        (candidate({"functionCall": {"name": "refund", "willContinue": True}}), "MODEL_OUTPUT_INVALID", False),
        ({"candidates": []}, "UNEXPECTED_SHAPE", False),
        ({}, "UNEXPECTED_SHAPE", False),
        ({"error": {"code": 503, "status": "UNAVAILABLE"}}, "OVERLOADED", True),
    ],
)
def test_unusable_candidates(body: Any, code: str, retryable: bool) -> None:
    failure = reply(GENERATE, body).failure
    assert failure is not None
    assert (failure.code, failure.retryable) == (code, retryable)


@pytest.mark.parametrize(
    ("body", "completion"),
    [
        ({"status": "requires_action", "steps": []}, Completion.API_FAILURE),
        ({"status": "completed", "steps": STEPS}, Completion.API_FAILURE),
        ({"status": "cancelled", "steps": STEPS}, Completion.API_FAILURE),
        ({"status": "incomplete", "steps": STEPS}, Completion.TRUNCATED),
        ({"status": "idle"}, Completion.PAUSED),
        ({"status": "completed"}, Completion.FINAL_TEXT),
        ({"steps": STEPS}, Completion.API_FAILURE),
    ],
)
def test_the_status_of_an_interaction_decides(body: Any, completion: Completion) -> None:
    answer = reply(INTERACTIONS, {"id": "v", **body})
    assert answer.completion is completion
    assert answer.calls == ()


@pytest.mark.parametrize("filtered", ["SAFETY", "IMAGE_OTHER", "MODEL_ARMOR", "ESCALATION"])
def test_a_filter_beats_the_calls_beside_it(filtered: str) -> None:
    answer = reply(GENERATE, candidate({"functionCall": {"name": "refund", "args": {}}}, finishReason=filtered))
    assert (answer.completion, answer.calls, answer.raw_reason) == (Completion.REFUSAL, (), filtered)


@pytest.mark.parametrize("arguments", ["text", [1], 7, {"order": "\ud800"}])
def test_arguments_that_are_no_object_are_refused_later(arguments: Any) -> None:
    (call,) = reply(GENERATE, candidate({"functionCall": {"name": "refund", "args": arguments}})).calls
    with pytest.raises(ArgumentError):
        parse_arguments(call.arguments_text)


# --- arguments in pieces ---------------------------------------------------------------------------------------------


def piece(path: str, **value: Any) -> dict[str, Any]:
    return {"jsonPath": path, **value}


def assembled(*pieces: dict[str, Any]) -> PartialCall:
    call = PartialCall({"functionCall": {"name": "refund", "willContinue": True}})
    for one in pieces:
        call.take({"functionCall": {"partialArgs": [one], "willContinue": True}})
    return call


def test_pieces_of_every_kind() -> None:
    call = assembled(
        piece("$.a", stringValue="on", willContinue=True),
        piece("$.n", numberValue=3),
        piece("$.a", stringValue="e", willContinue=True),
        piece("$.a", stringValue=""),
        piece("$.list[0].x", boolValue=False),
        piece("$.list[0].y", nullValue="NULL_VALUE"),
        piece("$.list[1].x", stringValue="two"),
        piece("$['odd key'][0]", numberValue=1.5),
        piece("$['odd key'][1]", numberValue=0),
    )
    assert not call.broken
    assert call.part()["functionCall"] == {
        "name": "refund",
        "args": {"a": "one", "n": 3, "list": [{"x": False, "y": None}, {"x": "two"}], "odd key": [1.5, 0]},
    }


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("$.a", stringValue="never ends", willContinue=True)],
        [piece("$.a", numberValue=1), piece("$.a", numberValue=2)],
        [piece("$.a", numberValue=1), piece("$.a.b", numberValue=2)],
        [piece("$.a[1]", numberValue=1)],
        [piece("$[0]", numberValue=1)],
        [piece("$", numberValue=1)],
        [piece("a", numberValue=1)],
        [piece("$.a..b", numberValue=1)],
        [piece("$.a", newValue=1)],
        [piece("$.a", stringValue="x", willContinue=True), piece("$.a", numberValue=2)],
        [piece("$" + ".a" * 100, numberValue=1)],
    ],
)
def test_pieces_that_make_no_sense_are_not_guessed_at(pieces: list[dict[str, Any]]) -> None:
    assert assembled(*pieces).broken
