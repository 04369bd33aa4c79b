"""`turnqueue up` and `turnqueue run`: the whole installation on this machine, for good or for one operation."""

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from embedded.stack import exit_on_sigterm
from orchestrator import cli_example, cli_render, cli_target, commands, local
from orchestrator.app import App
from orchestrator.cli_report import Exit, say, terminal
from orchestrator.cli_verbs import POLL_SECONDS, attached, ended_well, print_view, progress, quiet_logs, wait_for_end
from orchestrator.domain.errors import Conflict
from orchestrator.views import ApprovalView

LOOK_SECONDS = 0.25
ENSURE_ROUNDS = 20  # how many looks at the logs between two looks at the embedded servers


def plan(kind: cli_target.Kind, modules: str | None) -> local.Plan:
    """Named modules and profiles; with none the support example, its model and its shop."""
    named = tuple(part.strip() for part in (modules or "").split(",") if part.strip())
    if named or os.environ.get(cli_target.MODULES) or os.environ.get(cli_target.PROFILES):
        return local.Plan(kind, named)
    example = cli_example.Support(total_cents=cli_example.PLENTY)
    return local.Plan(kind, (cli_example.MODULE,), services=example.services)


# --- up ------------------------------------------------------------------------------------------------------------


def up(modules: str | None, *, quiet: bool) -> int:
    """Runs until Ctrl-C or SIGTERM: then 0, because that is how it is ended."""
    quiet_logs()
    other = cli_target.running(os.environ)
    if other is not None:
        raise Conflict("ALREADY_RUNNING", f"`turnqueue {other.kind}` runs in this data directory (process {other.pid})")
    wanted = plan("up", modules)
    with exit_on_sigterm(), local.start(wanted, say) as running:
        if not running.found:
            raise Conflict("ALREADY_RUNNING", "another `turnqueue` has just started in this data directory")
        running.stack.wait_ready()
        try:
            _say_where(running, example=wanted.services is not None)
            _stream(running, quiet=quiet)
        except (KeyboardInterrupt, SystemExit):
            say("stopping")
    return Exit.OK


def _say_where(running: local.Local, *, example: bool) -> None:
    profiles = ", ".join(sorted(profile.name for profile in running.registry.profiles)) or "none"
    say(f"database  {_without_password(running.servers.database_url)}")
    say(f"broker    {_without_password(running.servers.broker_url)}")
    say(f"data      {running.servers.data_dir}")
    say(f"profiles  {profiles}")
    command = cli_example.submit_command() if example else 'turnqueue submit --profile NAME --input "..."'
    say("From another shell:")
    say(textwrap.indent(command, "  "))
    say("  turnqueue list    turnqueue show ID --follow    turnqueue approve ID")
    say("Ready. Ctrl-C stops it all.")


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    scheme, slashes, who = head.partition("://")
    return f"{scheme}{slashes}{who.partition(':')[0]}{at}{tail}" if at else url


def _stream(running: local.Local, *, quiet: bool) -> None:
    """Show what the processes log; start embedded servers again that have died."""
    logs = _Logs(running.logs)
    rounds = 0
    while True:
        running.stack.wait(LOOK_SECONDS)
        lines = logs.new_lines()
        if not quiet:
            for name, line in lines:
                sys.stderr.write(f"{name:<12} | {cli_render.safe(line)}\n")
            sys.stderr.flush()
        rounds += 1
        if rounds % ENSURE_ROUNDS == 0:
            running.embedded.ensure()


class _Logs:
    """The lines that were added to a directory's log files since the last look."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = {path: path.stat().st_size for path in directory.glob("*.log")}

    def new_lines(self) -> list[tuple[str, str]]:
        return [(path.stem, line) for path in sorted(self._directory.glob("*.log")) for line in self._lines(path)]

    def _lines(self, path: Path) -> list[str]:
        start = self._read.get(path, 0)
        if path.stat().st_size < start:
            start = 0  # a large log was put aside, this is its successor
        with path.open("rb") as log:
            log.seek(start)
            whole, newline, _begun = log.read().rpartition(b"\n")
        self._read[path] = start + len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n") if newline else []


# --- run -----------------------------------------------------------------------------------------------------------


def run(asked: commands.Submission, modules: str | None, *, as_json: bool) -> int:
    """Where servers are set or `up` runs, their workers do it; otherwise workers are started for the duration."""
    with exit_on_sigterm(), _installation(modules) as (app, pause):
        done = commands.submit(app, asked)
        say(f"{done.operation_id} submitted")
        if app.hints.failed:
            say("note: the broker does not answer; the operation is saved, and the sweeper will publish it")
        try:
            with progress() as shown:
                view = wait_for_end(app, done.operation_id, shown, on_approval=_ask_elsewhere, pause=pause)
        except KeyboardInterrupt:
            say(f"{done.operation_id} is saved and goes on wherever workers run")
            raise
    print_view(view, as_json=as_json)
    return ended_well(view)


@contextmanager
def _installation(modules: str | None) -> Iterator[tuple[App, Callable[[object], None]]]:
    """The installation and how to wait between two looks at it."""
    found = cli_target.running(os.environ)
    if os.environ.get(cli_target.DATABASE_URL) or (found is not None and found.kind == "up"):
        with attached(registry=True) as app:
            yield app, lambda _view: time.sleep(POLL_SECONDS)
        return
    quiet_logs()
    with local.start(plan("run", modules), say) as started:
        app = App(started.settings, started.registry)
        try:
            yield app, lambda _view: started.stack.wait(POLL_SECONDS)
        finally:
            app.close()


def _ask_elsewhere(approval: ApprovalView) -> None:
    terminal(stderr=True).print(cli_render.approval(approval), soft_wrap=True)
    say(f"decide in another shell: turnqueue approve {approval.approval_id}   (or deny)")
