"""Run one due row of an executor queue: a read, the start of a write, or a reconciliation."""

import structlog

from orchestrator import checks, reads, writes
from orchestrator.app import App
from orchestrator.domain.action import ActionState
from store import actions

log = structlog.get_logger()


def run_one(app: App, queue: str, hint: str | None) -> bool:
    """One due row of the queue, the hinted one first. False: nothing is due (or no slot is free)."""
    if hint is not None and hint.startswith("act_"):
        if _run_action(app, hint):
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


def _run_action(app: App, action_id: str) -> bool:
    with app.database.autocommit() as connection:
        action = actions.load_ours(connection, action_id)
    if action is None:
        return False
    spec = app.registry.tool(action.tool)
    if spec is None:
        log.warning("action.tool_not_here", tool=action.tool)
        return False
    with structlog.contextvars.bound_contextvars(operation_id=action.operation_id, action_id=action_id):
        if action.state is ActionState.READY:
            return writes.start(app, spec, action)
        if action.state in (ActionState.UNKNOWN, ActionState.PENDING):
            return checks.check(app, spec, action)
    return False
