"""The only use of Turnqueue's public API in the replay: submit an operation, learn whether it ended, read what came."""

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
POLL_SECONDS = (0.1, 1.0)  # the first and the longest interval of asking


class Client:
    def __init__(self, app: App, profile: str) -> None:
        self._app = app
        self._profile = profile

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
        return str(commands.submit(self._app, submission).operation_id)

    def wait(self, operation_id: str, deadline: float) -> Outcome | None:
        """The outcome once it has ended; None when `deadline` (of `time.monotonic`) passes first."""
        interval, longest = POLL_SECONDS
        while True:
            view = commands.inspect(self._app, operation_id).model_dump(mode="json")
            if view["state"] in ENDED:
                return _outcome(view)
            if time.monotonic() > deadline:
                return None
            time.sleep(interval)  # the API has nothing to wait on
            interval = min(interval * 1.5, longest)


def _outcome(view: dict[str, Any]) -> Outcome:
    calls = sorted(view["calls"], key=lambda call: (call["turn"], call["position"]))
    return Outcome(view["state"], view["reason"], tuple(map(_answered, calls)), len(view["attempts"]))


def _answered(call: dict[str, Any]) -> Answered:
    return Answered(
        call=Call(call["tool"], call["arguments"]),
        observation=call["observation"] or {},
        is_error=call["is_error"],
    )
