"""What is sent to Anthropic Messages: bodies, headers, history."""

import dataclasses
import json
from typing import Any

import pytest

from adapters.anthropic_messages import DEFAULT_MAX_TOKENS
from adapters.base import Endpoint, HttpResponse, ModelRequest, Reply, ToolChoice, ToolDeclaration
from adapters.common import NOTICE_PREFIX
from adapters.registry import adapter_for
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import ModelReply, Notice, Observation, TranscriptItem, UserText

API = "anthropic-messages"
ADAPTER = adapter_for(API)
PLACE = Endpoint("https://api.example", "key")
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "minLength": 2}, "deep": {"type": "boolean"}},
    "required": ["id"],
    "additionalProperties": False,
}
STRICT = {
    "type": "object",
    "properties": {"id": {"type": "string", "description": "{minLength: 2}"}, "deep": {"type": "boolean"}},
    "required": ["id"],
    "additionalProperties": False,
}
OPEN = {"type": "object", "properties": {}}
TOOLS = (ToolDeclaration("orders.get", "Get.", SCHEMA), ToolDeclaration("ping", "Ping.", OPEN))
WIRE = "orders_get_8215face8d"
ASKED = ModelRequest("claude", "Be brief.", (UserText("Where?"),), TOOLS)


def body(request: ModelRequest = ASKED, **changes: Any) -> Any:
    return json.loads(ADAPTER.to_request(dataclasses.replace(request, **changes), PLACE).body)


def told(*items: TranscriptItem) -> Any:
    return body(items=(UserText("Go"), *items))["messages"][1:]


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_the_whole_request() -> None:
    sent = body(
        max_output_tokens=50,
        output_schema=SCHEMA,
        parallel=False,
        stream=True,
        parameters={"temperature": 0, "output_config": {"effort": "low"}, "tools": [{"type": "web_search_20250305"}]},
    )
    assert sent == {
        "model": "claude",
        "max_tokens": 50,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [text("Where?")]}],
        "tools": [
            {"name": WIRE, "description": "Get.", "input_schema": STRICT, "strict": True},
            {"name": "ping", "description": "Ping.", "input_schema": OPEN},
            {"type": "web_search_20250305"},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": STRICT}},
        "temperature": 0,
        "stream": True,
    }


def test_an_output_schema_outside_the_subset_is_said_in_words() -> None:
    sent = body(output_schema={"type": "object", "additionalProperties": True})
    assert "output_config" not in sent
    assert sent["system"].startswith("Be brief.\n\n")
    assert sent["system"].endswith('{"type":"object","additionalProperties":true}')


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (ToolChoice("auto"), {"type": "auto"}),
        (ToolChoice("required"), {"type": "any"}),
        (ToolChoice("none"), {"type": "none"}),
        (ToolChoice("named", ("orders.get",)), {"type": "tool", "name": WIRE}),
    ],
)
def test_tool_choices(choice: ToolChoice, said: dict[str, Any]) -> None:
    assert body(tool_choice=choice)["tool_choice"] == said
    alone = {} if choice.mode == "none" else {"disable_parallel_tool_use": True}
    assert body(tool_choice=choice, parallel=False)["tool_choice"] == {**said, **alone}


@pytest.mark.parametrize(("required", "said"), [(False, "auto"), (True, "any")])
def test_of_a_subset_only_its_tools_are_sent(required: bool, said: str) -> None:
    hosted = {"tools": [{"type": "web_search_20250305"}]}
    sent = body(tool_choice=ToolChoice("allowed", ("ping",), required=required), parameters=hosted)
    assert [tool["name"] for tool in sent["tools"]] == ["ping"]
    assert sent["tool_choice"] == {"type": said}


def test_without_tools_nothing_is_said_about_them() -> None:
    assert not body(tools=()).keys() & {"tools", "tool_choice"}


def test_strict_can_be_switched_off() -> None:
    sent = body(parameters={"strict": False})
    assert not any("strict" in tool for tool in sent["tools"])
    assert sent["tools"][0]["input_schema"] == SCHEMA
    assert "strict" not in sent


