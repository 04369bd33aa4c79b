"""The official SDKs' own stream accumulation, fed from memory through their own clients."""

from collections.abc import Callable, Iterator
from typing import Any

try:
    import anthropic
    import httpx2
    import openai
    from google import genai
except ImportError:  # the dependency group `sdk` is not installed: no comparison
    SDKS: dict[str, Callable[[Iterator[bytes]], Any]] = {}
else:

    class _Body(httpx2.SyncByteStream):
        def __init__(self, pieces: Iterator[bytes]) -> None:
            self._pieces = pieces

        def __iter__(self) -> Iterator[bytes]:
            return self._pieces

    def _client(pieces: Iterator[bytes]) -> httpx2.Client:
        def answer(_: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Body(pieces))

        return httpx2.Client(transport=httpx2.MockTransport(answer))

    def _openai(pieces: Iterator[bytes]) -> openai.OpenAI:
        return openai.OpenAI(api_key="none", base_url="http://model.test/v1", http_client=_client(pieces))

    def chat(pieces: Iterator[bytes]) -> Any:
        client = _openai(pieces)
        with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "Go."}]) as stream:
            return stream.get_final_completion()

    def responses(pieces: Iterator[bytes]) -> Any:
        with _openai(pieces).responses.stream(model="m", input="Go.") as stream:
            return stream.get_final_response()

    def messages(pieces: Iterator[bytes]) -> Any:
        client = anthropic.Anthropic(api_key="none", base_url="http://model.test", http_client=_client(pieces))
        said: list[Any] = [{"role": "user", "content": "Go."}]
        with client.messages.stream(model="m", max_tokens=1024, messages=said) as stream:
            return stream.get_final_message()

    def _google(pieces: Iterator[bytes]) -> genai.Client:
        options = genai.types.HttpOptions(base_url="http://model.test", httpx_client=_client(pieces))
        return genai.Client(api_key="none", http_options=options)

    # Google's SDK puts nothing together: what it costs to read the parts one by one is what there is to compare with.
    def generate(pieces: Iterator[bytes]) -> Any:
        chunks = _google(pieces).models.generate_content_stream(model="m", contents="Go.")
        contents = [candidate.content for chunk in chunks for candidate in chunk.candidates or ()]
        return [part for content in contents if content for part in content.parts or ()]

    def interactions(pieces: Iterator[bytes]) -> Any:
        asked = {"model": "m", "input": "Go.", "stream": True, "automatic_continuation": False}
        return list(_google(pieces).interactions.create(**asked))

    SDKS = {
        "openai-chat": chat,
        "openai-responses": responses,
        "anthropic-messages": messages,
        "gemini-generate": generate,
        "gemini-interactions": interactions,
    }
