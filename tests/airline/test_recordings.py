"""What is worked out for the recorded conversations, against what the benchmark's tools said then. No server needed."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from examples.airline.tools import AIRLINE
from tests.replay import recordings
from tests.replay.recordings import Expected, Oracle, Recording, Told
from tests.replay.workload import Workload

Played = list[tuple[Recording, Expected]]


@pytest.fixture(scope="module")
def played(workload: Workload) -> Played:
    oracle = Oracle(AIRLINE, workload)
    return [(each, oracle.expect(each)) for each in recordings.load(workload.folder)]


def pairs(played: Played) -> Iterator[tuple[str, Told, str]]:
    """(conversation, worked out, recorded) of every call."""
    for recording, expected in played:
        for told, result in zip(expected.told, recording.results, strict=True):
            yield recording.id, told, result


def alike(told: Told, recorded: str) -> bool:
    """Equal but for what the benchmark has corrected since, in its data and tools."""
    if told.error is not None:
        return recorded.lower() == f"error: {told.error}".lower()
    if told.call.tool == "list_all_airports":
        return bool({a["iata"]: a["city"] for a in told.data} == json.loads(recorded))
    if isinstance(told.data, str):
        return recorded == told.data
    return told.code is None and bool(corrected(told.data) == corrected(json.loads(recorded)))


def corrected(value: Any) -> Any:
    """Then a change of flights did not change the cabin, a connection showed both flights as on the first day, and a
    user had a province and no id."""
    if isinstance(value, list):
        return [corrected(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "membership" in value:
        value = {**value, "user_id": None, "address": None}
    if "reservation_id" in value:
        value = {**value, "cabin": None}
    if "prices" in value and "date" in value:
        return value["flight_number"]
    return {name: corrected(each) for name, each in value.items()}


def test_what_is_worked_out_is_what_was_recorded(played: Played) -> None:
    """Three conversations differ: a reservation corrected since, invalid arguments that were accepted then, and one
    in which the model booked the same trip twice and then was given a second reservation."""
    differing = {
        name for name, told, recorded in pairs(played) if told.code != "UNKNOWN_TOOL" and not alike(told, recorded)
    }
    assert len(played) == 73
    assert len(differing) == 3


def test_a_booking_that_the_model_made_twice_is_made_once(played: Played) -> None:
    booked = [told for _, told, _ in pairs(played) if told.call.tool == "book_reservation" and told.data]
    twice = [told for told in booked if sum(told.data is each.data for each in booked) == 2]
    assert len(twice) == 2
    assert Counter(each.data["reservation_id"] for each in twice) == {"HATHAU": 2}


def test_the_model_made_the_mistakes_of_a_real_model(played: Played) -> None:
    codes = Counter(told.code for _, told, _ in pairs(played) if told.code)
    assert codes == {"UNKNOWN_TOOL": 44, "INVALID_ARGUMENTS": 1}
    assert sum(told.error is not None for _, told, _ in pairs(played)) == 27
    reused = [each for each, _ in played if len({call.call_id for call in each.calls}) < len(each.calls)]
    assert len(reused) == 19