@pytest.mark.parametrize(
    "change",
    [
        {"tool_choice": ToolChoice("named", ("refund",))},
        {"tool_choice": ToolChoice("named")},
        {"parameters": {"model": "other"}},
        {"parameters": {"max_tokens": 5}},
        {"parameters": {"tools": [{"type": "custom", "name": "refund"}]}},
        {"server_state": True},
        {"previous_response_id": "msg_1"},
    ],
)
def test_what_cannot_be_sent_is_a_config_error(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        body(**change)


@pytest.mark.parametrize("base", ["https://api.example", "https://api.example/", "https://api.example/v1"])
def test_url_and_headers(base: str) -> None:
    beta = {"Anthropic-Beta": "a,b", "anthropic-version": "2026-10-21"}
    sent = ADAPTER.to_request(ASKED, Endpoint(base, "key", headers=beta))
    assert sent.url == "https://api.example/v1/messages"
    assert sent.headers == {
        "content-type": "application/json",
        "accept": "application/json",
        "x-api-key": "key",
        "anthropic-version": "2026-10-21",
        "anthropic-beta": "a,b",
    }
    assert ADAPTER.to_request(ASKED, PLACE).headers["anthropic-version"] == "2023-06-01"
    with pytest.raises(ConfigError):
        ADAPTER.to_request(ASKED, Endpoint(base, "key", azure_deployment="d"))


@pytest.mark.parametrize(
    ("limit", "thinking", "max_tokens", "sent"),
    [
        (None, None, DEFAULT_MAX_TOKENS, None),
        (None, 2000, DEFAULT_MAX_TOKENS + 2000, 2000),
        (5000, 2000, 5000, 2000),
        (3000, 4000, 3000, 1500),
        (1025, 4000, 1025, 1024),
        (900, 4000, 900, "disabled"),
    ],
)
def test_thinking_fits_below_the_limit(limit: Any, thinking: Any, max_tokens: int, sent: Any) -> None:
    parameters = {"thinking": {"type": "enabled", "budget_tokens": thinking}} if thinking else {}
    got = body(max_output_tokens=limit, parameters=parameters)
    assert got["max_tokens"] == max_tokens
    shown = got.get("thinking", {})
    assert shown.get("budget_tokens", "disabled" if shown else None) == sent
    adaptive = {"thinking": {"type": "adaptive"}}
    assert body(max_output_tokens=10, parameters=adaptive)["thinking"] == {"type": "adaptive"}


THINKING = {"type": "thinking", "thinking": "", "signature": "sig"}
REDACTED = {"type": "redacted_thinking", "data": "blob"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def call(call_id: str, name: str = "ping", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given, "caller": {"type": "direct"}}


def reply(*blocks: dict[str, Any], calls: tuple[str, ...] = (), said: str = "") -> ModelReply:
    return ModelReply(API, "msg_1", said, tuple(ProposedCall(c, "ping", "{}") for c in calls), blocks)


def test_results_come_first_in_call_order_and_blocks_stay_in_place() -> None:
    blocks = (THINKING, text("So:"), REDACTED, SEARCH, FOUND, call("c1", WIRE, id="a"), call("c2"))
    later = (
        Observation("c2", "ping", "down", is_error=True),
        UserText("Hurry."),
        Observation("c1", "orders.get", '{"state":"sent"}'),
        Notice("Last turn."),
    )
    assert told(reply(*blocks, calls=("c1", "c2")), *later) == [
        {"role": "assistant", "content": list(blocks)},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": '{"state":"sent"}'},
                {"type": "tool_result", "tool_use_id": "c2", "content": "down", "is_error": True},
                text("Hurry."),
                text(NOTICE_PREFIX + "Last turn."),
            ],
        },
    ]


def test_what_users_say_in_a_row_is_one_message() -> None:
    sent = body(items=(UserText("Where?"), UserText("  "), Notice("Hm."), reply(), UserText("And?")))["messages"]
    assert sent == [{"role": "user", "content": [text("Where?"), text(NOTICE_PREFIX + "Hm."), text("And?")]}]


def test_empty_texts_are_left_out_and_empty_thinking_is_not() -> None:
    assert told(reply(THINKING, text(""), text(" \n"), text("a")))[0]["content"] == [THINKING, text("a")]


