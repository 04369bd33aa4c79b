"""Which fragment belongs to which call, and when an OpenAI stream is over: also from servers that break the rules."""

import json
from typing import Any

import pytest

from adapters.base import Completion, HttpResponse, ModelRequest, Progress, Reply, ToolDeclaration
from adapters.registry import adapter_for
from adapters.streaming import SseDecoder, SseEvent

REQUEST = ModelRequest("m", "", (), (ToolDeclaration("read", "r", {"type": "object"}),), stream=True)
HEAD = HttpResponse(200, {"x-request-id": "req_1"}, b"")
CALLS, FINAL, FAILED = Completion.TOOL_PROPOSALS, Completion.FINAL_TEXT, Completion.API_FAILURE


def play(api: str, *events: Any, seen: list[Progress] | None = None) -> Reply:
    """Events as data lines; a string as it is."""
    accumulator = adapter_for(api).accumulator(HEAD, REQUEST)
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        progress = accumulator.feed(f"data: {data}\n\n".encode())
        if seen is not None:
            seen += progress
    return accumulator.finish()


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "gpt", "choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def piece(
    index: int | None, call_id: str | None, name: str | None, arguments: Any = None, **more: Any
) -> dict[str, Any]:
    """One fragment of a call; None leaves the field out."""
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    entry = {k: v for k, v in (("index", index), ("id", call_id)) if v is not None}
    return delta(tool_calls=[{**entry, "function": function, **more}])


END = delta("tool_calls")
DONE = "[DONE]"


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [piece(0, "a", "read", ""), piece(0, None, None, '{"p"'), piece(0, None, None, ":1}")],
            [("a", "read", '{"p":1}')],
            id="as documented",
        ),
        pytest.param(
            [piece(0, "a", "read", "{}"), piece(1, "b", "read", '{"p":'), piece(1, None, None, "2}")],
            [("a", "read", "{}"), ("b", "read", '{"p":2}')],
            id="parallel",
        ),
        pytest.param(
            [
                piece(0, "a", "read", "{"),
                piece(1, "b", "read", "{"),
                piece(0, None, None, "}"),
                piece(1, None, None, "}"),
            ],
            [("a", "read", "{}"), ("b", "read", "{}")],
            id="interleaved",
        ),
        pytest.param(
            [piece(None, "a", "read", "{}"), piece(None, "b", "read", "{"), piece(None, None, None, "}")],
            [("a", "read", "{}"), ("b", "read", "{}")],
            id="no index",
        ),
        pytest.param(
            [piece(0, "a", "read", "{}"), piece(0, "b", "read", "{}")],
            [("a", "read", "{}"), ("b", "read", "{}")],
            id="one index for all",
        ),
        pytest.param(
            [
                piece(0, "a", "read", "{"),
                piece(0, "b", "read", "{"),
                piece(0, "a", None, "}"),
                piece(0, "b", None, "}"),
            ],
            [("a", "read", "{}"), ("b", "read", "{}")],
            id="one index for all, ids on every fragment",
        ),
        pytest.param(
            [piece(0, "a", "read", "{"), piece(0, "a", "read", "}")], [("a", "read", "{}")], id="id and name repeated"
        ),
        pytest.param(
            [piece(1, "a", "read", "{}"), piece(5, "b", "read", "{}")],
            [("a", "read", "{}"), ("b", "read", "{}")],
            id="gaps",
        ),
        pytest.param(
            [piece(0, "a", "read", "{}"), piece(1, "a", "read", "{}")],
            [("a", "read", "{}"), ("a", "read", "{}")],
            id="one id for two: for the judge to refuse",
        ),
        pytest.param(
            [piece(0, "a", "read", "", type=None), piece(0, None, None, "{}", type=None)],
            [("a", "read", "{}")],
            id="type null",
        ),
        pytest.param([piece(0, "a", "read", {"p": 1})], [("a", "read", '{"p":1}')], id="an object for arguments"),
        pytest.param([piece(0, "a", "re"), piece(0, None, "ad"), piece(0, None, None, "{}")], [("a", "read", "{}")]),
        pytest.param(
            [piece(0, None, "read", "{"), piece(0, "late", None, "}")], [("late", "read", "{}")], id="the id comes late"
        ),
        pytest.param(
            [piece(0, "a", "read", "{}"), piece(0, "", "", "")], [("a", "read", "{}")], id="empty id and name later"
        ),
        pytest.param([piece(0, "a", "read", '{"p":1}{')], [("a", "read", '{"p":1}{')], id="nothing is repaired"),
    ],
)
def test_fragments_of_calls(fragments: list[Any], expected: list[tuple[str, str, str]]) -> None:
    seen: list[Progress] = []
    reply = play("openai-chat", *fragments, END, DONE, seen=seen)
    assert reply.completion is CALLS
    assert [(c.call_id, c.name, c.arguments_text) for c in reply.calls] == expected
    assert [p.name for p in seen if p.kind == "call"][:1] != []


def test_a_call_without_an_id_gets_one_of_ours() -> None:
    (call,) = play("openai-chat", piece(0, None, "read", "{}"), END).calls
    assert len(call.call_id) == 9


