"""What every registered adapter must do: an adapter that registers itself gets all of this, by its name alone.

The round trips go over real HTTP to the scripted model, which speaks the adapter's format from a script that names no
provider. See docs/adding-a-provider.md.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from adapters.base import Completion, Endpoint, HttpRequest, ModelRequest, Progress, Reply, ToolChoice, ToolDeclaration
from adapters.names import wire_name
from adapters.registry import ADAPTERS, adapter_for
from examples.scripted_model.process import ScriptedModel
from orchestrator import provider
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import ModelReply, Notice, Observation, TranscriptItem, UserText

APIS = sorted(ADAPTERS)
ODD = "orders.look up"
SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["order"],
    "additionalProperties": False,
}
TOOLS = (
    ToolDeclaration("draft", "Draft a refund.", SCHEMA),
    ToolDeclaration("submit", "Submit it.", {"type": "object", "properties": {}, "additionalProperties": False}),
    ToolDeclaration(ODD, "Look an order up.", SCHEMA),
)
CHOICES = (
    ToolChoice(),
    ToolChoice("required"),
    ToolChoice("none"),
    ToolChoice("named", ("draft",)),
    ToolChoice("named", (ODD,)),
    ToolChoice("allowed", ("draft", ODD)),
    ToolChoice("allowed", ("draft", "submit"), required=True),
)
ONE = {"calls": [{"name": "draft", "arguments": {"order": "A1"}}]}
TWO = {"calls": [{"name": "draft", "arguments": {"order": "A1"}}, {"name": "submit", "arguments": {}}]}
SAID = "Provider words: you owe us 12 dollars, Mr. Müller."


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with provider.model_client() as opened:
        yield opened


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["plain", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def place(api: str, url: str) -> Endpoint:
    """Base URLs of the OpenAI form include the version; the others' paths do."""
    return Endpoint(f"{url}/v1" if api.startswith("openai") else url, "sk-secret")


class Conversation:
    """One transcript, asked turn by turn."""

    def __init__(self, client: httpx.Client, url: str, api: str, stream: bool) -> None:
        self.items: list[TranscriptItem] = [UserText("Please. [script:conformance]")]
        self.seen: list[Progress] = []
        self._client, self._url, self._api, self._stream = client, url, api, stream

    def ask(self, *, api: str | None = None, **more: Any) -> Reply:
        """The next reply; kept in the transcript unless it failed."""
        used = api or self._api
        adapter = adapter_for(used)
        request = ModelRequest("any", "Be brief.", tuple(self.items), TOOLS, stream=self._stream, **more)
        wire = adapter.to_request(request, place(used, self._url))
        reply = provider.ask(self._client, adapter, request, wire, 30.0, observe=self.seen.append)
        if reply.failure is None:
            self.items.append(ModelReply(used, reply.response_id, reply.text, reply.calls, reply.items))
        return reply

    def answer(self, call: ProposedCall, output: str, *, is_error: bool = False) -> None:
        self.items.append(Observation(call.call_id, call.name, output, is_error))


@pytest.fixture
def talk(client: httpx.Client, model: ScriptedModel, api: str, stream: bool) -> Conversation:
    return Conversation(client, model.url, api, stream)


def play(model: ScriptedModel, *turns: dict[str, Any]) -> None:
    model.add({"id": "conformance", "turns": list(turns)})


# --- requests --------------------------------------------------------------------------------------------------------


def build(api: str, request: ModelRequest) -> HttpRequest:
    return adapter_for(api).to_request(request, place(api, "http://model.test"))


def request(*items: TranscriptItem, **more: Any) -> ModelRequest:
    return ModelRequest("any", "Be brief.", items or (UserText("Hello."),), TOOLS, **more)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: f"{c.mode}-{len(c.names)}-{c.required}")
@pytest.mark.parametrize("parallel", [True, False])
def test_every_tool_choice_can_be_said(api: str, stream: bool, choice: ToolChoice, parallel: bool) -> None:
    asked = request(tool_choice=choice, parallel=parallel, stream=stream, max_output_tokens=100)
    wire = build(api, asked)
    assert wire == build(api, asked)
    assert wire.method == "POST"
    assert wire.url.startswith("http://model.test/")
    body = json.loads(wire.body)
    text = json.dumps(body)
    assert "sk-secret" not in text + wire.url + repr(wire)
    assert "Be brief." in text
    if choice.mode != "allowed":  # some formats say a subset by leaving the other tools out
        assert all(json.dumps(wire_name(tool.name)) in text for tool in TOOLS)
    assert json.dumps(ODD) not in text