def test_a_paused_turn_is_sent_back_unchanged_and_goes_on_in_its_container() -> None:
    paused = reply(THINKING, text("Searching."), SEARCH, {"type": "container", "id": "box_1", "expires_at": "later"})
    request = dataclasses.replace(ASKED, items=(UserText("Go"), paused))
    sent = body(request)
    assert sent["messages"][1:] == [{"role": "assistant", "content": [THINKING, text("Searching."), SEARCH]}]
    assert sent["container"] == "box_1"
    assert body(request, parameters={"container": {"skills": []}})["container"] == {"skills": [], "id": "box_1"}
    assert body(request, parameters={"container": "box_2"})["container"] == "box_2"
    resumed = told(paused, reply(FOUND, call("c1"), calls=("c1",)), Observation("c1", "ping", "ok"))
    assert [message["role"] for message in resumed] == ["assistant", "user"]
    assert resumed[0]["content"] == [THINKING, text("Searching."), SEARCH, FOUND, call("c1")]


def test_a_call_that_nobody_will_answer_is_not_sent_back() -> None:
    assert told(reply(text("Searching."), SEARCH, call("c1")), UserText("Stop."))[0]["content"] == [text("Searching.")]
    waiting = told(reply(SEARCH, call("c1"), calls=("c1",)), Observation("c1", "ping", "ok"))
    assert waiting[0]["content"] == [SEARCH, call("c1")]


def test_a_call_id_that_came_twice_is_sent_back_once() -> None:
    twice = reply(call("c1", a=1), call("c1", a=2), calls=("c1", "c1"))
    sent = told(twice, Observation("c1", "ping", "ok"))
    assert sent[0]["content"] == [call("c1", a=1)]
    assert [block["tool_use_id"] for block in sent[1]["content"]] == ["c1"]


def test_the_result_of_a_toolsets_call_names_the_toolset() -> None:
    member = {**call("c1"), "toolset_name": "browser"}
    sent = told(reply(member, calls=("c1",)), Observation("c1", "browser::ping", "no", is_error=True))
    assert sent[1]["content"][0]["toolset_name"] == "browser"


def test_a_reply_of_another_api_is_rebuilt_from_its_neutral_form() -> None:
    calls = (
        ProposedCall("functions.get:0", "orders.get", '{"id": "a"}'),
        ProposedCall("call_2", "ping", ""),
        ProposedCall("call_2", "ping", "{}"),
        ProposedCall("call_3", "ping", '{"a":'),
    )
    foreign = ModelReply("openai-chat", "r", "So:", calls, ({"role": "assistant"},))
    seen = [Observation(c, "t", "ok") for c in ("functions.get:0", "call_2", "call_3")]
    sent = told(foreign, *seen, foreign, *seen)
    blocks = sent[0]["content"]
    assert blocks[0] == text("So:")
    assert [(b["name"], b["input"]) for b in blocks[1:]] == [
        (WIRE, {"id": "a"}),
        ("ping", {}),
        ("ping", {"INVALID_JSON": '{"a":'}),
    ]
    assert [b["id"] for b in blocks[2:]] == ["call_2", "call_3"]
    ids = [b["id"] for message in sent[::2] for b in message["content"] if b["type"] == "tool_use"]
    assert len(set(ids)) == len(ids) == 6
    assert all(i.replace("_", "").isalnum() for i in ids)
    assert [b["tool_use_id"] for message in sent[1::2] for b in message["content"]] == ids
    assert told(foreign, *seen) == sent[:2]


@pytest.mark.parametrize("items", [(reply(call("c1"), calls=("c1",)),), (Observation("c9", "ping", "ok"),)])
def test_calls_and_results_must_stand_together(items: Any) -> None:
    with pytest.raises(ValueError, match="do not stand together"):
        told(*items)


# --- replies ---------------------------------------------------------------------------------------------------------


def read(raw: str | bytes, status: int = 200) -> Reply:
    return ADAPTER.from_response(HttpResponse(status, {}, raw.encode() if isinstance(raw, str) else raw), ASKED)


def message(*content: Any, reason: Any = "tool_use", **more: Any) -> Reply:
    return read(json.dumps({"id": "msg_1", "type": "message", "content": list(content), "stop_reason": reason, **more}))


