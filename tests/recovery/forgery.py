"""What somebody who can write to the broker, and to nothing else, can put there: messages of every kind of wrong."""

import base64
import gzip
import json
import pickle
import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any

EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
SIGNATURE: dict[str, Any] = {
    "task": "turnqueue.advance",
    "args": ["op_x"],
    "kwargs": {},
    "options": {},
    "subtask_type": None,
}
GONE = object()  # leaves a header out


def message(
    task: Any = "turnqueue.advance",
    args: Any = ("op_nobody",),
    *,
    kwargs: Any = None,
    embed: Any = None,
    body: bytes | None = None,
    content_type: Any = "application/json",
    encoding: Any = "utf-8",
    headers: Mapping[str, Any] | None = None,
    **properties: Any,
) -> bytes:
    """A message in Celery's protocol 2 as kombu keeps it in a Redis list; by default a good hint."""
    task_id = str(uuid.uuid4())
    content = json.dumps([args, kwargs or {}, EMBED | (embed or {})]).encode() if body is None else body
    head = {
        "lang": "py", "task": task, "id": task_id, "root_id": task_id, "parent_id": None, "group": None, "retries": 0,
        "eta": None, "expires": None, "timelimit": [None, None], "ignore_result": True, "argsrepr": "()",
        "kwargsrepr": "{}", "origin": "nobody",
    } | dict(headers or {})  # fmt: skip
    return json.dumps(
        {
            "body": base64.b64encode(content).decode(),
            "content-type": content_type,
            "content-encoding": encoding,
            "headers": {name: value for name, value in head.items() if value is not GONE},
            "properties": {
                "correlation_id": task_id, "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
                "delivery_tag": task_id, "delivery_info": {"exchange": "", "routing_key": "orchestrator"},
            } | properties,
        }
    ).encode()  # fmt: skip


def changed(**parts: Any) -> bytes:
    """A good message with other parts of the outermost object."""
    return json.dumps(json.loads(message()) | parts).encode()


def headers(**changes: Any) -> bytes:
    return message(headers=changes)


class _Runs:
    def __reduce__(self) -> Any:
        return eval, ("__import__('os').abort()",)


PICKLED = pickle.dumps([("op_x",), {}, _Runs()])
BOMB = gzip.compress(b"[" + b" " * 20_000_000 + b"]")

# Each is dropped, with this code in the worker's log.
DROPPED: dict[str, list[Callable[[], bytes]]] = {
    "MESSAGE_UNREADABLE": [
        lambda: b"",
        lambda: random.randbytes(200),
        lambda: b"\xff\xfe not json",
        lambda: b"nonsense",
        lambda: b"{}",
        lambda: b"[]",
        lambda: b"7",
        lambda: b"null",
        lambda: b"[" * 100_000,
        lambda: b'{"__type__": "datetime", "__value__": "never"}',
        lambda: b'{"__type__": "uuid"}',
        lambda: changed(headers="text"),
        lambda: changed(properties=None),
        lambda: changed(properties={}),
        lambda: changed(body=None),
        lambda: changed(body="%%%", properties=json.loads(message())["properties"] | {"body_encoding": "hex"}),
        lambda: message(delivery_tag={"a": 1}),
        lambda: message(delivery_tag=None),
        lambda: message(delivery_info={}),
        lambda: message(delivery_info={"exchange": 1, "routing_key": 2}),
        lambda: message(body=BOMB, headers={"compression": "application/x-gzip"}),
    ],
    "MESSAGE_MALFORMED": [
        lambda: changed(headers={}),
        lambda: headers(id=GONE),
        lambda: headers(id=7),
        lambda: headers(id="x" * 65),
        lambda: headers(id="a\nb"),
        lambda: message(body=b"7"),
        lambda: message(body=b"[]"),
        lambda: message(body=b'[["op_x"], {}, null]'),
        lambda: message(body=b'[["op_x"], 7, {}]'),
        lambda: message(body=b'["op_x", {}, {}]'),
    ],
    "MESSAGE_UNKNOWN_TASK": [
        lambda: message("os.system", ["true"]),
        lambda: message("celery.backend_cleanup"),
        lambda: message("celery.chord_unlock", ["x", {}]),
        lambda: message("tool.delete_account", ["act_x"]),
        lambda: message({"a": 1}),
        lambda: message(["turnqueue.advance"]),
        lambda: headers(task=GONE),
    ],
    "MESSAGE_SCHEDULED": [
        lambda: headers(eta="2099-01-01T00:00:00+00:00"),
        lambda: headers(eta="never"),
        lambda: headers(expires="2099-01-01T00:00:00+00:00"),
        lambda: headers(timelimit=[1, 1]),
        lambda: headers(group="g"),
        lambda: message(embed={"callbacks": [SIGNATURE]}),
        lambda: message(embed={"errbacks": [SIGNATURE]}),
        lambda: message(embed={"chain": [SIGNATURE]}),
        lambda: message(embed={"chord": SIGNATURE}),
    ],
    "MESSAGE_NOT_JSON": [
        lambda: message(body=PICKLED, content_type="application/x-python-serialize", encoding="binary"),
        lambda: message(body=PICKLED),
        lambda: message(body=b"{nope"),
        lambda: message(body=b"[" * 4000),
        lambda: message(content_type="application/x-yaml"),
        lambda: message(content_type=7),
        lambda: message(encoding="utf-16"),
    ],
    "MESSAGE_TOO_LARGE": [
        lambda: message(args=["x" * 5000]),
        lambda: message("turnqueue.submit", ["x" * 5_000_000]),
    ],
    "MESSAGE_ARGUMENTS": [
        lambda: message(args=[]),
        lambda: message(args=["op_x", "op_y"]),
        lambda: message(args=[{"order_id": "ORD-1"}]),
        lambda: message(args=[None]),
        lambda: message(args=["op_\0"]),
        lambda: message(args=["op_x; DROP TABLE operations"]),
        lambda: message(kwargs={"operation_id": "op_x"}),
    ],
}
