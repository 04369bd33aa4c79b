"""What comes out of the broker before Celery looks at it: a message that is not exactly one of ours is dropped.

Whoever can write to the broker can write anything. Here nothing is decoded but JSON, nothing of the message is logged
but a code, and what Celery would do for a message besides running its task (schedule it, unpack it, call others
afterwards) is refused. No Celery and no kombu in this file.
"""

import json
import re
from collections.abc import Container, Mapping
from typing import Any

from orchestrator.enqueue import MAX_SEALED
from orchestrator.enqueue import TASK as SUBMIT_TASK

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_HINT = 4096  # bytes of a hint's body; ours have about 120
_MAX_ENVELOPE = 2 * MAX_SEALED  # of an envelope's, which is refused with its own code when it is too large
_REFUSED = ("eta", "expires", "compression", "timelimit", "group", "taskset")  # what a hint does not ask for


def problem(headers: Any, content_type: Any, content_encoding: Any, body: Any, tasks: Container[str]) -> str | None:
    """Why the message is dropped, as a stable code; None: its task may run.

    MESSAGE_MALFORMED (no task message), MESSAGE_UNKNOWN_TASK, MESSAGE_SCHEDULED (asks for more than to run now),
    MESSAGE_NOT_JSON, MESSAGE_TOO_LARGE, MESSAGE_ARGUMENTS.
    """
    if not isinstance(headers, Mapping) or not _is_id(headers.get("id")):
        return "MESSAGE_MALFORMED"
    task = headers.get("task")
    if not isinstance(task, str) or task not in tasks:
        return "MESSAGE_UNKNOWN_TASK"
    if any(_asked(headers.get(name)) for name in _REFUSED):
        return "MESSAGE_SCHEDULED"
    if content_type != "application/json" or str(content_encoding).lower() not in ("utf-8", "utf8"):
        return "MESSAGE_NOT_JSON"
    raw = body.encode(errors="replace") if isinstance(body, str) else body
    if not isinstance(raw, bytes | bytearray | memoryview):
        return "MESSAGE_MALFORMED"
    if len(raw) > (_MAX_ENVELOPE if task == SUBMIT_TASK else _MAX_HINT):
        return "MESSAGE_TOO_LARGE"
    return _problem_of_body(bytes(raw), hint=task != SUBMIT_TASK)


def _problem_of_body(raw: bytes, *, hint: bool) -> str | None:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return "MESSAGE_NOT_JSON"
    match content:
        case [list(args), dict(kwargs), dict(embed)]:
            if any(embed.values()):
                return "MESSAGE_SCHEDULED"
            if hint and (kwargs or len(args) != 1 or not _is_id(args[0])):
                return "MESSAGE_ARGUMENTS"
            return None  # an envelope's arguments are its own business: `envelope` has a code for each of their faults
        case _:
            return "MESSAGE_MALFORMED"


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _asked(value: Any) -> bool:
    """Celery writes "nothing" as null, and as two of them for the time limits."""
    return value not in (None, [None, None], (None, None))
