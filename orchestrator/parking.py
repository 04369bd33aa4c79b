"""What fails in a way that nobody foresaw: counted in the database, tried again a few times, then parked.

A bug in a hook, in a tool's module or in Turnqueue raises again each time; a segmentation fault takes the worker with
it. Neither may keep workers busy for ever, nor stand in the way of the rows behind it. After `TURNQUEUE_LOST_LIMIT`
tries in a row of which nothing could be recorded, nothing of the row is due any more: its operation is marked
(`parked`), or where an action is uncertain, it waits among the reviews. `release` makes it due again. Whatever ends an
operation (cancel, deadline) ends a parked one too.

Deaths are counted when a lease has run out (`sweeper`), or beforehand, where the host's code is about to run.
"""

import random

import structlog
from sqlalchemy import Connection

from orchestrator import engine
from orchestrator.app import App
from orchestrator.domain import events as e
from orchestrator.domain.action import ActionState
from orchestrator.domain.errors import Conflict, NotFound, UserError
from orchestrator.domain.model import AttemptState, Parked
from orchestrator.domain.operation import CLAIMABLE
from policy.retry import apart, backoff
from store import actions, operations
from store.records import ActionRecord, OperationRecord

log = structlog.get_logger()


# --- turns ---------------------------------------------------------------------------------------------------------


def lost_turn(app: App, held: OperationRecord, *, may_ask_again: bool) -> e.TurnLost:
    """The event for a turn whose worker died."""
    wait = apart(held.lost + 1, app.settings.lease_seconds, random.random())  # noqa: S311 - jitter
    return e.TurnLost(held.lost + 1, app.settings.lost_limit, may_ask_again, held.now + wait)


def broken_turn(app: App, operation: OperationRecord, error: Exception) -> None:
    """Taking the turn raised `error`: give it back, later each time. Only its type is kept: its text may hold anything.

    Whoever claimed it has not recorded anything of it; a zombie changes nothing.
    """

    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock_leased(connection, operation.operation_id, operation.fence)
            if held is None:
                return []
            unit.audit(
                held.operation_id, "turn.broken", turn=held.turn, fence=held.fence, error=type(error).__name__,
                tries=held.lost + 1,
            )  # fmt: skip
            again_at = held.now + backoff(held.lost + 1, None, random.random())  # noqa: S311 - jitter
            event = e.TurnLost(held.lost + 1, app.settings.lost_limit, _may_ask_again(app, connection, held), again_at)
            engine.apply(unit, held, event, turn=held.turn - 1, lost=held.lost + 1)
        return unit.wakes

    app.publish(app.database.transact(work, again=app.settings.lease_seconds))


def _may_ask_again(app: App, connection: Connection, held: OperationRecord) -> bool:
    try:
        profile = app.profile(held.profile_digest, connection)
    except Exception:  # what cannot be read is what raised, and nothing was asked by it
        log.exception("parking.profile_unreadable")
        return True
    return profile.model.provider_tools_on_loss == "ask_again"


# --- actions -------------------------------------------------------------------------------------------------------


def broken_action(app: App, action: ActionRecord, error: Exception | None, faults: int) -> None:
    """Starting or reconciling `action` raised `error`, or killed its workers (None), now `faults` times in a row.

    Nothing of it was recorded: it is as it was, READY or uncertain, and never becomes FAILED by this.
    """
    parks = faults >= app.settings.lost_limit
    delay = None if parks else backoff(faults, None, random.random()).total_seconds()  # noqa: S311 - jitter

    def work(connection: Connection) -> None:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock(connection, action.operation_id)
            if not actions.put_back(connection, action, faults=faults, delay=delay):
                return
            unit.audit(
                action.operation_id, "action.broken", action.action_id, state=action.state, tries=faults,
                error=type(error).__name__ if error else "WORKER_LOST", parked=parks,
            )  # fmt: skip
            if parks and action.state is ActionState.READY:
                park(unit, held, Parked.WRITE)

    app.database.transact(work, again=app.settings.lease_seconds)


# --- repairs -------------------------------------------------------------------------------------------------------


def unrepaired(app: App, operation_id: str, error: Exception) -> bool:
    """The sweeper could not repair a row of this operation: count it. True: often enough for the operation's mark."""

    def work(connection: Connection) -> bool:
        with engine.Unit(connection, "sweeper") as unit:
            held = operations.lock_free(connection, operation_id)
            if held is None:
                return False
            unit.audit(operation_id, "repair.failed", error=type(error).__name__, tries=held.lost + 1)
            operations.save(connection, operation_id, lost=held.lost + 1)
            if held.lost + 1 >= app.settings.lost_limit and held.parked is None:
                park(unit, held, Parked.REPAIR)
        return held.lost + 1 >= app.settings.lost_limit

    return app.database.transact(work)


def unknown_at_least(app: App, action: ActionRecord) -> None:
    """A started write whose loss cannot be worked into its operation: say of itself that nobody knows its outcome, and
    ask an operator. What follows from it comes with his evidence."""

    def work(connection: Connection) -> None:
        with engine.Unit(connection, "sweeper") as unit:
            operations.lock(connection, action.operation_id)
            actions.end_attempt(
                connection, action.action_id, state=AttemptState.LOST, code="WORKER_LOST", contacted=None
            )
            if actions.save(connection, action, state=ActionState.UNKNOWN, review=True, evidence="WORKER_LOST"):
                unit.audit(
                    action.operation_id, "action.unknown", action.action_id, tool=action.tool,
                    key=action.idempotency_key, arguments_sha256=action.arguments_sha256, evidence="WORKER_LOST",
                    contacted=None,
                )  # fmt: skip

    app.database.transact(work)


# --- parking and releasing -----------------------------------------------------------------------------------------


def park(unit: engine.Unit, held: OperationRecord, code: Parked) -> None:
    operations.save(unit.connection, held.operation_id, parked=code)
    unit.audit(held.operation_id, "operation.parked", code=code)


def release(app: App, operation_id: str, *, by: str, tenant: str | None = None) -> None:
    """Try again what was parked, from the count of nought.

    Raises NotFound UNKNOWN_OPERATION, UserError BAD_FIELD, Conflict NOT_PARKED.
    """
    if not by.strip():
        raise UserError("BAD_FIELD", "by: name the person who decides")

    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"operator:{by}") as unit:
            found = operations.load(connection, operation_id)
            if found is None or (tenant is not None and found.tenant != tenant):
                raise NotFound("UNKNOWN_OPERATION", f"there is no operation {operation_id!r}")
            held = operations.lock(connection, operation_id)
            parked_actions = actions.unpark(connection, operation_id)
            if held.parked is None and not parked_actions:
                raise Conflict("NOT_PARKED", f"{operation_id} is not parked")
            unit.wake_rows(parked_actions)
            unit.audit(
                operation_id, "operation.released", by=by, code=held.parked, actions=[row[0] for row in parked_actions]
            )
            _make_due(unit, held)
        return unit.wakes

    app.publish(app.database.transact(work))


def _make_due(unit: engine.Unit, held: OperationRecord) -> None:
    """`asks` must not fall behind the numbers that requests of this turn already have."""
    due = {"wake_at": held.now} if held.state in CLAIMABLE and held.parked == Parked.TURN else {}
    asks = max(held.asks, operations.last_ask(unit.connection, held.operation_id, held.turn + 1)) if due else held.asks
    operations.save(unit.connection, held.operation_id, parked=None, lost=0, asks=asks, **due)
    if due:
        unit.wakes.append(engine.Wake(engine.ORCHESTRATOR_QUEUE, held.operation_id))