def test_choices_differ(api: str) -> None:
    bodies = {build(api, request(tool_choice=choice)).body for choice in CHOICES}
    assert len(bodies) == len(CHOICES)


@pytest.mark.parametrize("choice", [ToolChoice("named", ("absent",)), ToolChoice("named"), ToolChoice("allowed")])
def test_a_choice_that_names_no_offered_tool_is_refused(api: str, choice: ToolChoice) -> None:
    with pytest.raises(ConfigError) as refused:
        build(api, request(tool_choice=choice))
    assert refused.value.code == "BAD_TOOL_CHOICE"


def test_streaming_is_asked_for(api: str) -> None:
    plain, streamed = build(api, request()), build(api, request(stream=True))
    assert (plain.url, plain.body) != (streamed.url, streamed.body)


def test_a_call_and_its_result_stand_together(api: str) -> None:
    reply = ModelReply("elsewhere", "r1", "", (ProposedCall("c1", "draft", '{"order": "A1"}'),))
    for items in (
        (UserText("Go."), reply),
        (UserText("Go."), Observation("c1", "draft", "{}")),
        (UserText("Go."), reply, Observation("c2", "draft", "{}")),
    ):
        with pytest.raises(ValueError, match="result"):
            build(api, request(*items))


def test_results_are_placed_in_call_order_whatever_their_own(api: str) -> None:
    calls = tuple(ProposedCall(f"call{n}", "draft", f'{{"order": "A{n}"}}') for n in range(3))
    results = [Observation(f"call{n}", "draft", f'{{"result": "number-{n}"}}', is_error=n == 1) for n in (2, 0, 1)]
    items = (
        UserText("Go."),
        ModelReply("elsewhere", "r1", "Words.", calls),
        *results,
        Notice("Host."),
        UserText("On."),
    )
    text = build(api, request(*items)).body.decode()
    places = [text.index(f"number-{n}") for n in range(3)]
    assert places == sorted(places)
    assert text.index("Words.") < places[0]
    assert places[-1] < text.index("Host.")
    failed = replace(results[2], is_error=False)
    assert (
        build(api, request(*items)).body != build(api, request(*(failed if i is results[2] else i for i in items))).body
    )


# --- round trips -----------------------------------------------------------------------------------------------------


def test_final_text(model: ScriptedModel, talk: Conversation, stream: bool) -> None:
    play(model, {"text": "Grüße, 😀 and out."})
    reply = talk.ask()
    assert (reply.completion, reply.text, reply.calls) == (Completion.FINAL_TEXT, "Grüße, 😀 and out.", ())
    assert reply.raw_reason
    assert reply.usage.input is not None
    assert reply.usage.output is not None
    if stream:
        assert "".join(seen.text for seen in talk.seen if seen.kind == "text") == reply.text
        assert len(talk.seen) > 1


def test_calls_and_their_results_over_turns(model: ScriptedModel, talk: Conversation, stream: bool) -> None:
    then = {"calls": [{"name": "draft", "arguments": {"order": "$result.0.id", "count": "$result.1.n"}}]}
    play(model, {**TWO, "reasoning": "Two at once."}, then, {"text": "Done."})
    first = talk.ask()
    assert first.completion is Completion.TOOL_PROPOSALS
    assert [call.name for call in first.calls] == ["draft", "submit"]
    assert [json.loads(call.arguments_text) for call in first.calls] == [{"order": "A1"}, {}]
    assert len({call.call_id for call in first.calls}) == 2
    if stream:
        assert [seen.name for seen in talk.seen if seen.kind == "call"] == ["draft", "submit"]
    talk.answer(first.calls[1], '{"n": 7}')
    talk.answer(first.calls[0], '{"id": "D9"}')
    second = talk.ask()
    assert json.loads(second.calls[0].arguments_text) == {"order": "D9", "count": 7}
    talk.answer(second.calls[0], "It failed.", is_error=True)
    third = talk.ask()
    assert (third.completion, third.text) == (Completion.FINAL_TEXT, "Done.")
    talk.items.append(UserText("And now?"))
    assert talk.ask().completion is Completion.FINAL_TEXT
    sent = json.dumps(model.requests("conformance")[-1]["body"], ensure_ascii=False)
    assert all(words in sent for words in ("D9", "It failed.", "And now?"))


