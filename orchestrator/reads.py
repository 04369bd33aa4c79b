"""Run one due read: claim it, run its handler outside any transaction, record its one result with the fence."""

import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import Connection

from executors import results
from executors.registry import ToolSpec
from executors.run import (
    Broken,
    ReadOutcome,
    Rejected,
    Succeeded,
    Transient,
    run_read,
)
from orchestrator import attempt, binding, engine
from orchestrator.app import App
from orchestrator.domain import digests
from orchestrator.domain.errors import TurnqueueError
from orchestrator.domain.model import AttemptState, CallState
from orchestrator.domain.operation import TERMINAL
from orchestrator.failpoints import failpoint
from orchestrator.leases import Lease
from policy.base import Principal
from policy.retry import apart, backoff
from store import calls, operations, slots

UNKNOWN_TOOL_WAIT = timedelta(seconds=10)  # a worker of an older release must leave the call to a newer one


def run(app: App, queue: str, hint: str | None) -> bool:
    since = time.monotonic()
    fair = any(spec.concurrency is not None and spec.queue == queue for spec in app.registry.tools)
    longest = max((spec.timeout for spec in app.registry.tools if spec.queue == queue), default=30.0)
    with app.database.autocommit() as connection:
        row = calls.claim(
            connection,
            hint=hint,
            queue=queue,
            lease=app.settings.lease_seconds,
            slot_lease=longest + slots.GRACE_SECONDS,
            worker=app.worker,
            fair=fair,
        )
    if row is None:
        return False
    with (
        structlog.contextvars.bound_contextvars(operation_id=row["operation_id"], call_key=row["call_key"]),
        app.leases.hold("call", row["call_key"], row["fence"], since) as lease,
    ):
        failpoint("read.claimed")
        try:
            outcome = _read_outcome(app, row, lease)
            failpoint("read.answered")
            _record_read(app, row, outcome)
        except TurnqueueError:
            raise
        except Exception:
            _broken(app, row)
            raise
    return True


def _broken(app: App, row: dict[str, Any]) -> None:
    """Something outside of the handler failed that nobody foresaw: another try, as often as the tool allows."""

    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            hand_back(app, unit, row, AttemptState.FAILED, "INTERNAL")
        return unit.wakes

    with suppress(NotOurs):
        app.publish(app.database.transact(work, again=app.settings.lease_seconds))


def hand_back(app: App, unit: engine.Unit, row: Mapping[str, Any], ended: AttemptState, code: str) -> bool:
    """An attempt of which nothing was recorded: the read is due again, or FAILED with `code` when it was tried often
    enough. `row`: a claimed call. False, or NotOurs: its fence is another's by now.
    """
    spec = app.registry.tool(row["tool"])
    if spec is None or row["attempts"] < spec.max_attempts:
        if ended is AttemptState.LOST:  # it has waited for a lease to run out
            delay = apart(row["attempts"], app.settings.lease_seconds, random.random())  # noqa: S311 - jitter
        else:
            delay = backoff(row["attempts"]) / 2
        if not delay:
            unit.wake_rows([(row["call_key"], row["tool"], row["queue"])])
        return calls.try_again(
            unit.connection,
            call_key=row["call_key"],
            fence=row["fence"],
            attempt_state=ended,
            code=code,
            contacted=None,
            delay=delay.total_seconds(),
        )
    settle_read(unit, row, ReadRecord(CallState.FAILED, ended, results.error("failed", code), None), None)
    return True


def _read_outcome(app: App, row: dict[str, Any], lease: Lease) -> ReadOutcome:
    spec = app.registry.tool(row["tool"])
    left = row["operation_left"].total_seconds()
    if row["ended"] is not None or left <= 0:
        return Rejected("OPERATION_ENDED", "")
    if row["revision"] != row["operation_revision"]:
        return Rejected("SUPERSEDED", "")
    if spec is None:
        return Transient("TOOL_NOT_HERE", UNKNOWN_TOOL_WAIT.total_seconds())
    principal = Principal(row["tenant"], row["subject"], frozenset(row["scopes"]))
    context = attempt.context(app, spec, principal, row, min(spec.timeout, left), lease)
    return run_read(spec, row["arguments"], context)


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """`evidence` is what was really answered, where the model is told something else."""

    state: CallState
    attempt: AttemptState
    observation: results.Observation
    contacted: bool | None
    evidence: str | None = None


