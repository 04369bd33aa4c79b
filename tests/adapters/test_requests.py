"""What goes on the wire, byte for byte where it matters."""

import dataclasses
import json
from typing import Any

import pytest

from adapters.base import Adapter, Endpoint, HttpResponse, ModelRequest, ToolChoice, ToolDeclaration
from adapters.common import NOTICE_PREFIX
from adapters.registry import adapter_for
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import ModelReply, Notice, Observation, UserText

RESPONSES, CHAT = adapter_for("openai-responses"), adapter_for("openai-chat")
PLACE = Endpoint("https://api.example/v1", "key")
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "deep": {"type": "boolean", "default": False}},
    "required": ["id"],
    "additionalProperties": False,
}
STRICT = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "deep": {"type": ["boolean", "null"], "description": "Default: false."}},
    "required": ["id", "deep"],
    "additionalProperties": False,
}
OPEN = {"type": "object", "properties": {}}
TOOLS = (ToolDeclaration("orders.get", "Get.", SCHEMA), ToolDeclaration("ping", "Ping.", OPEN))
WIRE = "orders_get_8215face8d"
ASKED = ModelRequest("m", "Be brief.", (UserText("Where?"),), TOOLS)


def body(adapter: Adapter, request: ModelRequest, endpoint: Endpoint = PLACE) -> Any:
    return json.loads(adapter.to_request(request, endpoint).body)


def test_responses_request() -> None:
    request = dataclasses.replace(
        ASKED, max_output_tokens=50, output_schema=SCHEMA, parameters={"temperature": 0, "text": {"verbosity": "low"}}
    )
    assert body(RESPONSES, request) == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Where?"}],
        "tools": [
            {"type": "function", "name": WIRE, "description": "Get.", "parameters": STRICT, "strict": True},
            {"type": "function", "name": "ping", "description": "Ping.", "parameters": OPEN, "strict": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_output_tokens": 50,
        "text": {
            "verbosity": "low",
            "format": {"type": "json_schema", "name": "output", "schema": STRICT, "strict": True},
        },
        "store": False,
        "temperature": 0,
    }


def test_chat_request() -> None:
    request = dataclasses.replace(
        ASKED, max_output_tokens=50, output_schema=SCHEMA, parallel=False, parameters={"reasoning_effort": "low"}
    )
    assert body(CHAT, request) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": WIRE, "description": "Get.", "parameters": STRICT, "strict": True},
            },
            {
                "type": "function",
                "function": {"name": "ping", "description": "Ping.", "parameters": OPEN, "strict": False},
            },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_completion_tokens": 50,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": STRICT, "strict": True},
        },
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize("adapter", [RESPONSES, CHAT])
def test_without_tools_nothing_is_said_about_them(adapter: Adapter) -> None:
    sent = body(adapter, dataclasses.replace(ASKED, tools=()))
    assert not sent.keys() & {"tools", "tool_choice", "parallel_tool_calls"}


@pytest.mark.parametrize(
    ("choice", "responses", "chat"),
    [
        (ToolChoice("required"), "required", "required"),
        (ToolChoice("none"), "none", "none"),
        (
            ToolChoice("named", ("orders.get",)),
            {"type": "function", "name": WIRE},
            {"type": "function", "function": {"name": WIRE}},
        ),
        (
            ToolChoice("allowed", ("ping",), required=True),
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ping"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "ping"}}]},
            },
        ),
    ],
)
def test_tool_choices(choice: ToolChoice, responses: Any, chat: Any) -> None:
    request = dataclasses.replace(ASKED, tool_choice=choice)
    assert body(RESPONSES, request)["tool_choice"] == responses
    assert body(CHAT, request)["tool_choice"] == chat


