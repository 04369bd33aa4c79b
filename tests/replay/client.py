"""The only use of Turnqueue's public API in the replay: submit an operation, learn whether it ended, read what came."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orchestrator import commands
from orchestrator.app import App
from orchestrator.settings import Settings
from tests.replay.checks import Answered, Outcome
from tests.replay.jobs import Job
from tests.replay.workload import Call

ENDED = frozenset({"COMPLETED", "REFUSED", "INCOMPLETE", "FAILED", "CANCELLED"})
POLL_SECONDS = 0.2
MAX_OPERATIONS = 1000  # of one world


class Client:
    """Safe to share between threads."""

    def __init__(self, app: App, profile: str) -> None:
        self._app = app
        self._profile = profile
        self._lock = threading.Lock()
        self._ended: set[str] = set()
        self._asked: dict[str, float] = {}  # world -> when its operations were listed last

    @classmethod
    @contextmanager
    def connect(cls, environ: Mapping[str, str], profile: str) -> Iterator["Client"]:
        with App.open(Settings.from_env(environ)) as app:
            yield cls(app, profile)

    def submit(self, job: Job) -> str:
        """The operation's id."""
        submission = commands.Submission(
            profile=self._profile, input=job.input, tenant=job.world, subject=job.subject, scopes=job.scopes
        )
        return commands.submit(self._app, submission).operation_id

    def wait(self, world: str, operation_id: str, deadline: float) -> Outcome | None:
        """The outcome once it has ended; None when `deadline` (of `time.monotonic`) passes first."""
        while not self._has_ended(world, operation_id):
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)  # the API has nothing to wait on
        return _outcome(commands.inspect(self._app, operation_id, personal=True).model_dump(mode="json"))

    def _has_ended(self, world: str, operation_id: str) -> bool:
        """All who wait for operations of one world share one list of it per interval."""
        with self._lock:
            now = time.monotonic()
            if operation_id not in self._ended and now - self._asked.get(world, 0.0) >= POLL_SECONDS:
                self._asked[world] = now
                listed = commands.list_operations(self._app, tenant=world, limit=MAX_OPERATIONS)
                self._ended.update(str(row["operation_id"]) for row in listed if row["state"] in ENDED)
            return operation_id in self._ended


def _outcome(view: dict[str, Any]) -> Outcome:
    calls = sorted(view["calls"], key=lambda call: (call["turn"], call["position"]))
    return Outcome(view["state"], view["reason"], tuple(map(_answered, calls)), len(view["attempts"]))


def _answered(call: dict[str, Any]) -> Answered:
    return Answered(
        call=Call(call["tool"], call["arguments"], call_id=call["call_id"]),
        observation=call["observation"] or {},
        is_error=call["is_error"],
    )
