"""What the Gemini adapters send: every field, the history in the order of the API, going on from a stopped reply."""

import json
from typing import Any

import pytest

from adapters.base import Completion, Endpoint, HttpResponse, ModelRequest, Reply, ToolChoice, ToolDeclaration
from adapters.common import NOTICE_PREFIX
from adapters.gemini_generate import NO_SIGNATURE
from adapters.registry import adapter_for
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import ProposedCall
from orchestrator.domain.transcript import ModelReply, Notice, Observation, TranscriptItem, UserText

GENERATE, INTERACTIONS = "gemini-generate", "gemini-interactions"
HOST = "https://generativelanguage.googleapis.com"
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"order": {"type": "string"}, "kind": {"const": "full"}},
    "required": ["order"],
    "additionalProperties": False,
}
SENT = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "kind": {"enum": ["full"]}},
    "required": ["order"],
    "additionalProperties": False,
}
TOOLS = (
    ToolDeclaration("refund", "Refund it.", SCHEMA),
    ToolDeclaration("1.ping", "Ping.", {"type": "object", "properties": {}, "additionalProperties": False}),
)
HELLO = UserText("Hello")


def request(*items: TranscriptItem, **more: Any) -> ModelRequest:
    return ModelRequest("gemini-3-flash", "Be brief.", items or (HELLO,), TOOLS, **more)


def sent(api: str, asked: ModelRequest, base: str = HOST, **more: Any) -> tuple[str, dict[str, str], Any]:
    wire = adapter_for(api).to_request(asked, Endpoint(base, "key", **more))
    assert wire.method == "POST"
    return wire.url, dict(wire.headers), json.loads(wire.body)


def ping_name() -> str:
    _, _, body = sent(GENERATE, request())
    return str(body["tools"][0]["functionDeclarations"][1]["name"])


# --- place, headers, body --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "place", "header"),
    [
        (HOST, f"{HOST}/v1beta/models/gemini-3-flash", "x-goog-api-key"),
        (f"{HOST}/", f"{HOST}/v1beta/models/gemini-3-flash", "x-goog-api-key"),
        (f"{HOST}/v1beta", f"{HOST}/v1beta/models/gemini-3-flash", "x-goog-api-key"),
        (f"{HOST}/v1", f"{HOST}/v1/models/gemini-3-flash", "x-goog-api-key"),
        (
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google/models/gemini-3-flash",
            "authorization",
        ),
        (
            "https://aiplatform.googleapis.com/v1/publishers/google",
            "https://aiplatform.googleapis.com/v1/publishers/google/models/gemini-3-flash",
            "x-goog-api-key",
        ),
    ],
)
def test_place_and_key(base: str, place: str, header: str) -> None:
    url, headers, _ = sent(GENERATE, request(), base)
    assert url == f"{place}:generateContent"
    assert headers[header] == ("Bearer key" if header == "authorization" else "key")
    assert len({"authorization", "x-goog-api-key"} & headers.keys()) == 1
    url, headers, _ = sent(GENERATE, request(stream=True), base, headers={"X-Extra": "1"})
    assert url == f"{place}:streamGenerateContent?alt=sse"
    assert headers["x-extra"] == "1"


def test_generate_body() -> None:
    asked = request(
        max_output_tokens=50,
        output_schema={"type": "object", "properties": {}},
        parameters={
            "temperature": 0,
            "generationConfig": {"thinkingConfig": {"thinkingLevel": "low"}},
            "safetySettings": [{"category": "c", "threshold": "t"}],
            "tools": [{"googleSearch": {}}],
            "toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": True}},
        },
    )
    _, _, body = sent(GENERATE, asked)
    assert body == {
        "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [
            {"googleSearch": {}},
            {
                "functionDeclarations": [
                    {"name": "refund", "description": "Refund it.", "parametersJsonSchema": SENT},
                    {"name": ping_name(), "description": "Ping."},
                ]
            },
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO", "streamFunctionCallArguments": True}},
        "generationConfig": {
            "maxOutputTokens": 50,
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object", "properties": {}},
            "thinkingConfig": {"thinkingLevel": "low"},
            "temperature": 0,
        },
        "safetySettings": [{"category": "c", "threshold": "t"}],
    }
    assert ping_name().startswith("_1_ping_")


