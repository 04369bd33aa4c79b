"""F13: a database that is full or read-only. No request leaves without a `started` record; nothing is lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from orchestrator import commands, dispatch, turn
from orchestrator.app import App
from orchestrator.domain.errors import Unavailable
from orchestrator.settings import Settings
from tests.faults.locks import administrator, end_sessions
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.store.rows import eventually


@contextmanager
def read_only(desk: Desk, database_url: str) -> Iterator[None]:
    """For every session from now on, as a standby is; those that are open are ended, and the application noticed."""
    with administrator(database_url) as (connection, name):
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        end_sessions(connection, name)
        desk.app.database.engine.dispose()
        try:
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
            end_sessions(connection, name)
            desk.app.database.engine.dispose()


@contextmanager
def full(desk: Desk, table: str, when: str) -> Iterator[Callable[[], int]]:
    """Every such change of the table is answered as by a server without space (SQLSTATE 53100, disk_full).

    Gives a function that tells how many were. A sequence counts them: it is not rolled back.
    """
    raising = "RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'"
    refuse = f"BEGIN PERFORM nextval('refusals'); {raising}; END"
    desk.sql("CREATE SEQUENCE refusals START 1")
    desk.sql(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refuse} $$")
    desk.sql(f"CREATE TRIGGER refused BEFORE {when} ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        yield lambda: int(desk.sql("SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS n FROM refusals")[0]["n"])
    finally:
        desk.sql("DROP FUNCTION refuse CASCADE")
        desk.sql("DROP SEQUENCE refusals")


def refused(code: str, work: Callable[[], object]) -> None:
    with pytest.raises(Unavailable) as caught:
        work()
    assert caught.value.code == code


def approved(desk: Desk) -> str:
    operation = desk.submit(calls(call("careful", text="a")), DONE)
    desk.advance(operation)
    commands.approve(desk.app, desk.approval(operation), by="boss")
    return operation


def goes_through_once(desk: Desk, operation: str) -> None:
    assert desk.run(operation).state == "COMPLETED"
    [action] = desk.actions(operation)
    assert (action.attempts, len(desk.audit(operation, "action.started"))) == (1, 1)
    assert len(desk.lab.seen) == len(desk.lab.effects) == 1


def test_read_only_nothing_starts(desk: Desk, database_url: str) -> None:
    operation = approved(desk)
    with read_only(desk, database_url):
        for work in (
            lambda: dispatch.run_one(desk.app, "writes", None),
            lambda: turn.advance(desk.app, operation),
            lambda: commands.cancel(desk.app, operation),
            lambda: desk.submit(DONE),
            desk.sweep,
        ):
            refused("DATABASE_READ_ONLY", work)
        assert desk.view(operation).state == "EXECUTING", "it can be looked at"
    assert desk.lab.seen == []
    goes_through_once(desk, operation)


@pytest.mark.parametrize(
    ("table", "when"),
    [("attempts", "INSERT"), ("audit", "INSERT"), ("actions", "UPDATE"), ("approvals", "UPDATE")],
)
def test_full_nothing_starts(desk: Desk, table: str, when: str) -> None:
    """Whichever part of the `started` record finds no space, all of it is undone, the use of the approval too."""
    operation = approved(desk)
    with full(desk, table, when):
        refused("DATABASE_FULL", lambda: dispatch.run_one(desk.app, "writes", None))
        [approval] = desk.view(operation).approvals
        assert (desk.action(operation).state, approval.state) == ("READY", "APPROVED")
    assert desk.lab.seen == []
    goes_through_once(desk, operation)


@pytest.fixture
def hasty(desk: Desk, settings: Settings) -> Iterator[App]:
    """A worker process whose leases are short, and with them the time for which it tries to record."""
    app = App(settings.model_copy(update={"lease_seconds": 1.0}), desk.app.registry)
    yield app
    app.close()


@contextmanager
def unwritable(fault: str, desk: Desk, database_url: str) -> Iterator[str]:
    """Gives the code that it is refused with."""
    with full(desk, "audit", "INSERT") if fault == "full" else read_only(desk, database_url):
        yield "DATABASE_FULL" if fault == "full" else "DATABASE_READ_ONLY"


def in_flight(desk: Desk, app: App) -> tuple[threading.Thread, list[str]]:
    """A write whose request has arrived and is not answered, and what its worker will meet."""
    desk.lab.will(wait=True)
    problems: list[str] = []

    def start() -> None:
        try:
            dispatch.run_one(app, "writes", None)
        except Unavailable as problem:
            problems.append(problem.code)

    worker = threading.Thread(target=start)
    worker.start()
    eventually(lambda: bool(desk.lab.seen))
    return worker, problems


@pytest.mark.parametrize("fault", ["full", "read_only"])
@pytest.mark.parametrize("tool", ["write", "checked"])
def test_an_outcome_that_cannot_be_recorded_is_unknown(
    desk: Desk, hasty: App, database_url: str, fault: str, tool: str
) -> None:
    """The request was under way when it began. It is not sent again; the downstream is asked, or an operator."""
    operation = desk.submit(calls(call(tool, text="a")), DONE)
    desk.advance(operation)
    worker, problems = in_flight(desk, hasty)
    with unwritable(fault, desk, database_url) as code:
        desk.lab.released.set()
        worker.join(60)
    assert problems == [code]
    assert desk.action(operation).state == "STARTED"
    desk.expire_leases(operation)
    assert desk.sweep()["lost_writes"] == 1
    desk.lab.will(json={"id": "r-1"})
    desk.run(operation)
    assert len(desk.lab.effects) == 1
    assert (desk.action(operation).state, desk.action(operation).review) == (
        ("UNKNOWN", True) if tool == "write" else ("SUCCEEDED", False)
    )


def test_an_outcome_waits_for_as_long_as_its_lease(desk: Desk) -> None:
    operation = desk.submit(calls(call("write", text="a")), DONE)
    desk.advance(operation)
    worker, problems = in_flight(desk, desk.app)
    with full(desk, "audit", "INSERT") as refusals:
        desk.lab.released.set()
        eventually(lambda: refusals() >= 2)
    worker.join(60)
    assert (problems, desk.action(operation).state, len(desk.lab.seen)) == ([], "SUCCEEDED", 1)