@pytest.mark.parametrize("adapter", [RESPONSES, CHAT])
@pytest.mark.parametrize(
    "change",
    [
        {"tool_choice": ToolChoice("named", ("refund",))},
        {"tool_choice": ToolChoice("named")},
        {"parameters": {"model": "other"}},
        {"parameters": {"tools": [{"type": "function", "name": "refund"}]}},
    ],
)
def test_what_cannot_be_sent_is_a_config_error(adapter: Adapter, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        adapter.to_request(dataclasses.replace(ASKED, **change), PLACE)


def test_hosted_tools_of_the_profile_come_after_ours() -> None:
    sent = body(RESPONSES, dataclasses.replace(ASKED, parameters={"tools": [{"type": "web_search"}]}))
    assert [tool["type"] for tool in sent["tools"]] == ["function", "function", "web_search"]


AZURE = Endpoint("https://r.example/", "key", azure_deployment="dep")
DATED = dataclasses.replace(AZURE, azure_api_version="2024-10-21")


@pytest.mark.parametrize(
    ("adapter", "endpoint", "url", "model"),
    [
        (RESPONSES, PLACE, "https://api.example/v1/responses", "m"),
        (CHAT, PLACE, "https://api.example/v1/chat/completions", "m"),
        (RESPONSES, AZURE, "https://r.example/openai/v1/responses", "dep"),
        (CHAT, AZURE, "https://r.example/openai/v1/chat/completions", "dep"),
        (RESPONSES, DATED, "https://r.example/openai/responses?api-version=2024-10-21", "dep"),
        (
            CHAT,
            DATED,
            "https://r.example/openai/deployments/dep/chat/completions?api-version=2024-10-21",
            "dep",
        ),
    ],
)
def test_urls_and_keys(adapter: Adapter, endpoint: Endpoint, url: str, model: str) -> None:
    endpoint = dataclasses.replace(endpoint, headers={"X-Team": "t"})
    sent = adapter.to_request(ASKED, endpoint)
    assert (sent.method, sent.url) == ("POST", url)
    assert json.loads(sent.body)["model"] == model
    secret = {"api-key": "key"} if endpoint.azure_deployment else {"authorization": "Bearer key"}
    assert sent.headers == {
        "content-type": "application/json",
        "accept": "application/json",
        "x-team": "t",
        **secret,
    }
    assert "key" not in repr(endpoint)
    assert "Bearer" not in repr(sent)


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "blob"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": WIRE, "arguments": '{"id":"a"}'}
BARE = {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "ping", "arguments": ""}
PROPOSED = (ProposedCall("c1", "orders.get", '{"id":"a"}'), ProposedCall("c2", "ping", ""))
REPLY = ModelReply("openai-responses", "resp_1", "", PROPOSED, (REASONING, CALL, BARE))
# Recorded in the order they finished, with words of the caller in between.
LATER = (
    Observation("c2", "ping", "down", is_error=True),
    UserText("Hurry."),
    Observation("c1", "orders.get", '{"state":"sent"}'),
    Notice("Last turn."),
)
OUTPUTS = [
    {"type": "function_call_output", "call_id": "c1", "output": '{"state":"sent"}'},
    {"type": "function_call_output", "call_id": "c2", "output": '{"is_error":true,"output":"down"}'},
]
SAID = [{"role": "user", "content": "Hurry."}, {"role": "user", "content": NOTICE_PREFIX + "Last turn."}]


def test_responses_continue_with_the_providers_own_items() -> None:
    request = dataclasses.replace(
        ASKED, items=(UserText("Where?"), REPLY, *LATER), parameters={"reasoning": {"effort": "low"}}
    )
    sent = body(RESPONSES, request)
    first = [{"role": "user", "content": "Where?"}]
    assert sent["input"] == [*first, REASONING, CALL, {**BARE, "arguments": "{}"}, *OUTPUTS, *SAID]
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert sent["store"] is False


def test_responses_continue_by_id_with_what_is_new() -> None:
    request = dataclasses.replace(ASKED, items=(UserText("Where?"), REPLY, *LATER), previous_response_id="resp_1")
    sent = body(RESPONSES, request)
    assert sent["input"] == [*OUTPUTS, *SAID]
    assert (sent["previous_response_id"], sent["store"]) == ("resp_1", True)
    assert sent["instructions"] == "Be brief."  # not inherited
    with pytest.raises(ValueError, match="not in the transcript"):
        RESPONSES.to_request(dataclasses.replace(request, previous_response_id="resp_0"), PLACE)
    with pytest.raises(ConfigError):
        CHAT.to_request(request, PLACE)


def test_responses_answer_custom_calls_and_program_calls_in_kind() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "select 1"}
    program = {**CALL, "call_id": "c2", "caller": {"type": "program", "caller_id": "p"}}
    calls = (ProposedCall("c1", "sql", '"select 1"'), ProposedCall("c2", "program::x", "{}"))
    reply = ModelReply("openai-responses", "r", "", calls, (custom, program))
    results = (Observation("c1", "sql", "no", True), Observation("c2", "x", "no", True))
    sent = body(RESPONSES, dataclasses.replace(ASKED, items=(reply, *results)))["input"]
    assert sent[:2] == [custom, program]
    assert [item["type"] for item in sent[2:]] == ["custom_tool_call_output", "function_call_output"]
    assert sent[3]["caller"] == {"type": "program", "caller_id": "p"}


