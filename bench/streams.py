"""`python -m bench.streams [--mb 1 10] [--json]`: how fast streamed replies are put together, beside the official SDKs.

The streams are those of the scripted model (deltas of 8 characters) and are in memory before the clock starts. Ours are
fed in pieces of 64 KiB; the SDKs read the same pieces through their own client from a transport that never touches the
network. MB are bytes of SSE divided by 10^6. Peak memory is measured in a run of its own, by tracemalloc.

Events that differ in a text only are joined within a piece (`adapters/runs.py`): `--piece 128` shows what a stream
costs whose events arrive one by one, as they do while a model writes.
"""

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from adapters.base import Completion, Endpoint, HttpResponse, ModelRequest, Reply, ToolDeclaration
from adapters.registry import ADAPTERS
from bench.sdk_streams import SDKS
from examples.scripted_model.formats import Format, formats
from examples.scripted_model.script import Call, Turn
from orchestrator.domain.transcript import UserText

PIECE = 64 * 1024
KINDS = ("text", "arguments")
HEAD = HttpResponse(200, {"content-type": "text/event-stream"}, b"")
REQUEST = ModelRequest("m", "", (UserText("Go."),), (ToolDeclaration("write", "w", {"type": "object"}),), stream=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One stream. `growth` is the time for the large one over that for the small one, `peak_x_stream` peak memory over
    the bytes of the stream, `ratio` our speed over the SDK's (on the small stream)."""

    api: str
    kind: str
    small_mb: float
    large_mb: float
    small_mb_s: float
    large_mb_s: float
    growth: float
    size_growth: float
    peak_x_stream: float
    sdk_mb_s: float | None
    ratio: float | None


def wire(api: str) -> tuple[Format, str, dict[str, Any]]:
    """The scripted model's format for an adapter's requests, found as its server finds it."""
    sent = ADAPTERS[api].to_request(REQUEST, Endpoint("http://model.test"))
    path = sent.url.removeprefix("http://model.test").split("?")[0]
    body = json.loads(sent.body)
    return next(form for form in formats() if form.claims(path)), path, body


def stream(api: str, kind: str, size: int) -> bytes:
    """A stream of about `size` bytes."""
    form, path, body = wire(api)
    asked = form.read(path, body)

    def render(length: int) -> bytes:
        words = ("lorem ipsum dolor sit amet " * (length // 27 + 1))[:length]
        turn = Turn(text=words) if kind == "text" else Turn(calls=(Call(name="write", arguments={"text": words}),))
        return b"".join(form.stream(turn, asked, body, 100))

    probe = len(render(20_000)) - len(render(10_000))
    return render(max(1000, size * 10_000 // probe))


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def ours(api: str, body: bytes, size: int = PIECE) -> Reply:
    accumulator = ADAPTERS[api].accumulator(HEAD, REQUEST)
    for piece in pieces(body, size):
        accumulator.feed(piece)
    return accumulator.finish()


def best(run: Callable[[], Any], rounds: int) -> float:
    """CPU seconds of the best round, of so many or of half a second's: the cost of the code, least of the machine's."""
    times: list[float] = []
    while len(times) < rounds or (rounds > 1 and sum(times) < 0.5):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)


def peak(run: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def measure(api: str, kind: str, small_mb: float, large_mb: float, size: int = PIECE) -> Row:
    small, large = (stream(api, kind, int(mb * 1e6)) for mb in (small_mb, large_mb))
    expected = Completion.FINAL_TEXT if kind == "text" else Completion.TOOL_PROPOSALS
    ended = [ours(api, body, size).completion for body in (small, large)]
    if ended != [expected, expected]:
        raise AssertionError(f"{api} {kind}: {ended}")
    quick, slow = best(lambda: ours(api, small, size), 5), best(lambda: ours(api, large, size), 5)
    sdk = SDKS.get(api)
    sdk_seconds = best(lambda: sdk(pieces(small, size)), 1) if sdk else None
    speed = len(small) / 1e6 / quick
    sdk_speed = len(small) / 1e6 / sdk_seconds if sdk_seconds else None
    return Row(
        api=api,
        kind=kind,
        small_mb=round(len(small) / 1e6, 2),
        large_mb=round(len(large) / 1e6, 2),
        small_mb_s=round(speed, 1),
        large_mb_s=round(len(large) / 1e6 / slow, 1),
        growth=round(slow / quick, 2),
        size_growth=round(len(large) / len(small), 2),
        peak_x_stream=round(peak(lambda: ours(api, large, size)) / len(large), 2),
        sdk_mb_s=round(sdk_speed, 2) if sdk_speed else None,
        ratio=round(speed / sdk_speed, 1) if sdk_speed else None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=float, nargs=2, default=[1, 10], metavar="MB", help="sizes (default 1 10)")
    parser.add_argument("--api", nargs="*", default=sorted(ADAPTERS), help="formats (default all)")
    parser.add_argument("--piece", type=int, default=PIECE, metavar="BYTES", help="fed at once (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    for api in options.api:
        for kind in KINDS:
            row = asdict(measure(api, kind, *options.mb, options.piece))
            shown = json.dumps(row) if options.json else "  ".join(f"{name}={value}" for name, value in row.items())
            print(shown, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
