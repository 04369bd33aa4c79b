"""The sweeper: repairs what crashes, lost messages and passing time leave behind. `python -m orchestrator.sweeper`.

One loop at a time and schema version, under an advisory lock. Every repair is a compare-and-set on state and fence, so
that a stale look changes nothing. It publishes due work again, with jitter and at most BATCH rows of a kind per round.
"""

import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from executors import results
from orchestrator import consequences, engine, parking, reads
from orchestrator.app import App
from orchestrator.auditing import Anchoring
from orchestrator.domain import events as e
from orchestrator.domain.action import ActionState
from orchestrator.domain.errors import TurnqueueError, Unavailable
from orchestrator.domain.model import ApprovalState, AttemptState, CallState, Reason
from orchestrator.failpoints import failpoint
from orchestrator.heartbeat import beat
from orchestrator.logs import configure
from orchestrator.settings import Settings
from policy.retry import backoff
from store import actions, approvals, calls, envelopes, operations, questions
from store.db import exclusive, short_locks, still_there
from store.records import ActionRecord, CallRecord
from store.revisions import check_migrated
from store.tables import SCHEMA_VERSION

log = structlog.get_logger()
T = TypeVar("T")

BATCH = 200
HANG_SECONDS = 60.0  # for which a sweeper may be stopped or cut off before another one takes over
SLOW_SECONDS = 5.0  # for one row: the database is in trouble, the rest of its kind comes with the next round
FORGET_SECONDS = 600.0  # a row that was put off and has not been met since needs no repair any more
# "tqsw", one for each schema version: an older sweeper must not keep a newer one from rows that only that one knows.
_LOCK = 0x7471_7377 + SCHEMA_VERSION - 1


def run(app: App, stop: threading.Event) -> None:
    """Sweep until told to stop. Waits for the lock of another sweeper; an unreachable server is waited for.

    Raises ConfigError when anchoring is half configured.
    """
    anchoring = Anchoring.configured(app.database, app.settings)
    while not stop.is_set():
        beat(app.settings.heartbeat_file)
        try:
            with exclusive(app.database, _LOCK, HANG_SECONDS) as guard:
                if anchoring:
                    anchoring.soon()
                while guard is not None and not stop.is_set():
                    still_there(guard)  # the lock lives with this session
                    if anchoring:  # first: a database that went backwards must not be set to work
                        anchoring.step()
                    run_once(app)
                    beat(app.settings.heartbeat_file)
                    stop.wait(app.settings.sweep_seconds * random.uniform(0.8, 1.2))  # noqa: S311
        except TurnqueueError as error:
            log.warning("sweeper.unavailable", code=error.code)
        except Exception:
            log.exception("sweeper.failed")
        stop.wait(app.settings.sweep_seconds)


def run_once(app: App) -> dict[str, int]:
    """One round; returns how many rows each repair touched."""
    done = {}
    for name, repair in _REPAIRS.items():
        if app.stopping.is_set():
            break
        try:
            done[name] = repair(app)
        except Unavailable:
            raise
        except Exception:  # one kind of repair must not keep the others from theirs
            log.exception("sweeper.repair_failed", repair=name)
    if any(done.values()):
        log.info("sweeper.round", **done)
    return done


def _unit_of_work(app: App, work: Callable[[engine.Unit], bool]) -> bool:
    """Run one repair in its own transaction and publish what it made due."""

    def transaction(connection: Connection) -> tuple[bool, list[engine.Wake]]:
        with engine.Unit(connection, "sweeper") as unit:
            short_locks(connection)
            return work(unit), unit.wakes

    changed, wakes = app.database.transact(transaction)
    failpoint("sweeper.repaired")
    app.publish(wakes)
    return changed


@dataclass
class _PutOff:
    """Rows that could not be repaired: each is looked at again later and later, so that the others have their turn."""

    until: dict[str, float] = field(default_factory=dict)  # by row id, on the monotonic clock
    tries: Counter[str] = field(default_factory=Counter)

    def waits(self, row_id: str) -> bool:
        return self.until.get(row_id, 0.0) > time.monotonic()

    def add(self, row_id: str) -> None:
        self.tries[row_id] += 1
        for gone in [each for each, until in self.until.items() if time.monotonic() - until > FORGET_SECONDS]:
            self.forget(gone)
        self.until[row_id] = time.monotonic() + backoff(self.tries[row_id]).total_seconds()

    def forget(self, row_id: str) -> None:
        self.until.pop(row_id, None)
        self.tries.pop(row_id, None)


