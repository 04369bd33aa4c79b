"""A caller with the code of one release: `python -m tests.skew.client`, commands on standard input, one a line.

    {"submit": {"tenant", "input", "key"}}     -> {"operation_id"}
    {"approve": ID, "tenant"}, {"answer": ID, "tenant"}   -> {}

Every answer is one line; a refusal is {"error": CODE}. Every release runs this: only what the first one had may be
used here.
"""

import json
import sys
from typing import Any

from orchestrator import commands
from orchestrator.app import App
from orchestrator.domain.errors import TurnqueueError
from orchestrator.settings import Settings


def answered(app: App, command: dict[str, Any]) -> dict[str, Any]:
    if "submit" in command:
        asked = command["submit"]
        request = commands.Submission(
            profile="skew", input=asked["input"], tenant=asked["tenant"], subject="client", idempotency_key=asked["key"]
        )
        return {"operation_id": commands.submit(app, request).operation_id}
    tenant = command["tenant"]
    if "approve" in command:
        commands.approve(app, command["approve"], by=f"{tenant}/person", tenant=tenant)
    else:
        commands.answer(app, command["answer"], "Monday", by=f"{tenant}/person", tenant=tenant)
    return {}


def main() -> None:
    with App.open(Settings.from_env()) as app:
        print("{}", flush=True)
        for line in sys.stdin:
            try:
                answer = answered(app, json.loads(line))
            except TurnqueueError as error:
                answer = {"error": error.code}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
