"""`turnqueue demo`: the support example from the first server to the last evidence, in one command."""

import os
import secrets
import sys
import time
from dataclasses import dataclass
from typing import Any

from adapters.registry import adapter_for
from embedded.stack import exit_on_sigterm
from examples.support import scenario
from orchestrator import cli_example, cli_render, cli_target, commands, local
from orchestrator.app import App
from orchestrator.cli_report import Exit, UsageError, print_json, say, terminal
from orchestrator.cli_verbs import POLL_SECONDS, os_user, progress, quiet_logs, wait_for_end
from orchestrator.domain.errors import Conflict, Unavailable
from orchestrator.settings import PREFIX
from orchestrator.views import ApprovalView, OperationView

# A crash of the demo is repaired while people watch; the queues are its own, beside whatever else uses the broker.
SETTINGS = {f"{PREFIX}LEASE_SECONDS": "3", f"{PREFIX}SWEEP_SECONDS": "1", cli_target.QUEUE_PREFIX: "turnqueue-demo:"}
DATABASE = "turnqueue_demo"  # not where `up` keeps its operations: the demo's workers do not know their tools
STUCK_SECONDS = 120.0
SHOWN = ("kind", "order_id", "amount_cents", "key", "at")


@dataclass(frozen=True, slots=True)
class Evidence:
    """How it ended, and the shop's own record of what happened."""

    view: OperationView
    effects: list[dict[str, Any]]

    @property
    def refunds(self) -> list[dict[str, Any]]:
        """The effects that moved money."""
        return [row for row in self.effects if row["kind"] == "refund"]

    @property
    def drafts(self) -> list[dict[str, Any]]:
        return [row for row in self.effects if row["kind"] != "refund"]

    @property
    def exit_code(self) -> Exit:
        good = self.view.state == "COMPLETED" and len(self.refunds) == 1
        return Exit.OK if good else Exit.NOT_COMPLETED

    def as_json(self) -> dict[str, Any]:
        view = self.view.model_dump(mode="json")
        return {
            "operation_id": view["operation_id"],
            "state": view["state"],
            "reason": view["reason"],
            "turns": view["turns"],
            "calls": [_only(each, "call_id", "tool", "effect", "state", "code") for each in view["calls"]],
            "actions": [
                _only(each, "action_id", "tool", "idempotency_key", "state", "attempts", "external_ref")
                for each in view["actions"]
            ],
            "approvals": view["approvals"],
            "final_text": view["final_text"],
            "ledger": self.refunds,
            "drafts": self.drafts,
        }


def _only(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


def demo(*, yes: bool, as_json: bool, provider: str, stream: bool) -> int:
    """0 when the operation COMPLETED and the shop's ledger shows exactly one refund."""
    adapter_for(provider)
    os.environ |= {"SUPPORT_API": provider, "SUPPORT_STREAM": "1" if stream else "0"}  # the workers inherit it
    if not yes and not sys.stdin.isatty():
        raise UsageError("NEEDS_YES", "the refund needs an approval and there is no terminal to ask at: pass --yes")
    quiet_logs()
    example = cli_example.Support(tenant=f"demo-{secrets.token_hex(6)}")
    plan = local.Plan("demo", (cli_example.MODULE,), SETTINGS, DATABASE, example.services)
    with exit_on_sigterm(), local.start(plan, say) as started:
        evidence = _play(started, example, yes=yes)
        if as_json:
            print_json(evidence.as_json())
        else:
            _print(evidence)
        say("stopping")
    return evidence.exit_code


def _play(started: local.Local, example: cli_example.Support, *, yes: bool) -> Evidence:
    app = App(started.settings, started.registry)
    asked = commands.submission(
        profile="support",
        input=scenario.INPUT,
        tenant=example.tenant,
        subject=scenario.SUBJECT,
        scopes=scenario.SCOPES,
    )
    try:
        done = commands.submit(app, asked)  # due at once; the workers take it as soon as they are up
        say(f"{done.operation_id} submitted: {scenario.INPUT}")
        desk = _Desk(app, example, yes=yes)
        with progress() as shown:
            view = wait_for_end(app, done.operation_id, shown, on_approval=desk.ask, pause=_Patience(started))
        return Evidence(view, example.effects())
    finally:
        app.close()


class _Desk:
    """The person who decides: at the terminal, or by --yes."""

    def __init__(self, app: App, example: cli_example.Support, *, yes: bool) -> None:
        self._app = app
        self._example = example
        self._yes = yes

    def ask(self, approval: ApprovalView) -> None:
        terminal(stderr=True).print(cli_render.approval(approval), soft_wrap=True)
        try:
            self._decide(approval.approval_id)
        except Conflict as error:  # another shell was faster
            say(error.message)

    def _decide(self, approval_id: str) -> None:
        if self._yes:
            say("approved by --yes")
            commands.approve(self._app, approval_id, by=os_user(), reason="--yes")
        elif _answer():
            commands.approve(self._app, approval_id, by=os_user(), reason="at the terminal")
        else:
            self._example.tell_model_of_denial()
            commands.deny(self._app, approval_id, by=os_user(), reason="at the terminal")


def _answer() -> bool:
    """Yes or no; the end of input is a no."""
    while True:
        sys.stderr.write("Approve this refund? [y/n] ")
        sys.stderr.flush()
        typed = sys.stdin.readline()
        if typed.strip().lower() in ("y", "yes"):
            return True
        if not typed or typed.strip().lower() in ("n", "no"):
            return False


class _Patience:
    """Waits between two looks; fails when a process was given up, or when nothing has changed for long."""

    def __init__(self, started: local.Local) -> None:
        self._started = started
        self._seen: OperationView | None = None
        self._since = time.monotonic()

    def __call__(self, view: OperationView) -> None:
        if view != self._seen or view.open_approvals:
            self._seen, self._since = view, time.monotonic()
        if time.monotonic() - self._since > STUCK_SECONDS:
            raise Unavailable("STUCK", f"nothing has happened for {STUCK_SECONDS:g} s; see {self._started.logs}")
        self._started.stack.wait(POLL_SECONDS)


def _print(evidence: Evidence) -> None:
    console = terminal()
    console.print(cli_render.operation(evidence.view))
    console.print(cli_render.effects("the shop's ledger: money that moved", evidence.refunds, SHOWN))
    console.print(cli_render.effects("the shop's ledger: drafts, which move no money", evidence.drafts, SHOWN))