_put_off = _PutOff()


def _each(
    app: App,
    find: Callable[[Connection, int], Sequence[T]],
    ids: Callable[[T], tuple[str, str]],
    repair: Callable[[App, T], bool],
    last_resort: Callable[[App, T], None] | None = None,
) -> int:
    """Repair what `find` lists, batch after batch; how many were. `ids` gives a row's id and its operation's.

    One that cannot be repaired must not hold up the others, whether another session has it locked, it is of a newer
    release, or its repair raises: that is counted, and often enough the operation is marked and `last_resort` done.
    """
    repaired = 0
    while True:
        with app.database.autocommit() as connection:
            rows = find(connection, BATCH + len(_put_off.until))
        done = 0
        for row in rows:
            began = time.monotonic()
            done += _repaired(app, row, ids(row), repair, last_resort)
            if time.monotonic() - began > SLOW_SECONDS:
                return repaired + done
        repaired += done
        if done < BATCH or app.stopping.is_set():
            return repaired
        beat(app.settings.heartbeat_file)


def _repaired(
    app: App,
    row: T,
    ids: tuple[str, str],
    repair: Callable[[App, T], bool],
    last_resort: Callable[[App, T], None] | None,
) -> bool:
    row_id, operation_id = ids
    if app.stopping.is_set() or _put_off.waits(row_id):
        return False
    try:
        done = repair(app, row)
    except Unavailable as error:
        if error.code != "DATABASE_BUSY":
            raise
        log.warning("sweeper.row_busy", row=row_id)
        _put_off.add(row_id)
        return False
    except TurnqueueError as error:
        log.warning("sweeper.row_left", row=row_id, code=error.code)
        _put_off.add(row_id)
        return False
    except Exception as error:
        log.exception("sweeper.row_failed", row=row_id, operation_id=operation_id)
        _put_off.add(row_id)
        if parking.unrepaired(app, operation_id, error) and last_resort is not None:
            last_resort(app, row)
        return False
    _put_off.forget(row_id)
    return done


# --- leases --------------------------------------------------------------------------------------------------------


def lost_turns(app: App) -> int:
    """A worker died while it asked the model: nothing was dispatched, so the turn is asked again, or given up."""
    return _each(app, operations.lost_turns, lambda row: (row[0], row[0]), _lost_turn)


def _lost_turn(app: App, lost: tuple[str, int]) -> bool:
    operation_id, fence = lost

    def work(unit: engine.Unit) -> bool:
        held = operations.lock_leased(unit.connection, operation_id, fence, wait=False)
        if held is None or not operations.lease_expired(unit.connection, operation_id):
            return False
        unit.audit(operation_id, "turn.lost", turn=held.turn, fence=fence)
        profile = app.profile(held.profile_digest, unit.connection)
        again = profile.model.provider_tools_on_loss == "ask_again"
        event = parking.lost_turn(app, held, may_ask_again=again)
        engine.apply(unit, held, event, turn=held.turn - 1, lost=held.lost + 1)
        return True

    return _unit_of_work(app, work)


def lost_reads(app: App) -> int:
    """A worker died while it ran a read: another may, as often as the tool allows."""
    return _each(app, calls.lost, lambda call: (call.call_key, call.operation_id), _lost_read)


def _lost_read(app: App, call: CallRecord) -> bool:
    def work(unit: engine.Unit) -> bool:
        if operations.lock_free(unit.connection, call.operation_id) is None:
            return False
        if not calls.lease_expired(unit.connection, call.call_key):
            return False
        return reads.hand_back(app, unit, asdict(call), AttemptState.LOST, "WORKER_LOST")

    try:
        return _unit_of_work(app, work)
    except reads.NotOurs:
        return False


def lost_writes(app: App) -> int:
    """A worker died between `started` and the record of the outcome: unknown, never sent again for that."""
    tools = [spec.name for spec in app.registry.tools]  # of another tool one must judge that knows it
    return _each(
        app,
        lambda connection, limit: actions.lost(connection, tools, limit),
        lambda action: (action.action_id, action.operation_id),
        _lost_write,
        parking.unknown_at_least,
    )


