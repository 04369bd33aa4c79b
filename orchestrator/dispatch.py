"""Run one due row of an executor queue: a read, the start of a write, or a reconciliation."""

import structlog

from executors.registry import ToolSpec
from orchestrator import checks, parking, reads, writes
from orchestrator.app import App
from orchestrator.domain.action import UNCERTAIN, ActionState
from orchestrator.domain.errors import TurnqueueError
from store import actions
from store.records import ActionRecord

log = structlog.get_logger()


def run_one(app: App, queue: str, hint: str | None) -> bool:
    """One due row of the queue, the hinted one first. False: nothing is due (or no slot is free)."""
    if hint is not None and hint.startswith("act_"):
        if _run_action(app, hint, hinted=True):
            return True
        hint = None
    return (queue in app.read_queues and reads.run(app, queue, hint)) or _run_next_action(app, queue)


def _run_next_action(app: App, queue: str) -> bool:
    """The action longest due; one that another worker took first is passed over."""
    passed: list[str] = []
    for _ in range(4):
        with app.database.autocommit() as connection:
            action_id = actions.next_due(connection, queue, passed)
        if action_id is None:
            return False
        if _run_action(app, action_id):
            return True
        passed.append(action_id)
    return False


def _run_action(app: App, action_id: str, *, hinted: bool = False) -> bool:
    with app.database.autocommit() as connection:
        action = actions.load_due(connection, action_id)
    if action is None or (hinted and action.limited and action.state is ActionState.READY):
        return False  # limited tools go by fair order, or a flood of one tenant's hints would pass the others
    spec = app.registry.tool(action.tool)
    if spec is None:
        log.warning("action.tool_not_here", tool=action.tool)
        return False
    with structlog.contextvars.bound_contextvars(operation_id=action.operation_id, action_id=action_id):
        if action.state is ActionState.READY:
            return _start(app, spec, action)
        if action.state in UNCERTAIN:
            return _check(app, spec, action)
    return False


def _start(app: App, spec: ToolSpec, action: ActionRecord) -> bool:
    """Start a write; what fails before it is STARTED is counted, and in the end parked."""
    faults = action.faults + 1
    hooks = spec.authorize is not None or spec.resource_version is not None
    if hooks:  # the host's code runs next, of which this process may die: count before
        with app.database.autocommit() as connection:
            faults = actions.count_faults(connection, action, faults)
    if faults > app.settings.lost_limit:
        parking.broken_action(app, action, None, faults)
        return True
    try:
        started = writes.start(app, spec, action)
    except TurnqueueError:
        raise
    except Exception as error:
        parking.broken_action(app, action, error, faults)
        raise
    if hooks and not started:  # no slot, or another worker was first: no fault of its own
        with app.database.autocommit() as connection:
            actions.count_faults(connection, action, action.faults)
    return started


def _check(app: App, spec: ToolSpec, action: ActionRecord) -> bool:
    """Reconcile; the claim has counted it, and whatever is recorded sets the count back."""
    if action.faults >= app.settings.lost_limit:
        parking.broken_action(app, action, None, action.faults)
        return True
    try:
        return checks.check(app, spec, action)
    except TurnqueueError:
        raise
    except Exception as error:
        with app.database.autocommit() as connection:
            claimed = actions.load(connection, action.action_id)
        if claimed is not None and claimed.fence == action.fence + 1:
            parking.broken_action(app, claimed, error, claimed.faults)
        raise