def test_interactions_body() -> None:
    asked = request(
        max_output_tokens=50,
        output_schema={"type": "object", "properties": {}},
        parameters={"thinking_level": "low", "tools": [{"type": "google_search"}], "service_tier": "flex"},
        stream=True,
    )
    url, headers, body = sent(INTERACTIONS, asked)
    assert url == f"{HOST}/v1beta/interactions"
    assert (headers["api-revision"], headers["x-goog-api-key"]) == ("2026-05-20", "key")
    assert body == {
        "model": "gemini-3-flash",
        "input": [{"type": "user_input", "content": [{"type": "text", "text": "Hello"}]}],
        "store": False,
        "system_instruction": "Be brief.",
        "tools": [
            {"type": "function", "name": "refund", "description": "Refund it.", "parameters": SENT},
            {"type": "function", "name": ping_name(), "description": "Ping."},
            {"type": "google_search"},
        ],
        "generation_config": {"tool_choice": "auto", "max_output_tokens": 50, "thinking_level": "low"},
        "response_format": {
            "type": "text",
            "mime_type": "application/json",
            "schema": {"type": "object", "properties": {}},
        },
        "service_tier": "flex",
        "stream": True,
    }


@pytest.mark.parametrize(
    ("choice", "generate", "interactions"),
    [
        (ToolChoice(), {"mode": "AUTO"}, "auto"),
        (ToolChoice("required"), {"mode": "ANY"}, "any"),
        (ToolChoice("none"), {"mode": "NONE"}, "none"),
        (
            ToolChoice("named", ("refund",)),
            {"mode": "ANY", "allowedFunctionNames": ["refund"]},
            {"allowed_tools": {"mode": "any", "tools": ["refund"]}},
        ),
        (
            ToolChoice("allowed", ("refund",), required=True),
            {"mode": "ANY", "allowedFunctionNames": ["refund"]},
            {"allowed_tools": {"mode": "any", "tools": ["refund"]}},
        ),
        (
            ToolChoice("allowed", ("refund",)),
            {"mode": "VALIDATED", "allowedFunctionNames": ["refund"]},
            {"allowed_tools": {"mode": "auto", "tools": ["refund"]}},
        ),
    ],
)
def test_tool_choice(choice: ToolChoice, generate: Any, interactions: Any) -> None:
    asked = request(tool_choice=choice)
    assert sent(GENERATE, asked)[2]["toolConfig"] == {"functionCallingConfig": generate}
    assert sent(INTERACTIONS, asked)[2]["generation_config"] == {"tool_choice": interactions}


@pytest.mark.parametrize("api", [GENERATE, INTERACTIONS])
def test_no_tools_no_choice(api: str) -> None:
    _, _, body = sent(api, ModelRequest("m", "", (HELLO,)))
    assert not {"tools", "toolConfig", "generation_config", "systemInstruction", "system_instruction"} & body.keys()


@pytest.mark.parametrize(
    ("api", "parameters"),
    [
        (GENERATE, {"contents": []}),
        (GENERATE, {"maxOutputTokens": 3}),
        (GENERATE, {"generationConfig": {"candidateCount": 2}}),
        (GENERATE, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        (GENERATE, {"tools": [{"functionDeclarations": []}]}),
        (INTERACTIONS, {"background": True}),
        (INTERACTIONS, {"generation_config": {"tool_choice": "any"}}),
        (INTERACTIONS, {"tools": [{"type": "function", "name": "x"}]}),
    ],
)
def test_what_the_loop_owns_is_refused(api: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        sent(api, request(parameters=parameters))


def test_server_state_is_for_interactions_only() -> None:
    with pytest.raises(ConfigError) as refused:
        sent(GENERATE, request(previous_response_id="x"))
    assert refused.value.code == "SERVER_STATE_UNSUPPORTED"


# --- history ---------------------------------------------------------------------------------------------------------


def reply(api: str, body: Any, *items: TranscriptItem) -> Reply:
    return adapter_for(api).from_response(HttpResponse(200, {}, json.dumps(body).encode()), request(*items or (HELLO,)))


def kept(api: str, answer: Reply) -> ModelReply:
    return ModelReply(api, answer.response_id, answer.text, answer.calls, answer.items)


def candidate(*parts: Any, **more: Any) -> Any:
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "finishReason": "STOP", **more}], "responseId": "r1"}


