"""Events that are joined before they are parsed: they give the reply that they give one by one, whatever they say."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Completion, Reply
from adapters.registry import ADAPTERS
from adapters.runs import joined, seam_of
from adapters.streaming import EventAccumulator
from bench.streams import HEAD, REQUEST, wire
from examples.scripted_model.script import Call, Turn

JOINING = ("anthropic-messages", "gemini-interactions", "openai-chat")
TEXTS = {
    "ascii": "lorem ipsum dolor sit amet ",
    "escapes": 'a "b"\n\t\\ c:\\d \\u0041 {"text":""} \x7f/',
    "letters": "Größe naïve žluťoučký ",
    "pictures": "🚚👩‍👩‍👧 漢字 ",
}


def accumulator(api: str) -> EventAccumulator:
    made = ADAPTERS[api].accumulator(HEAD, REQUEST)
    assert isinstance(made, EventAccumulator)
    return made


def play(api: str, chunks: Iterable[bytes]) -> tuple[Reply, str, int]:
    """The reply, what an observer has read of its text, and how many events were parsed."""
    playing = accumulator(api)
    parsed, take = 0, playing.take

    def counted(*arguments: Any) -> None:
        nonlocal parsed
        parsed += 1
        take(*arguments)

    playing.take = counted  # type: ignore[method-assign,assignment]
    shown = "".join(p.text for chunk in chunks for p in playing.feed(chunk) if p.kind == "text")
    return playing.finish(), shown, parsed


def written(api: str, turn: Turn, ascii_only: bool) -> bytes:
    form, path, body = wire(api)
    stream = b"".join(form.stream(turn, form.read(path, body), body, 100))
    if not ascii_only:
        return stream
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in stream.decode()).encode()


def cut(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


@pytest.mark.parametrize("api", sorted(ADAPTERS))
@pytest.mark.parametrize("kind", ["text", "arguments"])
@pytest.mark.parametrize("ascii_only", [False, True], ids=["raw", "escaped"])
@pytest.mark.parametrize("words", TEXTS)
def test_any_pieces_give_the_same_reply(api: str, kind: str, ascii_only: bool, words: str) -> None:
    said = TEXTS[words] * 300
    turn = Turn(text=said) if kind == "text" else Turn(calls=(Call(name="write", arguments={"text": said}),))
    body = written(api, turn, ascii_only)
    reply, shown, one_by_one = play(api, cut(body, 50))
    assert reply.completion is (Completion.FINAL_TEXT if kind == "text" else Completion.TOOL_PROPOSALS)
    assert said in (reply.text or json.loads(reply.calls[0].arguments_text)["text"])
    for size in (9_001, 16_384, 65_536):
        again, shown_again, parsed = play(api, cut(body, size))
        assert again == reply
        assert shown_again == shown or words == "pictures"  # half a pair of surrogates is shown as such
        if api in JOINING and words == "ascii" and size < 30_000:
            assert parsed < one_by_one / 3
    assert play(api, [body, body])[0] == play(api, [*cut(body, 50), body])[0]


def test_halves_of_pairs_meet_again() -> None:
    """Surrogates that come in two events are one character, whether the events were joined or not."""
    halves = [b"\\ud83d", b"\\ude9a"] * 200
    for api in JOINING:
        body, at = template(api)
        events = b"".join(at(half) for half in halves)
        replies = [play(api, cut(body.replace(at(b"HERE"), events), size))[0] for size in (64, 8_192)]
        assert replies[0] == replies[1]
        assert "🚚" * 200 in replies[0].text


def template(api: str) -> tuple[bytes, Any]:
    """A stream with one event whose text is HERE, and the maker of this event for other bytes."""
    body = written(api, Turn(text="aaaaaaaaHERE"), ascii_only=False)
    [event] = [event + b"\n\n" for event in body.split(b"\n\n") if b"HERE" in event and b'"HERE"' in event][:1]
    return body, lambda text: event.replace(b"HERE", text)


ODD = (
    *(b"plain", b"", b" ", b"HERE", b"[DONE]", b"\\n", b"\\", b"\\\\", b'\\"', b"\\u12", b"34", b"\\ud83d", b"\\ude9a"),
    *(b'"', b'"}', b'","x":"', b'","text":"twice', b"\\u0000", b"\0", b"\x1f", b"\t"),
    *(b"\xc3", b"\xa9", b"\xc3\xa9", b"\xed\xa0\xbd", b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(b"\n", b"\n\n", b"\r", b"\r\n", b"\n\ndata: {}", b"\ndata: x"),
)


def agree(api: str, texts: list[bytes], more: bytes = b"", size: int = 9_973) -> None:
    """The reply with these texts between plain ones is the same whether the events come together or one by one."""
    body, at = template(api)
    plain = at(b"the plain text ") * 90
    # The first chunk shows how the events can be joined; the odd ones are in the second, and not at its beginning.
    first = body[: body.index(at(b"HERE"))] + plain
    second = at(b"x") + b"".join(at(text) + more for text in texts) + plain + body.split(at(b"HERE"))[1]
    alone = play(api, cut(first + second, 40))
    together = play(api, [first, *cut(second, size)])
    assert together[0] == alone[0]
    utf8 = all(text.decode(errors="replace").encode() == text for text in texts)
    assert together[2] < alone[2] - 60 or not utf8


@pytest.mark.parametrize("api", JOINING)
@pytest.mark.parametrize("text", ODD)
def test_an_odd_text_between_plain_ones(api: str, text: bytes) -> None:
    """What cannot stand inside a JSON string, or is half of something, is refused as it is when it comes alone."""
    agree(api, [text])
    agree(api, [text, text])


@pytest.mark.parametrize("api", JOINING)
@given(
    texts=st.lists(st.sampled_from(ODD) | st.binary(max_size=6) | st.text(max_size=3).map(str.encode), max_size=12),
    more=st.sampled_from(
        [b"", b": ping\n\n", b"id: 7\n", b"event: ping\ndata: {}\n\n", b"data: nonsense\n\n", b"{}\n"]
    ),
    size=st.sampled_from([7_000, 9_973, 100_000]),
)
def test_odd_texts_and_other_events_between_plain_ones(api: str, texts: list[bytes], more: bytes, size: int) -> None:
    agree(api, texts, more, size)


def test_it_is_learnt_from_an_event_that_says_where_its_text_is() -> None:
    def place(name: str, document: Any) -> tuple[dict[str, Any], str] | None:
        return (document, "t") if isinstance(document, dict) and isinstance(document.get("t"), str) else None

    seam = b'","n":1}\n\nevent: e\ndata: {"t":"'
    assert seam_of("e", b'{"t":"abc","n":1}', place) == seam
    assert seam_of("e", b'{"t":"","n":1}', place) == seam
    assert seam_of("e", b'{"t":"n","n":1}', place) == seam
    assert seam_of("", b'{"t":"abc"}', place) == b'"}\n\ndata: {"t":"'
    for data in (
        b'{"abc":1,"t":"abc"}',  # the first is a key
        b'{"t":"\\u0061bc","x":"abc"}',  # the text is written otherwise, and the same bytes are another one
        b'{"t":"abc","t":"abc"}',
        b'{"t":"\\n"}',  # its characters are not the bytes that stand there
        b'{"t":"abc",\n"n":1}',  # came as two lines
        b'{"t":1}',
        b"{",
        b"\xff",
        b'{"t":"abc","n":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ):
        assert seam_of("e", data, place) == b""
    assert joined(seam.join([b"a", b"b", b"c", b"d"]), seam) == seam.join([b"a", b"bc", b"d"])
    assert joined(seam.join([b"a", b"b", b'"', b"c", b"d", b"e"]), seam) == seam.join([b"a", b"b", b'"', b"cd", b"e"])
    assert joined(seam.join([b"a", b"\xc3", b"\xa9", b"d"]), seam) == seam.join([b"a", b"\xc3", b"\xa9", b"d"])


def test_an_absurdly_deep_event_among_many() -> None:
    deep = (
        b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"a","x":' + b"[" * 985 + b"]" * 985 + b"}}"
    )
    for depth in range(900, 1_000):
        playing = accumulator("anthropic-messages")
        data = deep.replace(b"[" * 985, b"[" * depth).replace(b"]" * 985, b"]" * depth)
        playing.feed((b"data: " + data + b"\n\n") * 40)
        assert playing.finish().completion is Completion.API_FAILURE
