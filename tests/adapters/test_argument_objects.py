"""Arguments that travel as a JSON object and not as text: what the argument parser refuses is refused here too.

An ordinary JSON parser would hide it: of a key that is written twice it keeps the last value.
"""

import json

import pytest

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import Completion, HttpResponse, ModelRequest, Reply, ToolDeclaration
from adapters.registry import ADAPTERS

REQUEST = ModelRequest("m", "", (), (ToolDeclaration("read", "r", {"type": "object"}),))
PLAIN = {
    "openai-responses": '{"id":"r","status":"completed","output":[{"type":"function_call","call_id":"c","name":"read",'
    '"arguments":ARGS,"status":"completed"}]}',
    "openai-chat": '{"id":"c","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant",'
    '"tool_calls":[{"id":"c","type":"function","function":{"name":"read","arguments":ARGS}}]}}]}',
    "anthropic-messages": '{"id":"m","type":"message","role":"assistant","stop_reason":"tool_use",'
    '"content":[{"type":"tool_use","id":"c","name":"read","input":ARGS}]}',
    "gemini-generate": '{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"read",'
    '"args":ARGS}}]},"finishReason":"STOP"}]}',
    "gemini-interactions": '{"id":"i","status":"requires_action","steps":[{"type":"function_call","id":"c",'
    '"name":"read","arguments":ARGS}]}',
}
_INTERACTION = '{"event_type":"interaction.completed","interaction":{"id":"i","status":"requires_action"}}'
STREAMED = {
    "openai-responses": ['{"type":"response.completed","response":' + PLAIN["openai-responses"] + "}"],
    "openai-chat": [
        '{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"read",'
        '"arguments":ARGS}}]},"finish_reason":"tool_calls"}]}'
    ],
    "anthropic-messages": [
        '{"type":"message_start","message":{"id":"m"}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"read",'
        '"input":ARGS}}',
        '{"type":"content_block_stop","index":0}',
        '{"type":"message_delta","delta":{"stop_reason":"tool_use"}}',
        '{"type":"message_stop"}',
    ],
    "gemini-generate": [PLAIN["gemini-generate"]],
    "gemini-interactions": [
        '{"event_type":"step.start","index":0,"step":{"type":"function_call","id":"c","name":"read","arguments":ARGS}}',
        '{"event_type":"step.stop","index":0}',
        _INTERACTION,
    ],
    "gemini-interactions in pieces": [
        '{"event_type":"step.start","index":0,"step":{"type":"function_call","id":"c","name":"read","arguments":{}}}',
        '{"event_type":"step.delta","index":0,"delta":{"type":"arguments_delta","arguments":ARGS}}',
        '{"event_type":"step.stop","index":0}',
        _INTERACTION,
    ],
}
WAYS = [
    *(pytest.param(api, None, id=f"{api} plain") for api in PLAIN),
    *(pytest.param(api, [body], id=f"{api} plain where a stream was asked for") for api, body in PLAIN.items()),
    *(pytest.param(way.split()[0], events, id=f"{way} streamed") for way, events in STREAMED.items()),
]


def arguments(api: str, events: list[str] | None, text: str) -> str:
    """The argument text that comes out when the object stands in the reply like this."""
    if events is None:
        body = PLAIN[api].replace("ARGS", text).encode()
        reply: Reply = ADAPTERS[api].from_response(HttpResponse(200, {}, body), REQUEST)
    else:
        playing = ADAPTERS[api].accumulator(HttpResponse(200, {}, b""), REQUEST)
        for event in events:
            mark = "" if events == [PLAIN[api]] and api != "gemini-generate" else "data: "
            playing.feed(f"{mark}{event}\n\n".replace("ARGS", text).encode())
        reply = playing.finish()
    assert reply.completion is Completion.TOOL_PROPOSALS
    [only] = reply.calls
    return only.arguments_text


@pytest.mark.parametrize(("api", "events"), WAYS)
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"p":1,"p":2}', "DUPLICATE_KEY"),
        ('{"p":{"q":[{"r":1,"r":1}]}}', "DUPLICATE_KEY"),
        ('{"p":1,"p":"\\u0000"}', None),
        ('{"p":NaN}', None),
        ('{"p":-Infinity}', None),
        ('{"p":1e400}', None),
        ('{"p":9223372036854775808}', "NUMBER_OUT_OF_RANGE"),
        ('{"p":"\\ud800"}', None),
        ('{"p":"\\u0000"}', None),
    ],
)
def test_what_is_no_argument_object_stays_none(api: str, events: list[str] | None, text: str, code: str | None) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse_arguments(arguments(api, events, text))
    assert code in (None, refused.value.code)


@pytest.mark.parametrize(("api", "events"), WAYS)
@pytest.mark.parametrize(
    "text",
    ['{"p":1,"q":{"p":1}}', "{}", '{"p":"\\\\u001a \\\\\\\\u0000","q":"ä🚚\\ud83d\\ude9a"}', '{"p":"\\u001b\\n"}'],
)
def test_what_is_one_comes_as_it_was(api: str, events: list[str] | None, text: str) -> None:
    assert parse_arguments(arguments(api, events, text)) == json.loads(text)
