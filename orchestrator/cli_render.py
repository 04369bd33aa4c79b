"""What people see of an operation: one timeline of turns, calls, attempts and waits; tables; the costs. No I/O."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.domain import digests
from orchestrator.views import ApprovalView, AttemptView, CallView, OperationView, QuestionView, TurnView

SHORT = 96  # characters of an argument text in the timeline; approvals are shown in full
_WHOLE = frozenset({"operation", "time", "turn", "event", "state"})  # columns that are never broken
_GOOD = frozenset({"SUCCEEDED", "COMPLETED", "APPROVED", "CONSUMED", "ANSWERED", "FINAL_TEXT", "TOOL_PROPOSALS"})
_OPEN = frozenset({"PENDING", "WAITING_APPROVAL", "WAITING_INPUT", "RECONCILING", "STARTED", "RUNNING", "UNKNOWN"})
_BAD = frozenset({"FAILED", "REJECTED", "REFUSED", "INCOMPLETE", "DENIED", "EXPIRED", "LOST", "API_FAILURE"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the timeline: when it was known, of which turn, what it is, and what is to say about it."""

    at: datetime
    turn: int | None
    what: str
    detail: str
    state: str = ""


def safe(value: str) -> str:
    """Text from outside, fit for a terminal: what does not print (controls, text direction) is shown as \\uXXXX."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in value)


def canonical(arguments: Any) -> str:
    """The complete RFC 8785 form: what the digest of an approval covers."""
    return safe(digests.canonical(arguments).decode())


def short(value: str) -> str:
    return value if len(value) <= SHORT else f"{value[: SHORT - 1]}…"


def seconds(start: datetime, end: datetime) -> str:
    return f"{max(0.0, (end - start).total_seconds()):.2f} s"


# --- the timeline --------------------------------------------------------------------------------------------------


def timeline(view: OperationView) -> list[Entry]:
    """Everything that is known to have happened, in order of time. An entry, once there, does not change."""
    submitted = f"by {safe(view.subject)}, tenant {safe(view.tenant)}, profile {view.profile}"
    entries = [Entry(view.created_at, None, "submitted", submitted)]
    entries += [_asked(turn) for turn in view.requests]
    for call in view.calls:
        entries += _call(call)
    for approval in view.approvals:
        entries += _approval(view, approval)
    for asked in view.questions:
        entries += _question(asked)
    entries += [_attempt(view, attempt) for attempt in view.attempts if attempt.ended_at is not None]
    if view.ended_at is not None:
        ended = seconds(view.created_at, view.ended_at)
        entries.append(Entry(view.ended_at, None, "ended", f"{outcome(view)} after {ended}", view.state))
    return sorted(entries, key=lambda entry: entry.at)


def outcome(view: OperationView) -> str:
    return _outcome(view.state, view.reason, view.parked)


def _outcome(state: str, reason: str | None, parked: str | None) -> str:
    return state + (f" ({reason})" if reason else "") + (f" (parked: {parked})" if parked else "")


def _asked(turn: TurnView) -> Entry:
    parts = [turn.failure_code or turn.completion, safe(turn.model)]
    if turn.input_tokens is not None:
        parts.append(f"{turn.input_tokens} in / {turn.output_tokens or 0} out tokens")
    if turn.cost_usd:
        parts.append(f"${turn.cost_usd:.6f}")
    parts.append(f"{turn.seconds:.2f} s")
    what = "model" if turn.ask <= 1 else f"model, ask {turn.ask}"
    return Entry(turn.replied_at, turn.turn, what, ", ".join(parts), turn.completion)


def _call(call: CallView) -> Iterator[Entry]:
    effect = f" ({call.effect})" if call.effect else ""
    text = f"{safe(call.tool)}{effect} {short(canonical(call.arguments))}"
    yield Entry(call.created_at, call.turn, "call", text)
    if call.settled_at is None:
        return
    if call.duplicate:
        yield Entry(call.settled_at, call.turn, "duplicate", f"{safe(call.tool)} got the stored outcome", call.state)
    elif call.is_error:
        why = f"{safe(call.tool)}: {call.state} {call.code or ''}".rstrip()
        yield Entry(call.settled_at, call.turn, "result", why, call.state)


def _approval(view: OperationView, approval: ApprovalView) -> Iterator[Entry]:
    turn = next((a.turn for a in view.actions if a.action_id == approval.action_id), None)
    asked = f"{safe(approval.tool)} waits for a person: {approval.approval_id}"
    yield Entry(approval.created_at, turn, "approval", asked, "PENDING")
    if approval.decided_at is not None:
        edited = any(each.decision == "EDIT" for each in approval.decisions)
        state = "DENIED" if approval.state == "DENIED" else "EDITED" if edited else "APPROVED"
        reason = f": {safe(approval.decision_reason)}" if approval.decision_reason else ""
        waited = seconds(approval.created_at, approval.decided_at)
        text = f"{state} by {safe(approval.decided_by or '?')} after {waited}{reason}"
        yield Entry(approval.decided_at, turn, "decision", text, state)


def _question(asked: QuestionView) -> Iterator[Entry]:
    waits = f"the caller is asked: {short(safe(asked.text))} ({asked.question_id})"
    yield Entry(asked.created_at, None, "question", waits, "PENDING")
    if asked.answered_at is not None:
        waited = seconds(asked.created_at, asked.answered_at)
        text = f"by {safe(asked.answered_by or '?')} after {waited}"
        yield Entry(asked.answered_at, None, "answer", text, "ANSWERED")


def _attempt(view: OperationView, attempt: AttemptView) -> Entry:
    call = _call_of(view, attempt)
    ended = attempt.ended_at or attempt.started_at
    parts = [f"{safe(attempt.tool)} #{attempt.number} {attempt.state}"]
    if attempt.code:
        parts.append(attempt.code)
    parts.append(seconds(attempt.started_at, ended))
    if call is not None and attempt.number == 1:
        parts.append(f"waited {seconds(_ready_at(view, call), attempt.started_at)}")
    parts.append(f"on {attempt.worker.rsplit(':', 1)[0]}")
    return Entry(ended, call.turn if call else None, "attempt", ", ".join(parts), attempt.state)


def _call_of(view: OperationView, attempt: AttemptView) -> CallView | None:
    """The call behind an attempt: the last one with its action or call id that was there when it started."""
    mine = [
        call
        for call in view.calls
        if (call.action_id == attempt.action_id if attempt.action_id else call.call_id == attempt.call_id)
    ]
    return next((call for call in reversed(mine) if call.created_at <= attempt.started_at), None)


def _ready_at(view: OperationView, call: CallView) -> datetime:
    """Since when nothing but a free worker was waited for: the decision, where one was needed."""
    decided = [a.decided_at for a in view.approvals if a.action_id == call.action_id and a.decided_at]
    return max([call.created_at, *decided])


def line(view: OperationView, entry: Entry) -> str:
    """The entry as a plain line."""
    turn = "" if entry.turn is None else f"turn {entry.turn}"
    return f"{seconds(view.created_at, entry.at):>9}  {turn:<8}{entry.what:<10} {entry.detail}"


# --- tables --------------------------------------------------------------------------------------------------------


def live(view: OperationView) -> RenderableType:
    """The timeline and where the operation stands now."""
    return Group(_timeline_table(view), Text.assemble(("now: ", "dim"), _state(outcome(view))))


def operation(view: OperationView) -> RenderableType:
    """Everything about one operation."""
    parts: list[RenderableType] = [_head(view), Text(""), _timeline_table(view)]
    if view.actions:
        parts.append(actions(view))
    if view.approvals:
        parts.append(decisions(view))
    parts += [question(each) for each in view.open_questions]
    parts += _pending(view.pending or {})
    if view.final_text is not None:
        parts.append(answer(view))
    return Group(*parts)


def listing(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Operations, newest first."""
    table = _table("operation", "state", "profile", "tenant", "subject", "turns", "submitted")
    for row in rows:
        state = _outcome(row["state"], row["reason"], row["parked"])
        submitted = f"{row['created_at']:%Y-%m-%d %H:%M:%S}"
        table.add_row(
            Text(row["operation_id"], no_wrap=True), _state(state), *_texts(row["profile"], row["tenant"]),
            *_texts(row["subject"], row["turn"], submitted),
        )  # fmt: skip
    return table


