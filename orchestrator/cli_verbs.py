"""The commands that work on a running installation: submit, show, list, approve, deny, cancel; and following."""

import getpass
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

import structlog
from rich.console import Console
from rich.live import Live

from executors.registry import Registry
from orchestrator import cli_render, cli_target, commands
from orchestrator.app import App
from orchestrator.cli_report import Exit, print_json, say, terminal
from orchestrator.domain.errors import ConfigError
from orchestrator.logs import configure
from orchestrator.views import ApprovalView, OperationView
from store.revisions import check_migrated

POLL_SECONDS = 0.1


def quiet_logs() -> None:
    """Structured logs are for services; here only whoever sets TURNQUEUE_LOG_LEVEL sees them."""
    configure()
    if not os.environ.get("TURNQUEUE_LOG_LEVEL"):
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@contextmanager
def attached(*, registry: bool = False, lenient: bool = False) -> Iterator[App]:
    """The running installation; `registry` loads its modules, `lenient` goes on without them where that fails.

    Says so when its broker did not take a wake-up.
    """
    quiet_logs()
    found = cli_target.target(os.environ)
    app = App(found.settings, _registry(found, lenient) if registry else Registry())
    try:
        check_migrated(app.database)
        yield app
        if app.hints.failed:
            say("note: the broker does not answer; the change is saved, and the sweeper will publish it")
    finally:
        app.close()


def _registry(found: cli_target.Target, lenient: bool) -> Registry:
    try:
        return found.registry
    except ConfigError as problem:
        if not lenient:
            raise
        say(f"note: without the modules of the tools nothing says what is personal: all values are hidden ({problem})")
        return Registry()


def request(
    profile: str, text: str, tenant: str | None, subject: str | None, scopes: list[str] | None, key: str | None
) -> commands.Submission:
    """What the options ask for. Raises UserError BAD_FIELD."""
    given = {"tenant": tenant, "subject": subject, "idempotency_key": key}
    return commands.submission(
        profile=profile,
        input=sys.stdin.read() if text == "-" else text,
        scopes=frozenset(scopes or ()),
        **{name: value for name, value in given.items() if value is not None},
    )


def os_user() -> str:
    """Who sits at this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return f"uid-{os.getuid()}"


def submit(asked: commands.Submission, *, as_json: bool) -> None:
    with attached(registry=True) as app:
        done = commands.submit(app, asked)
    if as_json:
        print_json({"operation_id": done.operation_id, "created": done.created})
    else:
        print_line(done.operation_id)
        say("submitted" if done.created else "submitted before under this key")


def show(operation_id: str, *, follow: bool, personal: bool, as_json: bool) -> int:
    """With `follow` the exit code says how it ended."""
    with attached(registry=True, lenient=True) as app:
        view = commands.inspect(app, operation_id, personal=personal)
        if follow:
            with progress() as shown:
                wait_for_end(app, operation_id, shown)
            view = commands.inspect(app, operation_id, personal=personal)
    print_view(view, as_json=as_json)
    return ended_well(view) if follow else Exit.OK


def list_operations(*, state: str | None, tenant: str | None, parked: bool, limit: int, as_json: bool) -> None:
    with attached() as app:
        rows = commands.list_operations(app, tenant=tenant, state=state, parked=parked, limit=limit)
    if as_json:
        print_json({"operations": [{k: _json_time(v) for k, v in row.items()} for row in rows]})
    elif rows:
        terminal().print(cli_render.listing(rows))
    else:
        say("no operations")


def cancel(operation_id: str, *, by: str | None, as_json: bool) -> None:
    with attached() as app:
        state = commands.cancel(app, operation_id, by=os_user() if by is None else by)
    if as_json:
        print_json({"operation_id": operation_id, "state": state})
    else:
        print_line(f"{operation_id} {state}")


def release(operation_id: str, *, by: str | None, as_json: bool) -> None:
    with attached() as app:
        commands.release(app, operation_id, by=os_user() if by is None else by)
    if as_json:
        print_json({"operation_id": operation_id, "released": True})
    else:
        print_line(f"{operation_id} released")


def _json_time(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_view(view: OperationView, *, as_json: bool) -> None:
    if as_json:
        print_json(view.model_dump(mode="json"))
    else:
        terminal().print(cli_render.operation(view))


def ended_well(view: OperationView) -> Exit:
    return Exit.OK if view.state == "COMPLETED" else Exit.NOT_COMPLETED


# --- following -----------------------------------------------------------------------------------------------------


class Progress(Protocol):
    """Shows an operation on stderr while it goes on; `update` with each view, `hide` before anything else is shown."""

    def update(self, view: OperationView) -> None: ...
    def hide(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress() -> Progress:
    """A timeline that grows in place on a terminal, else one plain line per fact."""
    console = terminal(stderr=True)
    return LiveProgress(console) if console.is_terminal else PlainProgress()


class PlainProgress:
    def __init__(self) -> None:
        self._said: set[cli_render.Entry] = set()

    def update(self, view: OperationView) -> None:
        for entry in cli_render.timeline(view):
            if entry not in self._said:
                self._said.add(entry)
                say(cli_render.line(view, entry))

    def hide(self) -> None:
        """Lines stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveProgress:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def update(self, view: OperationView) -> None:
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=8)
            self._live.start()
        self._live.update(cli_render.live(view))

    def hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hide()


def wait_for_end(
    app: App,
    operation_id: str,
    shown: Progress,
    *,
    on_approval: Callable[[ApprovalView], None] | None = None,
    pause: Callable[[OperationView], None] = lambda _view: time.sleep(POLL_SECONDS),
) -> OperationView:
    """Look until the operation has ended; each approval that is asked for is given to `on_approval` once."""
    told: set[str] = set()
    while True:
        view = commands.inspect(app, operation_id)
        shown.update(view)
        if view.ended_at is not None:
            return view
        if view.parked is not None and view.parked not in told:
            told.add(view.parked)
            shown.hide()
            say(f"{operation_id} is parked ({view.parked}): `turnqueue release {operation_id}` once that is mended")
        new = [asked.approval_id for asked in view.open_approvals if asked.approval_id not in told]
        if new and on_approval is not None:
            told.update(new)
            shown.hide()
            for asked in commands.inspect(app, operation_id, personal=True).open_approvals:  # who decides sees all
                if asked.approval_id in new:
                    on_approval(asked)
        pause(view)
