"""Tools that the lab does not have: of several requests in one attempt, and such as starve their own process."""

import ctypes
import os
from collections.abc import Callable
from typing import Any

from executors.context import Context
from executors.registry import ToolSpec
from orchestrator.domain.model import Effect
from policy.base import Allow, Decision, Principal
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


# Called in every hook of `watched`, with its name; tests put there what looks around at that moment.
WATCH: list[Callable[[str], None]] = []


def _watched(name: str) -> None:
    for look in WATCH:
        look(name)


def _authorize(args: lab.Note, principal: Principal) -> Decision:
    _watched("authorize")
    return Allow()


def _version(args: lab.Note, principal: Principal) -> str:
    _watched("resource_version")
    return "v1"


def _asks(args: lab.Note, principal: Principal) -> bool:
    _watched("approval")
    return True


TOOLS = (
    _spec(
        "watched",
        Effect.CREATE,
        lab._write,
        reconcile=lab._check,
        compensation="watched_undo",
        authorize=_authorize,
        resource_version=_version,
        approval=_asks,
    ),
    _spec("watched_undo", Effect.CREATE, lab._write, unreconcilable=True, authorize=_authorize),
    _spec("look_twice", Effect.READ, _twice("GET")),
    _spec("write_twice", Effect.CREATE, _twice("POST"), unreconcilable=True),
)
