"""The scripted model as a real process, spoken to through the adapters and plain HTTP."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from adapters.base import Adapter, Completion, Endpoint, HttpResponse, ModelRequest, Reply, ToolChoice, ToolDeclaration
from adapters.registry import adapter_for
from examples.scripted_model.process import ScriptedModel
from orchestrator.domain.transcript import ModelReply, Observation, TranscriptItem, UserText

TOOLS = (ToolDeclaration("draft", "d", {"type": "object"}), ToolDeclaration("submit", "s", {"type": "object"}))
REFUND = {
    "id": "refund",
    "turns": [
        {"calls": [{"name": "draft", "arguments": {"order": "A1"}}, {"name": "draft", "arguments_text": "{bad"}]},
        {"calls": [{"name": "submit", "arguments": {"draft_id": "$result.0.draft.id", "all": ["$result.1.n"]}}]},
        {"text": "Refunded."},
    ],
}
APIS = ("openai-responses", "openai-chat")


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel.start() as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as opened:
        yield opened


def ask(client: httpx.Client, adapter: Adapter, request: ModelRequest, endpoint: Endpoint) -> Reply:
    sent = adapter.to_request(request, endpoint)
    got = client.request(sent.method, sent.url, headers=dict(sent.headers), content=sent.body)
    return adapter.from_response(HttpResponse(got.status_code, got.headers, got.content), request)


def asked(model: ScriptedModel, script: str, *items: TranscriptItem, **more: Any) -> tuple[ModelRequest, Endpoint]:
    said = (UserText(f"Please. [script:{script}]"), *items)
    return ModelRequest("any", "", said, TOOLS, **more), Endpoint(f"{model.url}/v1", "key")


def kept(api: str, reply: Reply) -> ModelReply:
    return ModelReply(api, reply.response_id, reply.text, reply.calls, reply.items)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("azure", [None, "v1", "2024-10-21"])
def test_a_conversation_passes_results_on(model: ScriptedModel, client: httpx.Client, api: str, azure: str) -> None:
    model.add(REFUND)
    adapter = adapter_for(api)
    request, endpoint = asked(model, "refund")
    if azure is not None:
        endpoint = Endpoint(model.url, "key", azure_deployment="d", azure_api_version=None if azure == "v1" else azure)
    first = ask(client, adapter, request, endpoint)
    assert [(c.name, c.arguments_text) for c in first.calls] == [("draft", '{"order": "A1"}'), ("draft", "{bad")]
    seen: tuple[TranscriptItem, ...] = (
        kept(api, first),
        Observation(first.calls[1].call_id, "draft", '{"n": 7}'),
        Observation(first.calls[0].call_id, "draft", '{"draft": {"id": "D9"}}'),
    )
    second = ask(client, adapter, asked(model, "refund", *seen)[0], endpoint)
    assert json.loads(second.calls[0].arguments_text) == {"draft_id": "D9", "all": [7]}
    seen = (*seen, kept(api, second), Observation(second.calls[0].call_id, "submit", "{}"))
    third = ask(client, adapter, asked(model, "refund", *seen)[0], endpoint)
    assert (third.completion, third.text) == (Completion.FINAL_TEXT, "Refunded.")
    over = ask(client, adapter, asked(model, "refund", *seen, kept(api, third), UserText("And?"))[0], endpoint)
    assert over.completion is Completion.FINAL_TEXT
    ids = [c.call_id for c in (*first.calls, *second.calls)] + [first.response_id, second.response_id]
    assert len(set(ids)) == len(ids)


def test_continuing_by_response_id(model: ScriptedModel, client: httpx.Client) -> None:
    model.add(REFUND)
    adapter = adapter_for("openai-responses")
    request, endpoint = asked(model, "refund", parameters={"store": True})
    first = ask(client, adapter, request, endpoint)
    results = [Observation(call.call_id, "draft", '{"n": 7, "draft": {"id": "D9"}}') for call in first.calls]
    seen: tuple[TranscriptItem, ...] = (kept("openai-responses", first), *results)
    more = asked(model, "refund", *seen, previous_response_id=first.response_id)[0]
    assert ask(client, adapter, more, endpoint).calls[0].name == "submit"
    assert [item["type"] for item in model.requests("refund")[-1]["body"]["input"]] == ["function_call_output"] * 2


@pytest.mark.parametrize("api", APIS)
def test_other_turns(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    model.add(
        {"id": "no", "turns": [{"refusal": "I will not."}]},
        {"id": "cut", "turns": [{"truncated": "So far"}]},
        {"id": "calls", "turns": [{"calls": [{"name": "draft", "call_id": "mine"}]}]},
    )
    adapter = adapter_for(api)
    refused = ask(client, adapter, *asked(model, "no"))
    assert (refused.completion, refused.refusal) == (Completion.REFUSAL, "I will not.")
    cut = ask(client, adapter, *asked(model, "cut"))
    assert (cut.completion, cut.text) == (Completion.TRUNCATED, "So far")
    assert ask(client, adapter, *asked(model, "calls")).calls[0].call_id == "mine"
    off = ask(client, adapter, *asked(model, "calls", tool_choice=ToolChoice("none")))
    assert (off.completion, off.text) == (Completion.FINAL_TEXT, "(tools are off)")


def test_the_model_name_chooses_where_no_message_does(model: ScriptedModel, client: httpx.Client) -> None:
    model.add({"id": "by-name", "turns": [{"text": "Hello."}]})
    request = ModelRequest("by-name", "", (UserText("Hi"),))
    place = Endpoint(f"{model.url}/v1")
    assert ask(client, adapter_for("openai-chat"), request, place).text == "Hello."
    unknown = ask(client, adapter_for("openai-chat"), ModelRequest("gpt", "", (UserText("Hi"),)), place)
    assert unknown.raw_reason == "model_not_found"


@pytest.mark.parametrize("api", APIS)
def test_faults_end_after_their_times(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    fault = {"status": 503, "headers": {"retry-after": "2"}, "times": 2}
    model.add({"id": "busy", "turns": [{"text": "Here.", "fault": fault}]})
    adapter = adapter_for(api)
    replies = [ask(client, adapter, *asked(model, "busy")) for _ in range(3)]
    assert [r.completion.value for r in replies] == ["API_FAILURE", "API_FAILURE", "FINAL_TEXT"]
    failure = replies[0].failure
    assert failure is not None
    assert (failure.code, failure.retryable, failure.retry_after) == ("OVERLOADED", True, 2.0)
    assert len(model.requests("busy")) >= 3


@pytest.mark.parametrize("cut", ["before", "half"])
def test_cut_connections(model: ScriptedModel, client: httpx.Client, cut: str) -> None:
    model.add({"id": "lost", "turns": [{"text": "Here.", "fault": {"cut": cut, "times": 1}}]})
    request, endpoint = asked(model, "lost")
    with pytest.raises(httpx.RemoteProtocolError):
        ask(client, adapter_for("openai-chat"), request, endpoint)
    assert ask(client, adapter_for("openai-chat"), request, endpoint).text == "Here."


def test_it_refuses_what_the_real_services_refuse(model: ScriptedModel, client: httpx.Client) -> None:
    model.add(REFUND)
    call = {"type": "function_call", "call_id": "c", "name": "draft", "arguments": "{}"}
    user = {"role": "user", "content": "[script:refund]"}
    lonely = client.post(f"{model.url}/v1/responses", json={"model": "m", "input": [user, call]})
    assert (lonely.status_code, "No tool output found" in lonely.text) == (400, True)
    chat_call = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "draft", "arguments": "{}"}}]}
    lonely = client.post(f"{model.url}/v1/chat/completions", json={"messages": [user, chat_call, user]})
    assert (lonely.status_code, "must be followed by tool messages" in lonely.text) == (400, True)
    output = {"type": "function_call_output", "call_id": "c", "output": "not json"}
    twice = [user, call, output]
    assert client.post(f"{model.url}/v1/responses", json={"input": twice}).status_code == 400  # $result has no field
    for odd in (b"", b"[]", b"{", b'{"input": 7}', b'{"input": [7]}'):
        assert client.post(f"{model.url}/v1/responses", content=odd).status_code == 400
    assert client.post(f"{model.url}/v1/elsewhere", json={}).status_code == 404
    assert client.post(f"{model.url}/control/scripts", json=[{"id": "x", "turns": [{}]}]).status_code == 422


def test_many_conversations_at_once_get_ids_of_their_own(model: ScriptedModel, client: httpx.Client) -> None:
    model.add(REFUND)
    adapter = adapter_for("openai-responses")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: ask(client, adapter, *asked(model, "refund")), range(64)))
    assert len({call.call_id for reply in replies for call in reply.calls}) == 128
    assert len({reply.response_id for reply in replies}) == 64


def test_reset_forgets_scripts_and_requests(client: httpx.Client, tmp_path: Any) -> None:
    file = tmp_path / "script.json"
    file.write_text(json.dumps([{"id": "given", "turns": [{"text": "Given."}]}]))
    with ScriptedModel.start("--script", str(file)) as own:
        own.add({"id": "added", "turns": [{"text": "Added."}]})
        place = Endpoint(f"{own.url}/v1")
        default = ModelRequest("whatever", "", (UserText("Hi"),))
        assert ask(client, adapter_for("openai-chat"), default, place).text == "Given."
        added = ModelRequest("added", "", (UserText("Hi"),))
        assert ask(client, adapter_for("openai-chat"), added, place).text == "Added."
        own.reset()
        assert own.requests("given") == []
        assert ask(client, adapter_for("openai-chat"), added, place).text == "Given."