def _lost_write(app: App, action: ActionRecord) -> bool:
    spec = app.registry.tool(action.tool)
    if spec is None:
        return False

    def work(unit: engine.Unit) -> bool:
        held = operations.lock_free(unit.connection, action.operation_id)
        if held is None:
            return False
        current = actions.lock(unit.connection, action.action_id)
        if current.fence != action.fence or current.state is not ActionState.STARTED:
            return False
        if not actions.lease_expired(unit.connection, action.action_id):
            return False
        actions.end_attempt(
            unit.connection, action.action_id, state=AttemptState.LOST, code="WORKER_LOST", contacted=None
        )
        event = e.OutcomeLost(consequences.next_check(app, spec, current, held.now))
        settled = engine.save_action(unit, held, current, event, contacted=None, evidence="WORKER_LOST")
        engine.progress(unit, replace(held, open_calls=held.open_calls - settled))
        return True

    return _unit_of_work(app, work)


# --- timers --------------------------------------------------------------------------------------------------------


def expired_approvals(app: App) -> int:
    """Nobody decided in time, or nothing started in time: the model is told and goes on."""
    return _each(app, approvals.expired, lambda approval: (approval.approval_id, approval.operation_id), _expire)


def _expire(app: App, approval: approvals.ApprovalRecord) -> bool:
    def work(unit: engine.Unit) -> bool:
        held = operations.lock_free(unit.connection, approval.operation_id)
        if held is None:
            return False
        action = actions.lock(unit.connection, approval.action_id)
        if not approvals.close(unit.connection, approval.action_id, ApprovalState.EXPIRED):
            return False
        unit.audit(approval.operation_id, "approval.expired", approval.approval_id, action_id=approval.action_id)
        settled = engine.save_action(unit, held, action, e.Blocked("APPROVAL_EXPIRED"))
        engine.progress(unit, replace(held, open_calls=held.open_calls - settled))
        return True

    return _unit_of_work(app, work)


def expired_questions(app: App) -> int:
    """Nobody answered in time: the operation ends, for the model would have to guess."""
    return _each(app, questions.expired, lambda question: (question.question_id, question.operation_id), _unanswered)


def _unanswered(app: App, question: questions.QuestionRecord) -> bool:
    def work(unit: engine.Unit) -> bool:
        held = operations.lock_free(unit.connection, question.operation_id)
        if held is None:
            return False
        waiting = questions.expire(unit.connection, question.question_id)
        if waiting is None:
            return False
        unit.audit(question.operation_id, "question.expired", question.question_id, call_key=question.call_key)
        engine.settle_call(unit, waiting, CallState.REJECTED, results.error("rejected", "INPUT_EXPIRED"))
        left = replace(held, open_calls=held.open_calls - 1, open_inputs=held.open_inputs - 1)
        engine.apply(unit, left, e.Exhausted(Reason.INPUT_EXPIRED))
        return True

    return _unit_of_work(app, work)


def deadlines(app: App) -> int:
    """Operations past their wall-clock budget end; what was started is still reconciled."""
    return _each(app, operations.past_deadline, lambda operation_id: (operation_id, operation_id), _deadline)


def _deadline(app: App, operation_id: str) -> bool:
    def work(unit: engine.Unit) -> bool:
        held = operations.lock_free(unit.connection, operation_id)
        return held is not None and engine.apply(unit, held, e.Exhausted(Reason.DEADLINE)).state is not held.state

    return _unit_of_work(app, work)


# --- lost wake-ups -------------------------------------------------------------------------------------------------


def republish(app: App) -> int:
    """Rows that are due and may have lost their hint. The publisher sends only what the queues have room for."""
    with app.database.autocommit() as connection:
        wakes = [engine.Wake(engine.ORCHESTRATOR_QUEUE, row) for row in operations.due(connection, BATCH)]
        for rows in (calls.due(connection, BATCH), actions.due(connection, BATCH)):
            wakes += [engine.Wake(queue, row_id, tool) for row_id, tool, queue in rows]
    random.shuffle(wakes)
    app.publish(wakes)
    return len(wakes)


def forget_envelopes(app: App) -> int:
    with app.database.autocommit() as connection:
        return envelopes.forget_expired(connection)


_REPAIRS: dict[str, Callable[[App], int]] = {
    "lost_turns": lost_turns,
    "lost_reads": lost_reads,
    "lost_writes": lost_writes,
    "expired_approvals": expired_approvals,
    "expired_questions": expired_questions,
    "deadlines": deadlines,
    "envelopes": forget_envelopes,
    "republished": republish,
}


def main() -> int:
    configure()
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    try:
        with App.open(Settings.from_env()) as app:
            app.stopping = stop
            check_migrated(app.database)
            app.sync_slots()
            log.info("sweeper.ready")
            run(app, stop)
    except TurnqueueError as error:
        sys.stderr.write(f"{error.code}: {error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
