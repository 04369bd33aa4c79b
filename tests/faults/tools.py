"""Tools that the lab does not have: of several requests in one attempt, and such as starve their own process."""

import ctypes
import os
from typing import Any

from executors.context import Context
from executors.registry import ToolSpec
from orchestrator.domain.model import Effect
from tests.orchestrator import lab


def hold_the_interpreter(seconds: float) -> None:
    """No other thread of this process runs meanwhile, as in a native extension that keeps the GIL; costs no CPU."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def _twice(method: str) -> Any:
    def handler(args: lab.Note, ctx: Context) -> Any:
        """Two requests; `size` is for how many milliseconds the process is starved before each."""
        for step in ("first", "second"):
            if args.size:
                hold_the_interpreter(args.size / 1000)
            answer = ctx.http.request(method, f"{os.environ['LAB_URL']}/{step}/{args.text}")
        return lab._read(answer)

    return handler


def _spec(name: str, effect: Effect, handler: Any, **fields: Any) -> ToolSpec:
    return lab._spec(name, effect, handler, **fields)


TOOLS = (
    _spec("look_twice", Effect.READ, _twice("GET")),
    _spec("write_twice", Effect.CREATE, _twice("POST"), unreconcilable=True),
)