def reviews(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Uncertain actions that wait for an operator, oldest first."""
    table = _table("action", "state", "tool", "tenant", "operation", "why", "key", "started")
    for row in rows:
        started = f"{row['started_at']:%Y-%m-%d %H:%M:%S}"
        table.add_row(
            Text(row["action_id"], no_wrap=True), _state(row["state"]), *_texts(row["tool"], row["tenant"]),
            *_texts(row["operation_id"], row["evidence"] or "", row["idempotency_key"], started),
        )  # fmt: skip
    return table


def actions(view: OperationView) -> RenderableType:
    """Each write with the key it was sent under and what the downstream called it."""
    lines: list[Text] = []
    for each in view.actions:
        code = f" {each.code}" if each.code else ""
        review = ", an operator must look" if each.review else ""
        reference = f", external ref {safe(each.external_ref)}" if each.external_ref else ""
        tail = f"{code}, attempts {each.attempts}{reference}{review}"
        lines.append(Text.assemble(f"{safe(each.tool)} ", (each.state, _style(each.state)), tail))
        lines.append(Text(f"  {each.action_id}  key {each.idempotency_key}", "dim"))
    return section("writes", lines)


def decisions(view: OperationView) -> RenderableType:
    """Who decided what, with the complete canonical arguments."""
    lines: list[Text] = []
    for each in view.approvals:
        reason = f" ({safe(each.decision_reason)})" if each.decision_reason else ""
        who = f", decided by {safe(each.decided_by)}{reason}" if each.decided_by else ""
        lines.append(Text.assemble(f"{safe(each.tool)} ", (each.state, _style(each.state)), who))
        lines += [Text(f"  {each.approval_id}", "dim"), Text(f"  {canonical(each.arguments)}", "dim")]
    return section("approvals", lines)


def effects(title: str, rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> RenderableType:
    """The named fields of a service's own records, one line each."""
    facts = [Text(safe("  ".join(f"{name}={row[name]}" for name in names))) for row in rows]
    return section(title, facts or [Text("none")])


def section(title: str, lines: Iterable[Text]) -> RenderableType:
    return Group(Text(""), Text(title, "bold"), *(Text.assemble("  ", each) for each in lines))


def approval(asked: ApprovalView) -> RenderableType:
    """An open approval with its complete canonical arguments: what is approved is what is shown."""
    head = Text.assemble(("approval needed: ", "bold yellow"), (safe(asked.tool), "bold"))
    lines = [
        f"approval   {asked.approval_id}",
        f"requester  {safe(asked.requester)}",
        f"why        {safe(asked.reason)}",
        f"needs      {_needs(asked)}",
        f"digest     {asked.action_digest}",
        f"expires    {asked.expires_at:%Y-%m-%d %H:%M:%S %Z}",
        f"arguments  {canonical(asked.arguments)}",
    ]
    return Group(head, *(Text(f"  {each}") for each in lines))


def question(asked: QuestionView) -> RenderableType:
    """An open question with all that an answer must fit."""
    lines = [f"question  {asked.question_id}", f"expires   {asked.expires_at:%Y-%m-%d %H:%M:%S %Z}"]
    if asked.choices is not None:
        lines.append(f"choices   {canonical(asked.choices)}")
    if asked.answer_schema is not None:
        lines.append(f"schema    {canonical(asked.answer_schema)}")
    return section(f"asked: {safe(asked.text)}", [Text(each) for each in lines])


def _needs(asked: ApprovalView) -> str:
    have = [safe(each.by) for each in asked.decisions]
    people = "one person" if asked.approvers == 1 else f"{asked.approvers} people"
    other = ", not the requester" if asked.separate else ""
    return people + other + (f"; approved by {', '.join(have)}" if have else "")


def answer(view: OperationView) -> RenderableType:
    return section("answer", [Text(safe(each)) for each in (view.final_text or "(none)").splitlines()])


def _head(view: OperationView) -> RenderableType:
    usage = view.usage
    costs = (
        f"{view.turns} turns, {usage.calls} calls, {usage.writes} writes, {usage.input_tokens} in / "
        f"{usage.output_tokens} out tokens, ${usage.cost_usd:.6f}"
    )
    wake = f"{view.wake_at:%Y-%m-%d %H:%M:%S %Z}" if view.wake_at and view.ended_at is None else None
    facts = {
        "operation": view.operation_id,
        "state": outcome(view),
        "profile": f"{view.profile} for {safe(view.subject)} of {safe(view.tenant)}",
        "used": costs,
        "next wake": wake,
        "deadline": f"{view.deadline:%Y-%m-%d %H:%M:%S %Z}",
    }
    table = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact is not None:
            table.add_row(Text(name, "dim"), _state(fact) if name == "state" else Text(fact))
    return table


def _timeline_table(view: OperationView) -> Table:
    table = _table("time", "turn", "event", "detail")
    for entry in timeline(view):
        table.add_row(
            *_texts(seconds(view.created_at, entry.at), "" if entry.turn is None else entry.turn, entry.what),
            Text(entry.detail, _style(entry.state)),
        )
    return table


def _pending(pending: Mapping[str, Any]) -> list[RenderableType]:
    """What the terminal record says beside what happened."""
    kinds = [(kind, each) for kind, group in pending.items() if kind != "happened" for each in group]
    lines = [Text(f"{kind}: {safe(each['tool'])} {each['action_id']} {each['state']}") for kind, each in kinds]
    return [section("left behind", lines)] if lines else []


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in _WHOLE)
    return table


def _texts(*values: Any) -> list[Text]:
    """Never markup: the text may come from a model or a caller."""
    return [Text(safe(str(value))) for value in values]


def _state(state: str) -> Text:
    return Text(state, _style(state.split(" ", 1)[0]))


def _style(state: str) -> str:
    if state in _GOOD:
        return "green"
    if state in _BAD:
        return "red"
    return "yellow" if state in _OPEN else ""
