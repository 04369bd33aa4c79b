"""`provider.ask` over real connections: the scripted model streams, breaks, pauses and cuts characters in two."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from adapters.base import Boundary, Completion, Endpoint, ModelRequest, Progress, Reply, ToolDeclaration
from adapters.registry import adapter_for
from examples.scripted_model.process import ScriptedModel
from orchestrator import provider
from orchestrator.domain.transcript import UserText

APIS = ("openai-responses", "openai-chat")
TOOLS = (ToolDeclaration("draft", "d", {"type": "object"}),)
CALLS = {"calls": [{"name": "draft", "arguments": {"order": "A1"}}, {"name": "draft", "arguments": {"note": "ä€😀"}}]}


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


def ask(client: httpx.Client, url: str, api: str, script: str, seconds: float = 30.0, **options: Any) -> Reply:
    adapter = adapter_for(api)
    request = ModelRequest("any", "", (UserText(f"[script:{script}]"),), TOOLS, stream=True)
    wire = adapter.to_request(request, Endpoint(f"{url}/v1", "key"))
    return provider.ask(client, adapter, request, wire, seconds, **options)


def play(model: ScriptedModel, turn: dict[str, Any], **fault: Any) -> str:
    """One turn, with the fault on its first asking only."""
    model.add({"id": "one", "turns": [{**turn, "fault": {**fault, "times": 1}} if fault else turn]})
    return "one"


@pytest.mark.parametrize("size", [None, 1, 7])
def test_a_stream_is_the_plain_reply_in_pieces(
    model: ScriptedModel, client: httpx.Client, api: str, size: int | None
) -> None:
    seen: list[Progress] = []
    script = play(model, {**CALLS, "reasoning": "Thinking…"}, chunk=size) if size else play(model, CALLS)
    reply = ask(client, model.url, api, script, observe=seen.append)
    assert reply.completion is Completion.TOOL_PROPOSALS
    assert [call.name for call in reply.calls] == ["draft", "draft"]
    assert [call.arguments_text.count("order") for call in reply.calls] == [1, 0]
    assert reply.usage.output == 20
    assert [(p.kind, p.name) for p in seen if p.kind == "call"] == [("call", "draft")] * 2
    text = ask(client, model.url, api, play(model, {"text": "Grüße aus Köln: 😀 und mehr."}), observe=seen.append)
    assert (text.completion, text.text) == (Completion.FINAL_TEXT, "Grüße aus Köln: 😀 und mehr.")
    assert "".join(p.text for p in seen if p.kind == "text") == text.text


@pytest.mark.parametrize("cut", ["half", "eof"])
@pytest.mark.parametrize("after", [0, 1, None, -3])
def test_a_cut_stream_proposes_nothing(
    model: ScriptedModel, client: httpx.Client, api: str, cut: str, after: int | None
) -> None:
    script = play(model, CALLS, cut=cut, after=after)
    reply = ask(client, model.url, api, script)
    failure = reply.failure
    assert failure is not None
    assert (reply.completion, failure.code, failure.retryable) == (Completion.API_FAILURE, "INTERRUPTED", True)
    assert (reply.calls, reply.items) == ((), ())
    assert ask(client, model.url, api, script).completion is Completion.TOOL_PROPOSALS


def test_an_error_in_the_stream(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    failure = ask(client, model.url, api, play(model, CALLS, error=True)).failure
    assert failure is not None
    assert (failure.boundary, failure.code) == (Boundary.PROVIDER_UNAVAILABLE, "SERVER_ERROR")
    assert failure.retryable


def test_silence_and_slowness_end_it(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    silent = ask(client, model.url, api, play(model, CALLS, pause=30), idle_seconds=0.2)
    assert (silent.failure and silent.failure.code, silent.calls) == ("TIMEOUT", ())
    late = ask(client, model.url, api, play(model, CALLS, pause=30), seconds=0.3)
    assert (late.failure and late.failure.code, late.calls) == ("TIMEOUT", ())
    assert ask(client, model.url, api, play(model, CALLS, pause=0.05)).completion is Completion.TOOL_PROPOSALS


def test_an_error_status_is_read_whole(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    script = play(model, CALLS, status=429, headers={"retry-after": "7"})
    failure = ask(client, model.url, api, script).failure
    assert failure is not None
    assert (failure.code, failure.retry_after) == ("RATE_LIMITED", 7.0)


def test_an_observer_that_fails_ends_the_showing_only(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    seen: list[Progress] = []

    def observe(progress: Progress) -> None:
        seen.append(progress)
        raise LookupError

    assert ask(client, model.url, api, play(model, CALLS), observe=observe).completion is Completion.TOOL_PROPOSALS
    assert len(seen) == 1


def test_a_server_that_ignores_stream(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    """It answers with one JSON document, or with a page."""
    adapter = adapter_for(api)
    plain = ModelRequest("any", "", (UserText("[script:one]"),), TOOLS)
    play(model, CALLS)
    wire = adapter.to_request(plain, Endpoint(f"{model.url}/v1", "key"))
    streaming = ModelRequest("any", "", (UserText("[script:one]"),), TOOLS, stream=True)
    reply = provider.ask(client, adapter, streaming, wire, 30.0)
    assert (reply.completion, len(reply.calls)) == (Completion.TOOL_PROPOSALS, 2)


@contextmanager
def _server(answer: bytes, *, endless: bool = False) -> Iterator[tuple[str, list[int]]]:
    """A server that says one thing to everybody, without a length; it counts its connections."""
    connections: list[int] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connections.append(1)
            self.request.recv(65536)
            self.request.sendall(answer)
            while endless:
                try:
                    self.request.sendall(b"data: {}\n\n" * 1000)
                except OSError:
                    return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", connections
        finally:
            server.shutdown()


def test_pages_and_floods(client: httpx.Client, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    with _server(head + b"<html>\n<body>data: no\n</body></html>") as (url, _):
        failure = ask(client, url, api, "x").failure
        assert failure is not None
        assert (failure.code, failure.retryable) == ("UNREADABLE_BODY", True)
    monkeypatch.setattr(provider, "MAX_STREAM_BYTES", 1_000_000)
    with _server(head, endless=True) as (url, _):
        failure = ask(client, url, api, "x").failure
        assert failure is not None
        assert (failure.code, failure.retryable) == ("REPLY_TOO_LARGE", False)


def test_connections_are_used_again(model: ScriptedModel, client: httpx.Client, api: str) -> None:
    play(model, CALLS)
    ask(client, model.url, api, "one")
    open_before = {id(c) for c in client._transport._pool.connections}  # type: ignore[attr-defined]
    for _ in range(3):
        ask(client, model.url, api, "one")
    assert {id(c) for c in client._transport._pool.connections} == open_before  # type: ignore[attr-defined]
