"""Contents for every event of both machines: samples for every branch, and strategies over them all."""

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

from hypothesis import strategies as st

from orchestrator.domain import events as e
from orchestrator.domain.model import FAILED_REASONS, INCOMPLETE_REASONS, Outstanding, Reason

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)

times = st.integers(0, 10**6).map(lambda seconds: NOW + timedelta(seconds=seconds))
_maybe = st.none() | times
_counts = st.integers(0, 3)
outstanding = st.builds(Outstanding, _counts, _counts, _counts, _counts)

OPERATION_EVENTS: dict[type[Any], st.SearchStrategy[Any]] = {
    e.TurnStarted: st.builds(e.TurnStarted),
    e.TurnLost: st.builds(e.TurnLost, st.integers(1, 6), st.integers(1, 6), st.booleans()),
    e.TurnDeferred: st.builds(e.TurnDeferred, times),
    e.TurnFailed: st.builds(e.TurnFailed, st.sampled_from(sorted(FAILED_REASONS))),
    e.Proposed: st.builds(e.Proposed),
    e.Answered: st.builds(
        e.Answered,
        st.lists(st.sampled_from(["refund", "mail"]), max_size=2).map(tuple),
        *[st.booleans()] * 4,
        refused_for=st.sampled_from([None, Reason.CALL_BUDGET, Reason.WRITE_BUDGET]),
    ),
    e.Refused: st.builds(e.Refused),
    e.Truncated: st.builds(e.Truncated),
    e.Paused: st.builds(e.Paused),
    e.Superseded: st.builds(e.Superseded),
    e.Judged: st.builds(e.Judged, outstanding),
    e.Progressed: st.builds(e.Progressed, outstanding),
    e.Exhausted: st.builds(e.Exhausted, st.sampled_from(sorted(INCOMPLETE_REASONS))),
    e.CancelRequested: st.builds(e.CancelRequested),
}

_CODES = st.sampled_from(["DENIED", "OUT_OF_STOCK"])
ACTION_EVENTS: dict[type[Any], st.SearchStrategy[Any]] = {
    e.ApprovalRequired: st.builds(e.ApprovalRequired),
    e.Cleared: st.builds(e.Cleared),
    e.Approved: st.builds(e.Approved),
    e.Blocked: st.builds(e.Blocked, _CODES),
    e.Started: st.builds(e.Started),
    e.Confirmed: st.builds(e.Confirmed),
    e.RefusedDownstream: st.builds(e.RefusedDownstream, _CODES),
    e.NothingSent: st.builds(e.NothingSent, _maybe),
    e.Pended: st.builds(e.Pended, times),
    e.OutcomeLost: st.builds(e.OutcomeLost, _maybe),
    e.FoundAbsent: st.builds(e.FoundAbsent, st.booleans(), _maybe),
}

_YES_NO = (False, True)
_OPEN = [Outstanding(), *(Outstanding(**{name: 1}) for name in ("running", "uncertain", "approvals", "inputs"))]

# Every content that can make a difference, for the exhaustive checks of the tables.
SAMPLES: dict[type[Any], list[Any]] = {
    e.TurnStarted: [e.TurnStarted()],
    e.TurnLost: [e.TurnLost(lost, 3, again) for lost, again in product((1, 2, 3, 4), _YES_NO)],
    e.TurnDeferred: [e.TurnDeferred(LATER)],
    e.TurnFailed: [e.TurnFailed(reason) for reason in FAILED_REASONS],
    e.Proposed: [e.Proposed()],
    e.Answered: [
        e.Answered(m, *rest, refused_for=budget)
        for m, *rest, budget in product(((), ("refund",)), *[_YES_NO] * 4, (None, Reason.CALL_BUDGET))
    ],
    e.Refused: [e.Refused()],
    e.Truncated: [e.Truncated()],
    e.Paused: [e.Paused()],
    e.Superseded: [e.Superseded()],
    e.Judged: [e.Judged(left) for left in _OPEN],
    e.Progressed: [e.Progressed(left) for left in _OPEN],
    e.Exhausted: [e.Exhausted(reason) for reason in INCOMPLETE_REASONS],
    e.CancelRequested: [e.CancelRequested()],
    e.ApprovalRequired: [e.ApprovalRequired()],
    e.Cleared: [e.Cleared()],
    e.Approved: [e.Approved()],
    e.Blocked: [e.Blocked("DENIED")],
    e.Started: [e.Started()],
    e.Confirmed: [e.Confirmed()],
    e.RefusedDownstream: [e.RefusedDownstream("OUT_OF_STOCK")],
    e.NothingSent: [e.NothingSent(None), e.NothingSent(LATER)],
    e.Pended: [e.Pended(LATER)],
    e.OutcomeLost: [e.OutcomeLost(None), e.OutcomeLost(LATER)],
    e.FoundAbsent: [e.FoundAbsent(again, at) for again, at in product(_YES_NO, (None, LATER))],
}