def _read_record(outcome: ReadOutcome, spec: ToolSpec | None) -> ReadRecord:
    match outcome:
        case Succeeded(observation, _):
            return ReadRecord(CallState.SUCCEEDED, AttemptState.SUCCEEDED, observation, True)
        case Rejected("OPERATION_ENDED", _):
            observation = results.error("rejected", "OPERATION_ENDED")
            return ReadRecord(CallState.REJECTED, AttemptState.NOT_SENT, observation, False)
        case Rejected("SUPERSEDED", _):
            return ReadRecord(CallState.REJECTED, AttemptState.NOT_SENT, results.SUPERSEDED, False)
        case Rejected(code, message):
            refusal = results.refusal(spec, code, message) if spec else results.error("failed", code, message)
            return ReadRecord(CallState.FAILED, AttemptState.FAILED, refusal, True)
        case Transient(code, _) | Broken(code):
            return ReadRecord(CallState.FAILED, AttemptState.FAILED, results.error("failed", code), None)


def _record_read(app: App, row: dict[str, Any], outcome: ReadOutcome) -> None:
    spec = app.registry.tool(row["tool"])
    if isinstance(outcome, Transient) and _try_again(app, row, outcome, spec):
        return
    record = _read_record(outcome, spec)

    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            settle_read(unit, row, record, spec)
        return unit.wakes

    with suppress(NotOurs):
        wakes = app.database.transact(work, again=app.settings.lease_seconds)
        failpoint("read.recorded")
        app.publish(wakes)


class NotOurs(Exception):
    """The fence is another worker's by now: roll back, a zombie changes nothing."""


def _superseded(record: ReadRecord) -> ReadRecord:
    """The caller corrected the request meanwhile: the answer is kept as evidence, and the model told that it is old."""
    if record.observation is results.SUPERSEDED:
        return record
    return replace(
        record, state=CallState.FAILED, observation=results.SUPERSEDED, evidence=record.observation.text
    )  # fmt: skip


def settle_read(unit: engine.Unit, row: Mapping[str, Any], record: ReadRecord, spec: ToolSpec | None) -> None:
    """Record a read's one result and count it; the last one moves the operation on. `row`: a claimed call.

    `spec` is None where no handler of ours can have run. Raises NotOurs.
    """
    operation = operations.count_read(  # takes the operation's lock, so its revision stands from here on
        unit.connection,
        row["operation_id"],
        revision=row["revision"],
        size=record.observation.size,
        superseded_size=results.SUPERSEDED.size,
        taints=record.observation.untrusted,
    )
    if operation.revision != row["revision"] and operation.state not in TERMINAL:
        record = _superseded(record)
    half = binding.produced(row["binding"] or {}, spec if record.attempt is not AttemptState.NOT_SENT else None)
    whole, binding_sha256 = digests.bind(half, observation=record.observation.text, state=record.state)
    ours = calls.settle(
        unit.connection,
        call_key=row["call_key"],
        fence=row["fence"],
        state=record.state,
        code=record.observation.code,
        observation=record.observation.text,
        is_error=record.observation.is_error,
        evidence=record.evidence,
        binding=engine.dump(whole),
        binding_sha256=binding_sha256,
        attempt_state=record.attempt,
        contacted=record.contacted,
    )
    if not ours:
        raise NotOurs
    unit.audit(
        row["operation_id"], "call.settled", row["call_key"], tool=row["tool"], state=record.state,
        code=record.observation.code, attempts=row["attempts"], contacted=record.contacted,
        result_sha256=whole["result_sha256"], binding_sha256=binding_sha256,
        evidence_sha256=digests.sha256_bytes(record.evidence.encode()) if record.evidence else None,
    )  # fmt: skip
    if operation.state in TERMINAL:
        return
    if operation.held_reads:
        released = calls.release_held(unit.connection, operation.operation_id, operation.turn, 1)
        unit.wake_rows(released)
        operation = replace(operation, held_reads=operation.held_reads - len(released))
        operations.save(unit.connection, operation.operation_id, held_reads=operation.held_reads)
    if operation.open_reads == 0:
        engine.progress(unit, operation)


def _try_again(app: App, row: dict[str, Any], outcome: Transient, spec: ToolSpec | None) -> bool:
    """Hand the read back to its retry owner, the row. False: it was tried often enough."""
    limit = spec.max_attempts if spec else row["attempts"] + 1
    delay = backoff(row["attempts"], outcome.retry_after, random.random())  # noqa: S311 - jitter
    if row["attempts"] >= limit or delay >= row["operation_left"]:
        return False
    with app.database.autocommit() as connection:
        calls.try_again(
            connection,
            call_key=row["call_key"],
            fence=row["fence"],
            delay=delay.total_seconds(),
            attempt_state=AttemptState.FAILED,
            code=outcome.code,
            contacted=None,
        )
    return True