def test_names_are_mapped_both_ways(model: ScriptedModel, talk: Conversation) -> None:
    play(model, {"calls": [{"name": wire_name(ODD), "arguments": {"order": "A1"}}]}, {"text": "Done."})
    reply = talk.ask()
    assert [call.name for call in reply.calls] == [ODD]
    talk.answer(reply.calls[0], "{}")
    assert talk.ask().completion is Completion.FINAL_TEXT


def test_refusal(model: ScriptedModel, talk: Conversation) -> None:
    play(model, {"refusal": "I will not."})
    reply = talk.ask()
    assert (reply.completion, reply.calls) == (Completion.REFUSAL, ())


def test_truncation(model: ScriptedModel, talk: Conversation) -> None:
    play(model, {"truncated": "So far"})
    reply = talk.ask()
    assert (reply.completion, reply.text, reply.calls) == (Completion.TRUNCATED, "So far", ())


def test_tools_off(model: ScriptedModel, talk: Conversation) -> None:
    play(model, ONE)
    assert talk.ask(tool_choice=ToolChoice("none")).completion is Completion.FINAL_TEXT


@pytest.mark.parametrize("cut", ["before", "half", "eof"])
def test_a_cut_reply_proposes_nothing_and_may_be_asked_again(
    model: ScriptedModel, talk: Conversation, cut: str
) -> None:
    play(model, {**TWO, "fault": {"cut": cut, "times": 1}})
    reply = talk.ask()
    assert reply.completion is Completion.API_FAILURE
    assert reply.failure is not None
    assert reply.failure.retryable
    assert (reply.calls, reply.items) == ((), ())
    assert len(talk.ask().calls) == 2


@pytest.mark.parametrize("after", range(1, 12))
def test_no_cut_between_events_proposes_unfinished_calls(model: ScriptedModel, talk: Conversation, after: int) -> None:
    play(model, {**TWO, "fault": {"cut": "eof", "after": -after, "times": 1}})
    reply = talk.ask()
    if reply.completion is Completion.TOOL_PROPOSALS:
        assert [json.loads(call.arguments_text) for call in reply.calls] == [{"order": "A1"}, {}]
    else:
        assert (reply.completion, reply.calls) == (Completion.API_FAILURE, ())


def test_an_error_inside_a_200(model: ScriptedModel, talk: Conversation) -> None:
    play(model, {**TWO, "fault": {"error": True, "times": 1}})
    reply = talk.ask()
    assert (reply.completion, reply.calls, reply.items) == (Completion.API_FAILURE, (), ())
    assert reply.failure is not None
    assert reply.failure.retryable
    assert len(talk.ask().calls) == 2


STATUSES = {400: False, 401: False, 403: False, 404: False, 413: False, 429: True, 500: True, 502: True, 503: True}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    "body", [None, SAID, f"<html>{SAID}</html>", {"error": SAID}, {"error": {"message": SAID}}, []]
)
def test_error_statuses(model: ScriptedModel, talk: Conversation, status: int, body: Any) -> None:
    play(model, {**ONE, "fault": {"status": status, "body": body, "headers": {"retry-after": "2"}}})
    reply = talk.ask()
    assert reply.completion is Completion.API_FAILURE
    failure = reply.failure
    assert failure is not None
    assert failure.retryable == STATUSES[status]
    assert failure.retry_after == (2.0 if failure.retryable else None)
    assert re.fullmatch(r"[A-Z_]+", failure.code)
    shown = f"{failure} {reply.raw_reason} {reply.text} {reply.refusal} {reply.items}"
    assert "Provider words" not in shown
    assert "12 dollars" not in shown


@pytest.mark.parametrize("other", APIS)
def test_a_transcript_of_another_provider_can_be_continued(
    model: ScriptedModel, talk: Conversation, api: str, other: str
) -> None:
    play(model, {**TWO, "reasoning": "Two."}, {"text": "Done."})
    reply = talk.ask(api=other)
    for call in reply.calls:
        talk.answer(call, '{"id": "D9"}')
    assert talk.ask().text == "Done."