@pytest.mark.parametrize(
    "fragments",
    [
        [piece(0, "a", None, "{}")],
        [piece(0, "a", "read", "{}"), piece(0, "b", None, "{}")],
        [piece(0, "a", "read", "{}"), piece(0, None, "write", "{}")],
        [delta(tool_calls=["x"])],
        [delta(tool_calls="x")],
    ],
    ids=["no name", "a new id without a name", "a second name", "no object", "no list"],
)
def test_fragments_that_make_no_call(fragments: list[Any]) -> None:
    reply = play("openai-chat", *fragments, END, DONE)
    assert (reply.completion, reply.calls) == (FAILED, ())
    assert reply.failure is not None
    assert reply.failure.code == "MODEL_OUTPUT_INVALID"


ONE = piece(0, "a", "read", "{}")


def test_when_a_completion_is_over() -> None:
    usage = {"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    azure = {"id": "", "model": "", "choices": [], "prompt_filter_results": []}
    whole = play("openai-chat", azure, ONE, END, usage, DONE)
    assert (whole.completion, whole.usage.input, whole.usage.output) == (CALLS, 3, 4)
    assert (whole.response_id, whole.model, whole.request_id) == ("c1", "gpt", "req_1")
    assert play("openai-chat", ONE, END).completion is CALLS  # some gateways leave `[DONE]` out
    for events in ((ONE,), (ONE, DONE), (ONE, usage, DONE), (ONE, delta(""), DONE), ()):
        reply = play("openai-chat", *events)
        assert (reply.completion, reply.calls, reply.items) == (FAILED, (), ())
        assert reply.failure is not None
        assert (reply.failure.code, reply.failure.retryable) == ("INTERRUPTED", True)


def test_what_comes_after_the_reason_counts_until_done() -> None:
    late_filter = play("openai-chat", ONE, END, delta("content_filter"), delta("stop"), DONE)
    assert (late_filter.completion, late_filter.calls) == (Completion.REFUSAL, ())
    broken = play("openai-chat", ONE, END, {"error": {"message": "no", "type": "server_error"}})
    assert (broken.completion, broken.calls) == (FAILED, ())
    assert play("openai-chat", ONE, END, DONE, {"error": {"type": "server_error"}}).completion is CALLS
    assert play("openai-chat", ONE, END, "{cut").completion is FAILED


def test_an_error_in_a_choice() -> None:
    event = {"id": "c1", "error": {"code": 502, "message": "no"}, "choices": [{"index": 0, "finish_reason": "error"}]}
    failure = play("openai-chat", ONE, event).failure
    assert failure is not None
    assert (failure.code, failure.retryable) == ("SERVER_ERROR", True)


def test_other_choices_and_other_fields() -> None:
    second = {"id": "c1", "choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    parts = [{"type": "thinking", "thinking": []}]
    events = (delta(role="assistant", content=""), second, delta(content=parts), delta(content="yes"), delta("stop"))
    reply = play("openai-chat", *events)
    assert (reply.completion, reply.text) == (FINAL, "yes")
    events = (
        delta(reasoning_content="a"),
        delta(reasoning_content="b", content="c"),
        delta(content="d"),
        delta("stop"),
    )
    assert play("openai-chat", *events).items == ({"role": "assistant", "content": "cd", "reasoning_content": "ab"},)
    signed = piece(0, "a", "read", "{}", extra_content={"google": {"thought_signature": "s"}})
    assert play("openai-chat", signed, END).items[0]["tool_calls"][0]["extra_content"] == {
        "google": {"thought_signature": "s"}
    }


def test_half_characters_meet_and_lonely_halves_are_replaced() -> None:
    high, low = '{"id":"c","choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}', delta(content="\ude00", role="x")
    assert play("openai-chat", high, low, delta("stop")).text == "😀"
    assert play("openai-chat", high, delta("stop")).text == "\x1a"


# --- Responses -------------------------------------------------------------------------------------------------------

CALL = {"type": "function_call", "id": "fc", "call_id": "a", "name": "read", "arguments": "{}", "status": "completed"}
SAID = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}


def response(kind: str, *output: Any, **fields: Any) -> dict[str, Any]:
    body = {"id": "r1", "model": "gpt", "status": kind, "output": list(output), **fields}
    return {"type": f"response.{kind}", "response": body}


def item(end: str, index: int | None, given: Any) -> dict[str, Any]:
    place = {} if index is None else {"output_index": index}
    return {"type": f"response.output_item.{end}", **place, "item": given}


def test_the_terminal_event_is_authoritative() -> None:
    other = {**CALL, "call_id": "b"}
    reply = play("openai-responses", item("added", 0, other), item("done", 0, other), response("completed", CALL))
    assert [call.call_id for call in reply.calls] == ["a"]
    assert reply.items == (CALL,)


@pytest.mark.parametrize("index", [0, None])
def test_done_items_stand_in_for_an_empty_output(index: int | None) -> None:
    second = None if index is None else 1
    items = (item("done", second, {**CALL, "id": "fc2", "call_id": "b"}), item("done", index, CALL))
    reply = play("openai-responses", *items, response("completed"))
    assert reply.completion is CALLS
    assert sorted(call.call_id for call in reply.calls) == ["a", "b"]
    assert index is None or [call.call_id for call in reply.calls] == ["a", "b"]
    assert play("openai-responses", item("done", 0, CALL), {"type": "response.completed"}).completion is CALLS
    empty = {**CALL, "arguments": ""}
    arguments = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"p":1}'}
    reply = play("openai-responses", arguments, item("done", 0, empty), response("completed"))
    assert reply.calls[0].arguments_text == '{"p":1}'


