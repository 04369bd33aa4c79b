"""Wherever a correction falls, each provider gets a transcript that its API takes: results right after their reply."""

import json
from itertools import pairwise
from typing import Any

import pytest

from adapters.base import Endpoint, ModelRequest
from adapters.registry import adapter_for
from orchestrator import transcripts
from orchestrator.domain.transcript import ModelReply, Observation, TranscriptItem, UserText
from store import calls as stored
from store import operations
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.people.scene import submit
from tests.people.test_amend import WORDS, amend

APIS = ("openai-responses", "openai-chat", "anthropic-messages", "gemini-generate", "gemini-interactions")


def after(hall: Desk, *steps: str) -> tuple[TranscriptItem, ...]:
    """The transcript of an operation that was amended before, between and after its turns."""
    operation = submit(hall, calls(call("look", text="a"), call("look", text="b")), DONE)
    for step in steps:
        if step == "amend":
            amend(hall, operation)
        elif step == "turn":
            hall.advance(operation)
        else:
            hall.step(step)
    with hall.app.database.snapshot() as connection:
        return transcripts.build(
            operations.load_items(connection, operation), stored.of_operation(connection, operation)
        )


PATHS = [
    ("amend",),
    ("amend", "amend", "turn", "reads", "reads"),
    ("turn", "amend"),
    ("turn", "reads", "amend"),
    ("turn", "reads", "reads", "amend"),
    ("amend", "turn", "reads", "amend", "amend"),
]


@pytest.mark.parametrize("path", PATHS)
def test_results_stand_right_after_their_reply(hall: Desk, path: tuple[str, ...]) -> None:
    items = after(hall, *path)
    for index, item in enumerate(items):
        if isinstance(item, ModelReply):
            results = items[index + 1 : index + 1 + len(item.calls)]
            assert all(isinstance(result, Observation) for result in results)
            assert [result.call_id for result in results if isinstance(result, Observation)] == [
                c.call_id for c in item.calls
            ]
    if path[-1] == "amend":
        assert items[-1] == UserText(WORDS)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("path", PATHS)
def test_each_adapter_can_say_it(hall: Desk, api: str, path: tuple[str, ...]) -> None:
    adapter = adapter_for(api)
    request = ModelRequest(
        model="m", instructions="Help.", items=after(hall, *path), tools=(), tool_choice=transcripts.NO_TOOLS,
        max_output_tokens=100,
    )  # fmt: skip
    body: Any = json.loads(adapter.to_request(request, Endpoint("http://127.0.0.1:1/v1", api_key="k")).body)
    assert json.dumps(body).count(WORDS) == path.count("amend")
    if api == "anthropic-messages":
        roles = [turn["role"] for turn in body["messages"]]
        assert all(one != two for one, two in pairwise(roles)), "roles take turns"
    if api == "gemini-generate":
        contents = body["contents"]
        for index, content in enumerate(contents):
            if any("functionResponse" in part for part in content["parts"]):
                assert contents[index - 1]["role"] == "model"
