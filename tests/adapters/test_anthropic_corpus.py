"""Every recorded exchange with Anthropic Messages lands where the ordered list of states says, however it is cut."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, create_model

from adapters.arguments import parse_arguments
from adapters.base import Boundary, Completion, Endpoint, ModelRequest, ToolDeclaration
from adapters.registry import adapter_for
from executors.registry import Registry, ToolSpec
from orchestrator.domain.model import Effect
from orchestrator.domain.transcript import ModelReply, Observation, UserText
from orchestrator.judge import Bench, Read, Refuse, judge
from policy.base import Principal
from policy.profile import Model, Profile
from tests.shared import SHARED, shared
from tests.wire import exchanges, model_request, reply_of, streamed, supported

API = "anthropic-messages"
ADAPTER = adapter_for(API)
CALLS, FINAL, REFUSAL = Completion.TOOL_PROPOSALS, Completion.FINAL_TEXT, Completion.REFUSAL
CUT, PAUSED, FAILED = Completion.TRUNCATED, Completion.PAUSED, Completion.API_FAILURE

# file -> state; a scenario stands for all of its files. By reasoning from the ordered list.
EXPECTED = {
    "cached-usage": FINAL,
    "empty-args": CALLS,  # `{}`, or no piece of JSON at all
    "empty-text": FINAL,  # end_turn with no content: recorded, not invented
    "error-400": FAILED,
    "error-401": FAILED,
    "error-404": FAILED,
    "error-413": FAILED,
    "error-429": FAILED,
    "error-500": FAILED,
    "error-502-html": FAILED,
    "error-504": FAILED,
    "error-529": FAILED,
    "huge-args": CALLS,
    "one-call": CALLS,
    "parallel-calls": CALLS,
    "parallel-results-final": FINAL,
    "pause-turn": PAUSED,
    "reasoning-call": CALLS,
    "reasoning-results-final": FINAL,
    "reasoning-text": FINAL,
    "redacted-thinking": FINAL,
    "refusal": REFUSAL,
    "results-final": FINAL,
    "results-more-calls": CALLS,
    "server-tool": FINAL,  # the provider ran its own tool and answered
    "server-tool-and-call": CALLS,  # only the `tool_use` is ours
    "stop-sequence": FINAL,
    "stream-error": FAILED,
    "stream-interrupted": FAILED,  # even where every block was closed
    "text": FINAL,
    "truncated": CUT,
    "truncated-call": CUT,
    "truncated-context-window": CUT,
    "unicode-args": CALLS,
    "unicode-text": FINAL,
}
EXPECTED_FILE = {"server-tool-004": CALLS}  # the server's tool search found our tool, which the model then calls
RETRYABLE = {"error-429", "error-500", "error-502-html", "error-504", "error-529", "stream-error", "stream-interrupted"}


def _recordings() -> list[Any]:
    found = sorted((SHARED / "wire" / API).glob("*.json"))
    return [pytest.param(path, id=path.stem) for path in found] or [pytest.param(None, id="absent")]


def _load(path: Path | None) -> dict[str, Any]:
    shared("wire")
    assert path is not None
    recorded: dict[str, Any] = json.loads(path.read_text())
    return recorded


def _expected(path: Path, recorded: dict[str, Any]) -> Completion:
    return EXPECTED_FILE.get(path.stem, EXPECTED[recorded["scenario"].removesuffix("-stream")])


@pytest.mark.parametrize("path", _recordings())
def test_state_calls_text_and_usage(path: Path) -> None:
    recorded = _load(path)
    reply, expected, observed = reply_of(recorded), _expected(path, recorded), recorded["observed"] or {}
    assert reply.completion is expected
    assert (reply.failure is not None) == (expected is FAILED)
    if expected is CALLS:
        assert [(c.call_id, c.name) for c in reply.calls] == [(c["id"], c["name"]) for c in observed["calls"]]
        for call, seen in zip(reply.calls, observed["calls"], strict=True):
            arguments = seen["arguments"]
            if streamed(recorded):
                assert call.arguments_text == (arguments or "{}")
            else:
                assert parse_arguments(call.arguments_text) == (
                    json.loads(arguments) if isinstance(arguments, str) else arguments
                )
    else:
        assert reply.calls == ()
    if observed and recorded["status"] < 400:
        usage = observed["usage"]
        assert len(reply.text) == (observed["text_length"] or 0)
        assert reply.usage.output == usage["output_tokens"]
        assert reply.usage.cached == usage.get("cache_read_input_tokens")
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert reply.usage.input == sum(usage.get(part) or 0 for part in parts)


@pytest.mark.parametrize("path", _recordings())
def test_failures(path: Path) -> None:
    recorded = _load(path)
    failure = reply_of(recorded).failure
    if failure is None:
        return
    scenario = recorded["scenario"].removesuffix("-stream")
    assert failure.retryable == (scenario in RETRYABLE)
    boundary = Boundary.PROVIDER_UNAVAILABLE if failure.retryable else Boundary.PROVIDER_CONFIG
    if scenario == "stream-interrupted":
        boundary = Boundary.PROTOCOL
    if scenario == "error-401":
        boundary = Boundary.PROVIDER_AUTH
    assert failure.boundary is boundary
    assert failure.retry_after == (17 if scenario == "error-429" else None)


@pytest.mark.parametrize("path", _recordings())
def test_content_is_carried_back_as_it_came(path: Path) -> None:
    """Thinking byte for byte and in place; of a call, the very input; only empty texts are missing."""
    recorded = _load(path)
    reply = reply_of(recorded)
    if reply.completion in (FAILED, CUT, REFUSAL):
        return
    kept = ModelReply(API, reply.response_id, reply.text, reply.calls, reply.items)
    results = [Observation(call.call_id, call.name, "ok") for call in reply.calls]
    request = ModelRequest("m", "", (UserText("Go"), kept, *results))
    sent = json.loads(ADAPTER.to_request(request, Endpoint("https://api.example")).body)["messages"][1:]
    blocks = sent[0]["content"] if sent else []
    assert blocks == _content(recorded)
    if results:
        assert [block["tool_use_id"] for block in sent[1]["content"]] == [call.call_id for call in reply.calls]


def _content(recorded: dict[str, Any]) -> list[Any]:
    """The blocks of a recording, put together here in the plainest way."""
    if not streamed(recorded):
        content = recorded["response"]["content"]
        return [block for block in content if block != {"type": "text", "text": ""}]
    blocks: dict[int, dict[str, Any]] = {}
    texts: dict[int, str] = {}
    for line in recorded["stream"].splitlines():
        event = json.loads(line[5:]) if line.startswith("data:") else {}
        if event.get("type") == "content_block_start":
            blocks[event["index"]] = event["content_block"]
        elif event.get("type") == "content_block_delta":
            index, delta = event["index"], event["delta"]
            block = blocks[index]
            match delta["type"]:
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
                case "signature_delta":
                    block["signature"] = delta["signature"]
                case "input_json_delta":
                    texts[index] = texts.get(index, "") + delta["partial_json"]
                case "citations_delta":
                    block["citations"] = [*(block.get("citations") or []), delta["citation"]]
                case other:
                    raise AssertionError(other)
    for index, text in texts.items():
        blocks[index]["input"] = json.loads(text or "{}")
    return [block for _, block in sorted(blocks.items())]


# --- a real small model, whose server reads the format in its own way -------------------------------------------------


class Nothing(BaseModel):
    pass


def _handler(args: Any, ctx: Any) -> Nothing:
    raise AssertionError("the judge runs nothing")


def _spec(tool: ToolDeclaration) -> ToolSpec:
    fields: Any = dict.fromkeys(tool.parameters["properties"], (Any, None))
    arguments = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return ToolSpec(tool.name, "d", arguments, Nothing, _handler, Effect.READ)


def _bench(request: ModelRequest) -> Bench:
    """Every tool of the request, as a read that takes any values."""
    registry, names = Registry(), tuple(tool.name for tool in request.tools)
    registry.add(*map(_spec, request.tools))
    model = Model(api=API, name="m", base_url="http://127.0.0.1")
    profile = Profile(name="p", model=model, instructions="", tools=names)
    offered = frozenset(names) if request.tool_choice.mode != "none" else frozenset()
    return Bench(registry, profile, Principal("t", "s"), "op", offered, 0, 0, Counter())


def test_a_call_that_was_not_offered_is_reported_and_refused() -> None:
    """With tools off the server still said `tool_use`: that is what the provider sent, and the judge refuses it."""
    states: Counter[tuple[bool, str]] = Counter()
    for name, recorded in exchanges(shared("workloads") / "recorded_llm" / "exchanges.jsonl"):
        if supported(recorded) != API:
            continue
        request, reply = model_request(recorded), reply_of(recorded)
        off = request.tool_choice.mode == "none"
        states[off, reply.completion] += 1
        for judged in judge(_bench(request), reply.calls):
            if off:
                assert isinstance(judged.verdict, Refuse), name
                assert judged.verdict.code == "TOOL_NOT_OFFERED"
            else:
                assert isinstance(judged.verdict, Read), name
        if reply.failure is None:
            assert (reply.usage.input or 0) > (reply.usage.cached or 0) > 0
    assert states == {
        (False, "TOOL_PROPOSALS"): 10,
        (True, "TOOL_PROPOSALS"): 5,
        (False, "FINAL_TEXT"): 2,
        (False, "API_FAILURE"): 1,  # a bad request that this server answers with an empty 200
    }


def test_calls_written_as_text_are_text() -> None:
    fenced = '```json\n{"name": "ping", "arguments": {}}\n```'
    content = [{"type": "text", "text": fenced}]
    recorded = {"api": API, "status": 200, "response": {"id": "m", "content": content, "stop_reason": "end_turn"}}
    reply = reply_of(recorded)
    assert (reply.completion, reply.calls, reply.text) == (FINAL, (), fenced)