def test_results_stand_in_one_content_in_call_order() -> None:
    parts = (
        {"text": "thinking", "thought": True},
        {"functionCall": {"name": "refund", "args": {"order": "A"}, "id": "abc"}, "thoughtSignature": "sig"},
        {"functionCall": {"name": "refund", "args": {"order": "B"}}},
        {"functionCall": {"name": ping_name()}},
    )
    answer = reply(GENERATE, candidate(*parts))
    first, second, third = (call.call_id for call in answer.calls)
    assert first == "abc"
    assert len({first, second, third}) == 3
    assert [call.name for call in answer.calls] == ["refund", "refund", "1.ping"]
    assert [call.arguments_text for call in answer.calls] == ['{"order":"A"}', '{"order":"B"}', "{}"]
    observed = (
        Observation(third, "1.ping", "pong"),
        Observation(second, "refund", '{"n": 2}', is_error=True),
        Observation(first, "refund", '{"n": 1}'),
    )
    _, _, body = sent(GENERATE, request(HELLO, kept(GENERATE, answer), *observed, Notice("Last turn.")))
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "Hello"}]},
        {"role": "model", "parts": list(parts)},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "abc", "name": "refund", "response": {"output": {"n": 1}}}},
                {"functionResponse": {"name": "refund", "response": {"error": {"n": 2}}}},
                {"functionResponse": {"name": ping_name(), "response": {"output": "pong"}}},
            ],
        },
        {"role": "user", "parts": [{"text": NOTICE_PREFIX + "Last turn."}]},
    ]
    assert second not in json.dumps(body)  # an id of ours is not shown to the provider


def test_own_call_ids_differ_over_turns_and_stay_the_same() -> None:
    body = candidate({"functionCall": {"name": "refund", "args": {}}}, {"functionCall": {"name": "refund"}})
    del body["responseId"]
    first = reply(GENERATE, body)
    again = reply(GENERATE, body)
    later = reply(GENERATE, body, HELLO, kept(GENERATE, first))
    ids = [call.call_id for call in (*first.calls, *later.calls)]
    assert len(set(ids)) == 4
    assert [call.call_id for call in again.calls] == ids[:2]


def test_a_call_id_that_comes_twice_is_answered_twice() -> None:
    """The API counts responses; the loop runs such a call once."""
    call = {"functionCall": {"name": "refund", "args": {}, "id": "same"}, "thoughtSignature": "s"}
    answer = reply(GENERATE, candidate(call, call))
    _, _, body = sent(GENERATE, request(HELLO, kept(GENERATE, answer), Observation("same", "refund", "{}")))
    first, second = (part["functionResponse"] for part in body["contents"][-1]["parts"])
    assert first == {"id": "same", "name": "refund", "response": {"output": {}}}
    assert second["response"].keys() == {"error"}


FOREIGN = ModelReply(
    "openai-chat",
    "c1",
    "Let me see.",
    (ProposedCall("call_1", "refund", '{"order":"A"}'), ProposedCall("call_2", "1.ping", "{bad")),
    ({"role": "assistant"},),
)
FOREIGN_RESULTS = (Observation("call_1", "refund", "done"), Observation("call_2", "1.ping", "no", is_error=True))


def test_history_of_another_api() -> None:
    asked = request(HELLO, FOREIGN, *FOREIGN_RESULTS)
    contents = sent(GENERATE, asked)[2]["contents"]
    assert contents[1]["parts"] == [
        {"text": "Let me see."},
        {"functionCall": {"name": "refund", "args": {"order": "A"}}, "thoughtSignature": NO_SIGNATURE},
        {"functionCall": {"name": ping_name(), "args": {}}},
    ]
    assert [part["functionResponse"] for part in contents[2]["parts"]] == [
        {"name": "refund", "response": {"output": "done"}},
        {"name": ping_name(), "response": {"error": "no"}},
    ]
    assert sent(INTERACTIONS, asked)[2]["input"][1:] == [
        {"type": "model_output", "content": [{"type": "text", "text": "Let me see."}]},
        {"type": "function_call", "id": "call_1", "name": "refund", "arguments": {"order": "A"}},
        {"type": "function_call", "id": "call_2", "name": ping_name(), "arguments": {}},
        {"type": "function_result", "call_id": "call_1", "name": "refund", "result": "done"},
        {"type": "function_result", "call_id": "call_2", "name": ping_name(), "result": "no", "is_error": True},
    ]