def test_wire_names_come_back_as_ours_and_foreign_calls_cannot_pass_for_ours() -> None:
    program = {**call("c2"), "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
    found = message(call("c1", WIRE, id="a"), program, {**call("c3"), "toolset_name": "crm"})
    assert [c.name for c in found.calls] == ["orders.get", "code_execution_20250825::ping", "crm::ping"]


@pytest.mark.parametrize(
    ("given", "argument_text"),
    [
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e400}', '{"a": 1e400}'),
        ('{"n":1.50,"big":123456789012345678901234567890}', '{"n": 1.50, "big": 123456789012345678901234567890}'),
        ('{"a": "x\\u0000\\ud800"}', '{"a": "x\\u0000\\ud800"}'),
        ('"{\\"a\\": "', '{"a": '),
        ("[1]", "[1]"),
        ("{}", "{}"),
        ("null", "{}"),
        ('""', "{}"),
    ],
)
def test_argument_text_is_as_the_server_wrote_it(given: str, argument_text: str) -> None:
    block = f'{{"type":"tool_use","id":"c","name":"ping","input":{given}}}'
    found = read(f'{{"id":"m","content":[{block}],"stop_reason":"tool_use"}}')
    assert [c.arguments_text for c in found.calls] == [argument_text]
    assert isinstance(found.items[0]["input"], dict)


def test_calls_without_ids_get_stable_ones_that_are_echoed() -> None:
    bare = {"type": "tool_use", "name": "ping", "input": {}}
    first, again = message(bare, bare), message(bare, bare)
    ids = [c.call_id for c in first.calls]
    assert ids == [c.call_id for c in again.calls] == [item["id"] for item in first.items]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("content", "reason", "completion", "code"),
    [
        ([call("c")], "max_tokens", "TRUNCATED", None),
        ([call("c")], "model_context_window_exceeded", "TRUNCATED", None),
        ([call("c")], "refusal", "REFUSAL", None),
        ([call("c")], "pause_turn", "PAUSED", None),
        ([call("c")], "compaction", "PAUSED", None),
        ([call("c")], "end_turn", "API_FAILURE", "UNKNOWN_REASON"),
        ([call("c")], "stop_sequence", "API_FAILURE", "UNKNOWN_REASON"),
        ([call("c")], None, "API_FAILURE", "UNKNOWN_REASON"),
        ([call("c")], "tired", "API_FAILURE", "UNKNOWN_REASON"),
        ([call("c", name="")], "tool_use", "API_FAILURE", "MODEL_OUTPUT_INVALID"),
        ([SEARCH], "tool_use", "API_FAILURE", "MODEL_OUTPUT_INVALID"),
        ([], "end_turn", "FINAL_TEXT", None),
        (["x"], "end_turn", "API_FAILURE", "UNEXPECTED_SHAPE"),
    ],
)
def test_calls_are_proposed_only_by_a_sound_reply(content: Any, reason: Any, completion: str, code: Any) -> None:
    found = message(*content, reason=reason)
    assert (found.completion, found.calls) == (completion, ())
    assert (found.failure.code if found.failure else None) == code


def test_a_container_is_carried_beside_the_blocks() -> None:
    found = message(text("a"), reason="pause_turn", container={"id": "box_1", "expires_at": "later"})
    kept = ModelReply(API, found.response_id, found.text, found.calls, found.items)
    assert body(items=(UserText("Go"), kept))["container"] == "box_1"


@pytest.mark.parametrize(
    ("status", "error", "code", "retryable"),
    [
        (400, {"message": "input length and `max_tokens` exceed context limit: 9 + 9 > 10"}, "CONTEXT_LENGTH", False),
        (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, "CONTEXT_LENGTH", False),
        (400, {"message": "Your credit balance is too low to access the API."}, "BILLING", False),
        (402, {"type": "billing_error"}, "BILLING", False),
        (429, {"details": {"error_code": "enforced_spend_limit_reached"}}, "QUOTA_EXHAUSTED", False),
        (529, {"type": "overloaded_error"}, "OVERLOADED", True),
        (200, {"type": "overloaded_error"}, "OVERLOADED", True),
        (200, {"type": "rate_limit_error"}, "RATE_LIMITED", True),
        (200, {"type": "authentication_error"}, "AUTHENTICATION", False),
        (200, {"type": "invalid_request_error"}, "BAD_REQUEST", False),
    ],
)
def test_errors(status: int, error: dict[str, Any], code: str, retryable: bool) -> None:
    found = read(json.dumps({"type": "error", "error": error, "request_id": "req_1"}), status)
    assert found.failure is not None
    assert (found.failure.code, found.failure.retryable, found.request_id) == (code, retryable, "req_1")
