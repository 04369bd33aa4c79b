"""Tools that the lab does not have: of several requests in one attempt, and such as starve their own process."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from executors.context import Context
from executors.registry import Registry, ToolSpec
from orchestrator.domain.model import Effect
from policy.base import Allow, Decision, Principal
from policy.profile import Budgets, Model, Profile
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


def _clock(args: lab.Note, ctx: Context) -> Any:
    """The wall clock of the process that runs it."""
    return {"id": "now", "text": str(time.time())}


def _die(args: lab.Note, ctx: Context) -> Any:
    """Ends its process, or tries to, in the way that `text` names; after a request, where `size` is 1."""
    if args.size:
        ctx.http.post(f"{os.environ['LAB_URL']}/notes/{args.text}")
    match args.text:
        case "abort":
            os.abort()
        case "segfault":
            ctypes.string_at(0)
        case "killed":  # as the kernel does where memory has run out
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":  # as an allocator says it under RLIMIT_AS
            _allocate_too_much()
        case "recursion":
            return _recurse(args)
        case "exit":
            sys.exit(3)
    raise AssertionError("it lives")


def _recurse(args: lab.Note) -> Any:
    return _recurse(args)


def _allocate_too_much() -> None:
    bytearray(1 << 62)


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


APPROVAL_TTL = timedelta(minutes=30)  # shorter than clocks are off by in these tests
DEADLINE = 1800.0  # seconds, likewise
TRIES = 2
TOOLS = (
    _spec("clock", Effect.READ, _clock),
    _spec("asked", Effect.CREATE, lab._write, unreconcilable=True, approval=True, approval_ttl=APPROVAL_TTL),
    _spec("die", Effect.READ, _die, max_attempts=TRIES),
    _spec("die_writing", Effect.CREATE, _die, max_attempts=TRIES, unreconcilable=True),
    # Of a queue that a prefork worker serves: only a child of it dies.
    _spec("die_apart", Effect.READ, _die, max_attempts=TRIES, queue="killable"),
    _spec("die_writing_apart", Effect.CREATE, _die, max_attempts=TRIES, queue="killable", unreconcilable=True),
    _spec("look_apart", Effect.READ, lab._look, queue="killable"),
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


def register(registry: Registry) -> None:
    """For real processes (TURNQUEUE_MODULES): these tools and those of the lab, and one profile with all of them."""
    registry.add(*lab.TOOLS, *TOOLS)
    registry.add_profile(
        Profile(
            name="floor",
            model=Model(api="openai-responses", name="floor", base_url="$LAB_MODEL_URL"),
            instructions="Do what the script says.",
            tools=tuple(spec.name for spec in (*lab.TOOLS, *TOOLS)),
            budgets=Budgets(wall_seconds=DEADLINE),
        )
    )