STEPS = [
    {"type": "thought", "signature": "sig"},
    {"type": "function_call", "id": "f1", "name": "refund", "arguments": {"order": "A"}},
    {"type": "function_call", "id": "f2", "name": "refund", "arguments": {}},
]
ACTION = {"id": "v1_a", "status": "requires_action", "steps": STEPS}
RESULTS = (Observation("f2", "refund", "two", is_error=True), Observation("f1", "refund", '{"n": 1}'))
WIRE_RESULTS = [
    {"type": "function_result", "call_id": "f1", "name": "refund", "result": '{"n": 1}'},
    {"type": "function_result", "call_id": "f2", "name": "refund", "result": "two", "is_error": True},
]


def test_interactions_resend_everything_or_name_the_kept_one() -> None:
    answer = kept(INTERACTIONS, reply(INTERACTIONS, ACTION))
    _, _, stateless = sent(INTERACTIONS, request(HELLO, answer, *RESULTS))
    said = {"type": "user_input", "content": [{"type": "text", "text": "Hello"}]}
    assert (stateless["input"], stateless["store"]) == ([said, *STEPS, *WIRE_RESULTS], False)
    _, _, stateful = sent(
        INTERACTIONS, request(HELLO, answer, *RESULTS, server_state=True, previous_response_id="v1_a")
    )
    assert (stateful["input"], stateful["store"]) == (WIRE_RESULTS, True)
    assert stateful["previous_interaction_id"] == "v1_a"
    assert stateful["tools"] == stateless["tools"]
    assert stateful["system_instruction"] == "Be brief."
    with pytest.raises(ValueError, match="not in the transcript"):
        sent(INTERACTIONS, request(HELLO, answer, *RESULTS, previous_response_id="other"))


# --- going on --------------------------------------------------------------------------------------------------------


def test_generate_goes_on_from_a_stopped_reply() -> None:
    call = {"functionCall": {"name": "refund", "args": {"order": "A"}, "id": "f1"}, "thoughtSignature": "s"}
    first = reply(GENERATE, candidate({"text": "One, "}, finishReason="CONTINUATION", continuationToken="t1"))
    assert first.completion is Completion.PAUSED
    paused = kept(GENERATE, first)
    _, _, body = sent(GENERATE, request(HELLO, paused))
    assert body["continuationToken"] == "t1"
    assert len(body["contents"]) == 1  # the same request as before, with the token
    second = reply(GENERATE, candidate({"text": "two."}, call), HELLO, paused)
    assert (second.completion, second.text) == (Completion.TOOL_PROPOSALS, "One, two.")
    _, _, body = sent(GENERATE, request(HELLO, paused, kept(GENERATE, second), Observation("f1", "refund", "ok")))
    assert "continuationToken" not in body
    assert [content["parts"] for content in body["contents"][1:3]] == [[{"text": "One, "}], [{"text": "two."}, call]]
    assert "turnqueue" not in json.dumps(body)
    _, _, body = sent(GENERATE, request(HELLO, paused, UserText("Stop.")))  # what was said since makes it another turn
    assert [content["parts"][0]["text"] for content in body["contents"]] == ["Hello", "One, ", "Stop."]
    assert "continuationToken" not in body


def test_interactions_go_on_from_a_stopped_reply() -> None:
    part = {"type": "model_output", "content": [{"type": "text", "text": "One, "}]}
    rest = {"type": "model_output", "content": [{"type": "text", "text": "two."}]}
    stopped = {"id": "v1_a", "status": "requires_continuation", "steps": [part], "continuation_token": "t1"}
    paused = kept(INTERACTIONS, reply(INTERACTIONS, stopped))
    _, _, body = sent(INTERACTIONS, request(HELLO, paused))
    assert (body["continuation_token"], len(body["input"])) == ("t1", 1)
    _, _, body = sent(INTERACTIONS, request(HELLO, paused, server_state=True, previous_response_id="v1_a"))
    assert (body["continuation_token"], body["previous_interaction_id"]) == ("t1", "v1_a")
    assert "input" not in body
    done = reply(INTERACTIONS, {"id": "v1_b", "status": "completed", "steps": [rest]}, HELLO, paused)
    assert (done.completion, done.text) == (Completion.FINAL_TEXT, "One, two.")
    _, _, body = sent(INTERACTIONS, request(HELLO, paused, kept(INTERACTIONS, done), UserText("More.")))
    assert body["input"][1:3] == [part, rest]
