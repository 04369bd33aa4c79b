"""The commands by which people speak to an operation: approve, deny, answer, amend."""

import json
import sys
from typing import Any

from orchestrator import cli_verbs, commands
from orchestrator.app import App
from orchestrator.cli_report import print_json
from orchestrator.domain.errors import Conflict, UserError


def approve(given: str, *, by: str | None, reason: str, arguments: str | None, as_json: bool) -> None:
    """With `arguments` (a JSON object) the same tool with other ones: only where its modules are loaded."""
    edited = None if arguments is None else _json(arguments, "arguments")
    if edited is not None and not isinstance(edited, dict):
        raise UserError("BAD_FIELD", "arguments: give one JSON object")
    _decide(given, approving=True, by=by, reason=reason, edited=edited, as_json=as_json)


def deny(given: str, *, by: str | None, reason: str, as_json: bool) -> None:
    _decide(given, approving=False, by=by, reason=reason, edited=None, as_json=as_json)


def _decide(
    given: str, *, approving: bool, by: str | None, reason: str, edited: dict[str, Any] | None, as_json: bool
) -> None:
    who = cli_verbs.os_user() if by is None else by
    with cli_verbs.attached(registry=edited is not None) as app:
        approval_id = _approval_of(app, given) if given.startswith("op_") else given
        if approving:
            action_id = commands.approve(app, approval_id, by=who, reason=reason, arguments=edited)
        else:
            action_id = commands.deny(app, approval_id, by=who, reason=reason)
        missing = commands.approvals_missing(app, action_id) if approving else 0
    state = ("PENDING" if missing else "APPROVED") if approving else "DENIED"
    if as_json:
        done = {"approval_id": approval_id, "action_id": action_id, "state": state, "by": who}
        print_json(done | ({"missing": missing} if missing else {}))
    else:
        more = f"; {missing} more must approve" if missing else ""
        cli_verbs.print_line(f"{approval_id} {'approved' if missing else state} by {who}{more}")


def _approval_of(app: App, operation_id: str) -> str:
    """The one pending approval of an operation. Raises Conflict NOT_PENDING or AMBIGUOUS."""
    waiting = commands.inspect(app, operation_id).open_approvals
    if not waiting:
        raise Conflict("NOT_PENDING", f"{operation_id} has no pending approval")
    if len(waiting) > 1:
        named = ", ".join(each.approval_id for each in waiting)
        raise Conflict("AMBIGUOUS", f"{operation_id} has {len(waiting)} pending approvals; name one of {named}")
    return waiting[0].approval_id


def answer(given: str, *, text: str | None, json_answer: str | None, by: str | None, as_json: bool) -> None:
    """Either text (`-`: standard input) or JSON."""
    if (text is None) == (json_answer is None):
        raise UserError("BAD_FIELD", "answer: give the text, or --json-answer JSON")
    said = _json(json_answer, "json-answer") if json_answer is not None else _words(text or "")
    who = cli_verbs.os_user() if by is None else by
    with cli_verbs.attached() as app:
        question_id = commands.answer(app, given, said, by=who)
    if as_json:
        print_json({"question_id": question_id, "state": "ANSWERED", "by": who})
    else:
        cli_verbs.print_line(f"{question_id} ANSWERED by {who}")


def amend(operation_id: str, *, text: str, by: str | None, as_json: bool) -> None:
    with cli_verbs.attached() as app:
        revision = commands.amend(app, operation_id, _words(text), by=cli_verbs.os_user() if by is None else by)
    if as_json:
        print_json({"operation_id": operation_id, "revision": revision})
    else:
        cli_verbs.print_line(f"{operation_id} corrected: revision {revision}")


def _words(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _json(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise UserError("BAD_FIELD", f"{field}: not valid JSON") from None
