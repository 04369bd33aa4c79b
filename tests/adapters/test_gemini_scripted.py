"""The scripted model as a real process, in both Gemini formats, plain and streaming, spoken to through the adapters."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from adapters.base import Completion, Endpoint, HttpResponse, ModelRequest, Reply, ToolChoice, ToolDeclaration
from adapters.registry import adapter_for
from examples.scripted_model.process import ScriptedModel
from orchestrator.domain.transcript import ModelReply, Observation, TranscriptItem, UserText

APIS = ("gemini-generate", "gemini-interactions")
TOOLS = (ToolDeclaration("draft", "d", {"type": "object"}), ToolDeclaration("submit", "s", {"type": "object"}))
CONVERSATION = {
    "id": "gemini",
    "turns": [
        {
            "reasoning": "Let me see.",
            "calls": [{"name": "draft", "arguments": {"order": "Ä1"}}, {"name": "draft", "arguments_text": "{bad"}],
        },
        {"calls": [{"name": "submit", "arguments": {"draft_id": "$result.0.draft.id", "n": "$result.1.n"}}]},
        {"text": "Refunded: “done”."},
    ],
}


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as opened:
        yield opened


class Talk:
    """One API of the running model, plain or streaming."""

    def __init__(self, model: ScriptedModel, client: httpx.Client, api: str, stream: bool) -> None:
        self.api, self.model = api, model
        self._client, self._stream = client, stream

    def ask(self, script: str, *items: TranscriptItem, **more: Any) -> Reply:
        said = (UserText(f"Please. [script:{script}]"), *items)
        request = ModelRequest("any", "", said, TOOLS, stream=self._stream, **more)
        adapter = adapter_for(self.api)
        sent = adapter.to_request(request, Endpoint(self.model.url, "key"))
        with self._client.stream("POST", sent.url, headers=dict(sent.headers), content=sent.body) as got:
            if not self._stream or got.status_code >= 300:
                return adapter.from_response(HttpResponse(got.status_code, got.headers, got.read()), request)
            accumulator = adapter.accumulator(HttpResponse(got.status_code, got.headers, b""), request)
            try:
                for chunk in got.iter_raw():
                    accumulator.feed(chunk)
            except httpx.RemoteProtocolError:
                pass  # cut: what came so far is for the accumulator to judge
        return accumulator.finish()

    def kept(self, reply: Reply) -> ModelReply:
        return ModelReply(self.api, reply.response_id, reply.text, reply.calls, reply.items)


@pytest.fixture(params=[(api, stream) for api in APIS for stream in (False, True)], ids=str)
def talk(model: ScriptedModel, client: httpx.Client, request: pytest.FixtureRequest) -> Talk:
    return Talk(model, client, *request.param)


@pytest.mark.parametrize("server_state", [False, True])
def test_a_conversation_passes_results_on(talk: Talk, server_state: bool) -> None:
    if server_state and talk.api == "gemini-generate":
        return  # it keeps none
    talk.model.add(CONVERSATION)

    def ask(*items: TranscriptItem) -> Reply:
        last = [item.response_id for item in items if isinstance(item, ModelReply)][-1:] if server_state else []
        return talk.ask("gemini", *items, server_state=server_state, previous_response_id=last[0] if last else None)

    first = ask()
    assert [call.name for call in first.calls] == ["draft", "draft"]
    assert json.loads(first.calls[0].arguments_text) == {"order": "Ä1"}
    assert first.calls[1].arguments_text in ("{bad", '"{bad"')
    seen: tuple[TranscriptItem, ...] = (
        talk.kept(first),
        Observation(first.calls[1].call_id, "draft", '{"n": 7}', is_error=True),
        Observation(first.calls[0].call_id, "draft", '{"draft": {"id": "D9"}}'),
    )
    second = ask(*seen)
    assert json.loads(second.calls[0].arguments_text) == {"draft_id": "D9", "n": 7}
    seen = (*seen, talk.kept(second), Observation(second.calls[0].call_id, "submit", "{}"))
    third = ask(*seen)
    assert (third.completion, third.text) == (Completion.FINAL_TEXT, "Refunded: “done”.")
    assert (third.usage.output, third.usage.reasoning) == (20, 5)
    assert ask(*seen, talk.kept(third), UserText("And?")).completion is Completion.FINAL_TEXT
    calls = (*first.calls, *second.calls)
    assert len({call.call_id for call in calls}) == len(calls)


def test_other_turns(talk: Talk) -> None:
    talk.model.add(
        {"id": "no", "turns": [{"refusal": "I will not."}]},
        {"id": "cut", "turns": [{"truncated": "So far"}]},
        {"id": "calls", "turns": [{"calls": [{"name": "draft", "call_id": "mine"}]}]},
    )
    assert talk.ask("no").completion is Completion.REFUSAL
    cut = talk.ask("cut")
    assert (cut.completion, cut.text) == (Completion.TRUNCATED, "So far")
    assert talk.ask("calls").calls[0].call_id == "mine"
    off = talk.ask("calls", tool_choice=ToolChoice("none"))
    assert (off.completion, off.text) == (Completion.FINAL_TEXT, "(tools are off)")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"status": 503}, "OVERLOADED"),
        ({"status": 429}, "RATE_LIMITED"),
        ({"error": True}, "SERVER_ERROR"),
        ({"cut": "eof"}, None),
        ({"cut": "eof", "after": -1}, None),
    ],
)
def test_faults_propose_nothing_and_may_be_repeated(talk: Talk, fault: dict[str, Any], code: str | None) -> None:
    calls = [{"name": "draft", "arguments": {"order": "A"}}, {"name": "submit"}]
    talk.model.add({"id": "fault", "turns": [{"calls": calls, "fault": {**fault, "times": 1}}]})
    failed = talk.ask("fault")
    if fault.get("after") == -1 and talk.api == "gemini-interactions" and failed.failure is None:
        return  # only `[DONE]` was missing: the interaction had been completed
    assert failed.failure is not None
    assert (failed.completion, failed.calls, failed.failure.retryable) == (Completion.API_FAILURE, (), True)
    assert code is None or failed.failure.code == code
    assert len(talk.ask("fault").calls) == 2


def test_pieces_of_any_size(talk: Talk) -> None:
    talk.model.add({"id": "pieces", "turns": [{"text": "Größe, 東京", "fault": {"chunk": 3}}]})
    assert talk.ask("pieces").text == "Größe, 東京"


def test_the_server_refuses_what_the_real_one_does(model: ScriptedModel, client: httpx.Client) -> None:
    model.add(CONVERSATION)
    user = {"role": "user", "parts": [{"text": "[script:gemini]"}]}
    function = {"functionCall": {"name": "draft", "args": {}}}
    answer = {"functionResponse": {"name": "draft", "response": {}}}
    signed = {**function, "thoughtSignature": "c2ln"}
    for parts, answers, words in (
        ([signed, function], [answer], "number of function response parts"),
        ([function], [answer], "thought_signature"),
        ([signed], [{"functionResponse": {"name": "draft", "response": "text"}}], "must be an object"),
    ):
        contents = [user, {"role": "model", "parts": parts}, {"role": "user", "parts": answers}]
        got = client.post(f"{model.url}/v1beta/models/m:generateContent", json={"contents": contents})
        assert got.status_code == 400
        assert words in got.json()["error"]["message"]