def test_chat_echoes_the_message_with_its_extra_fields() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": ""}, "extra_content": {"s": "x"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]}
    reply = ModelReply("openai-chat", "r", "", (ProposedCall("c1", "ping", ""),), (message,))
    sent = body(CHAT, dataclasses.replace(ASKED, items=(UserText("Go"), reply, Observation("c1", "ping", "ok"))))
    echoed = {**message, "tool_calls": [{**call, "function": {"name": "ping", "arguments": "{}"}}]}
    assert sent["messages"][1:] == [
        {"role": "user", "content": "Go"},
        echoed,
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


def test_a_reply_of_another_api_is_rebuilt_from_its_neutral_form() -> None:
    items = (UserText("Where?"), REPLY, *LATER)
    chat = body(CHAT, dataclasses.replace(ASKED, items=items))["messages"]
    assert chat[2] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": WIRE, "arguments": '{"id":"a"}'}},
            {"id": "c2", "type": "function", "function": {"name": "ping", "arguments": "{}"}},
        ],
    }
    assert [m["role"] for m in chat[3:]] == ["tool", "tool", "user", "user"]
    other = dataclasses.replace(REPLY, api="gemini_generate", text="So:")
    sent = body(RESPONSES, dataclasses.replace(ASKED, items=(other, *LATER)))["input"]
    assert sent[0] == {"role": "assistant", "content": "So:"}
    assert [(i["name"], i["arguments"]) for i in sent[1:3]] == [(WIRE, '{"id":"a"}'), ("ping", "{}")]


@pytest.mark.parametrize("adapter", [RESPONSES, CHAT])
@pytest.mark.parametrize("items", [(REPLY,), (UserText("x"), Observation("c9", "ping", "ok")), (REPLY, *LATER[:2])])
def test_calls_and_results_must_stand_together(adapter: Adapter, items: Any) -> None:
    with pytest.raises(ValueError, match="do not stand together"):
        adapter.to_request(dataclasses.replace(ASKED, items=items), PLACE)


def _responses(*output: dict[str, Any], **more: Any) -> Any:
    document = {"id": "resp_1", "status": "completed", "output": list(output), **more}
    return RESPONSES.from_response(HttpResponse(200, {}, json.dumps(document).encode()), ASKED)


def test_wire_names_come_back_as_ours() -> None:
    assert _responses(CALL).calls == (ProposedCall("c1", "orders.get", '{"id":"a"}'),)


def test_calls_in_a_namespace_or_of_a_program_cannot_pass_for_ours() -> None:
    reply = _responses({**CALL, "namespace": "crm"}, {**BARE, "caller": {"type": "program", "caller_id": "p"}})
    assert [call.name for call in reply.calls] == [f"crm::{WIRE}", "program::ping"]
    assert _responses({**BARE, "caller": {"type": "direct"}}).calls[0].name == "ping"


def test_calls_without_ids_get_stable_ones_that_are_echoed() -> None:
    bare = {k: v for k, v in CALL.items() if k != "call_id"}
    first, again = _responses(bare, bare), _responses(bare, bare)
    ids = [call.call_id for call in first.calls]
    assert ids == [call.call_id for call in again.calls] == [item["call_id"] for item in first.items]
    assert len(set(ids)) == 2
    assert all(len(i) == 9 and i.isalnum() for i in ids)


@pytest.mark.parametrize(
    ("output", "more", "completion", "code"),
    [
        ([{**CALL, "status": "incomplete"}], {}, "TRUNCATED", None),
        ([CALL], {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "TRUNCATED", None),
        (
            [CALL],
            {"status": "incomplete", "incomplete_details": {"reason": "steered"}},
            "API_FAILURE",
            "UNKNOWN_REASON",
        ),
        ([CALL, {"type": "mcp_approval_request", "id": "m"}], {}, "PAUSED", None),
        ([CALL, {"type": "shell_call", "call_id": "s"}], {}, "API_FAILURE", "UNSUPPORTED_CALL"),
        ([{**CALL, "name": ""}], {}, "API_FAILURE", "MODEL_OUTPUT_INVALID"),
        ([CALL], {"error": {"code": "server_error"}}, "API_FAILURE", "SERVER_ERROR"),
        ([CALL, {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}], {}, "REFUSAL", None),
    ],
)
def test_calls_are_proposed_only_by_a_sound_reply(output: Any, more: Any, completion: str, code: str | None) -> None:
    reply = _responses(*output, **more)
    assert (reply.completion, reply.calls) == (completion, ())
    assert (reply.failure.code if reply.failure else None) == code


def test_unstorable_characters_are_marked_and_never_repaired() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "a\0b\ud800"}]}
    assert _responses(message).text == "a\x1ab\x1a"


def test_unknown_api_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="openai-chat, openai-responses") as refused:
        adapter_for("smoke_signals")
    assert refused.value.code == "UNKNOWN_API"
