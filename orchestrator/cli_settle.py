"""The commands that settle actions: reviews, resolve, complete, compensate."""

import json
from typing import Any

from orchestrator import cli_render, cli_verbs, settling
from orchestrator.cli_report import print_json, say, terminal
from orchestrator.domain.errors import UserError


def resolve(
    action_id: str,
    *,
    succeeded: str | None,
    not_applied: bool,
    retry: bool,
    evidence: str,
    result: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Exactly one of the three verdicts."""
    if (succeeded is not None) + not_applied + retry != 1:
        raise UserError("BAD_FIELD", "say exactly one of --succeeded REF, --not-applied or --retry")
    if succeeded is not None:
        verdict = settling.Verdict("succeeded", succeeded, _object(result, "result"))
    else:
        verdict = settling.Verdict("not_applied" if not_applied else "retry", evidence)
    who = by or cli_verbs.os_user()
    with cli_verbs.attached(registry=True) as app:
        state = settling.resolve(app, action_id, verdict, by=who)
    _done(action_id, state, as_json)


def reviews(*, tenant: str | None, limit: int, as_json: bool) -> None:
    with cli_verbs.attached() as app:
        rows = settling.reviews(app, tenant=tenant, limit=limit)
    if as_json:
        print_json({"reviews": [row | {"started_at": row["started_at"].isoformat()} for row in rows]})
    elif rows:
        terminal().print(cli_render.reviews(rows))
    else:
        say("nothing waits for an operator")


def complete(
    action_id: str, *, token: str, result: str | None, reference: str | None, code: str | None, as_json: bool
) -> None:
    report = settling.Completed(_object(result, "result"), reference, code)
    with cli_verbs.attached(registry=True) as app:
        state = settling.complete(app, action_id, token, report)
    _done(action_id, state, as_json)


def compensate(action_id: str, *, arguments: str, by: str | None, as_json: bool) -> None:
    given = _object(arguments, "arguments") or {}
    with cli_verbs.attached(registry=True) as app:
        undoing = settling.compensate(app, action_id, arguments=given, by=by or cli_verbs.os_user())
    if as_json:
        print_json({"action_id": undoing, "compensates": action_id})
    else:
        say(f"{undoing} will undo {action_id}")


def _done(action_id: str, state: str, as_json: bool) -> None:
    if as_json:
        print_json({"action_id": action_id, "state": state})
    else:
        say(f"{action_id} is {state}")


def _object(text: str | None, field: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError("BAD_FIELD", f"{field}: give one JSON object")
    return value