def test_a_call_that_was_not_done_is_never_proposed() -> None:
    begun = item("added", 0, {**CALL, "status": "completed"})
    for events in (
        (begun, item("done", 1, {**CALL, "call_id": "b"}), response("completed")),
        (begun, response("completed")),
        (begun, response("incomplete", incomplete_details={"reason": "max_output_tokens"})),
    ):
        assert play("openai-responses", *events).completion is Completion.TRUNCATED
    for events in ((begun, item("done", 0, CALL)), (begun, item("done", 0, CALL), DONE), (response("created"),)):
        reply = play("openai-responses", *events)
        assert (reply.completion, reply.calls, reply.items) == (FAILED, (), ())
        assert reply.failure is not None
        assert reply.failure.code == "INTERRUPTED"


def test_the_kind_of_the_terminal_event_wins_over_a_kinder_status() -> None:
    contradiction = response("completed", CALL)
    for kind in ("failed", "incomplete", "cancelled"):
        reply = play("openai-responses", {**contradiction, "type": f"response.{kind}"})
        assert (reply.completion is CALLS, reply.calls) == (False, ())


@pytest.mark.parametrize(
    "error",
    [
        {"type": "error", "error": {"type": "server_error", "code": None, "message": "no"}},
        {"type": "error", "code": "server_error", "message": "no", "param": None},
        {"error": {"message": "no", "type": "InternalServerError", "code": 500}},
        response("failed", error={"code": "server_error", "message": "no"}),
        response("failed", error=None),
    ],
    ids=["nested", "flat", "no type", "failed", "failed without a word"],
)
def test_errors_in_band(error: Any) -> None:
    reply = play("openai-responses", response("created", status="in_progress"), item("done", 0, CALL), error)
    assert (reply.completion, reply.calls, reply.items, reply.response_id) == (FAILED, (), (), "r1")
    assert reply.failure is not None
    assert (reply.failure.code, reply.failure.retryable) == ("SERVER_ERROR", True)


def test_texts_survive_a_gateway_that_sends_only_deltas() -> None:
    seen: list[Progress] = []
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": d} for d in "abc"]
    reply = play("openai-responses", *deltas, response("completed"), seen=seen)
    assert (reply.completion, reply.text) == (FINAL, "abc")
    assert seen == [Progress("text", d) for d in "abc"]
    cut = play("openai-responses", *deltas)
    assert (cut.completion, cut.text) == (FAILED, "abc")
    refusal = [{"type": "response.refusal.delta", "output_index": 0, "delta": "No."}]
    assert play("openai-responses", *refusal, response("completed")).refusal == "No."
    assert play("openai-responses", item("done", 0, SAID), response("completed")).text == "Hi."


# --- framing ---------------------------------------------------------------------------------------------------------


def test_framing() -> None:
    decoder = SseDecoder()
    body = b"\xef\xbb\xbf: hello\r\nid: 1\r\nevent: a\r\ndata:one\r\ndata: two\r\n\r\nretry: 5\n\n"
    body += b'data\n{"bare": 1}\ndata: last'
    events = [event for start in range(len(body)) for event in decoder.feed(body[start : start + 1])]
    assert events == [SseEvent("a", b"one\ntwo")]
    assert list(decoder.close()) == [SseEvent("", b"last")]
    assert decoder.junk == [b"data", b'{"bare": 1}']


@pytest.mark.parametrize("api", ["openai-responses", "openai-chat"])
def test_bodies_that_are_no_stream(api: str) -> None:
    def finish(*chunks: bytes) -> Reply:
        accumulator = adapter_for(api).accumulator(HEAD, REQUEST)
        for chunk in chunks:
            accumulator.feed(chunk)
        return accumulator.finish()

    chat = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]}
    document = chat if api == "openai-chat" else {"status": "completed", "output": [SAID]}
    for text in (json.dumps(document), json.dumps(document, indent=2)):
        assert finish(text.encode()).text == "Hi."
        assert finish(*(bytes([byte]) for byte in text.encode())).completion is FINAL
        assert finish(text[:-3].encode()).completion is FAILED
    error = finish(b'{"error": {"message": "no", "code": "rate_limit_exceeded"}}').failure
    assert error is not None
    assert (error.code, error.retryable) == ("RATE_LIMITED", True)
    page = finish(b"<html><body>Bad gateway</body></html>").failure
    assert page is not None
    assert (page.code, page.retryable) == ("UNREADABLE_BODY", True)
    later = finish(b'data: {"id": "x"}\n\n', b'{\n "error": {"code": "server_error"}\n}\n').failure
    assert later is not None
    assert later.code == "SERVER_ERROR"
