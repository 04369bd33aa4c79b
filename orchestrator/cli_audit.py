"""`turnqueue audit verify`: recompute chains, entries, bindings and anchors; name each operation's first wrong row."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli_report import EXIT_CODES, Exit, print_json, reported, say

if TYPE_CHECKING:
    from orchestrator.anchors import Anchored
    from orchestrator.auditing import Report
    from orchestrator.evidence import Finding
    from orchestrator.settings import Settings

audit = typer.Typer(help="The audit: verify it, export it.", no_args_is_help=True, rich_markup_mode=None)


@audit.callback()
def _group() -> None:
    """With a callback a single command stays a named one."""


@audit.command(epilog=EXIT_CODES)
def verify(
    operation: Annotated[str | None, typer.Option(metavar="ID", help="Only this operation.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write the records there, for scripts/verify_audit.py.")] = None,
    anchors: Annotated[Path | None, typer.Option(help="Instead of TURNQUEUE_ANCHOR_FILE.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Recompute the audit's chains, entries, bindings and anchors. Exit code 1: something does not hold."""
    with reported(as_json):
        from orchestrator import auditing  # noqa: PLC0415 - `--help` must not pay for what a command needs
        from orchestrator.cli_verbs import attached  # noqa: PLC0415

        with attached() as app:
            anchored = _anchored(app.settings, anchors)
            report = auditing.verify(app.database, operation_id=operation, anchored=anchored, export=export)
        _print(report, as_json=as_json)
        sys.exit(Exit.NOT_COMPLETED if report.findings else Exit.OK)


@audit.command(epilog=EXIT_CODES)
def accept(
    reason: Annotated[str, typer.Option(help="What was found; kept.")],
    by: Annotated[str | None, typer.Option(help="Who has looked; default: the user of this machine.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Let writes start again in a database that lacks what was anchored, such as one restored from a backup."""
    with reported(as_json):
        from orchestrator import auditing  # noqa: PLC0415
        from orchestrator.cli_verbs import attached, os_user  # noqa: PLC0415

        with attached() as app:
            lifted = auditing.accept(app.database, by=by or os_user(), reason=reason)
        if as_json:
            print_json({"lifted": lifted})
        else:
            say(f"writes start again: {', '.join(lifted)}" if lifted else "nothing was halted")


def _anchored(settings: "Settings", given: Path | None) -> "Anchored | None":
    from orchestrator import anchors  # noqa: PLC0415

    path = given or settings.anchor_file
    return anchors.read(path, anchors.key_of(settings)) if path else None


def _print(report: "Report", *, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict  # noqa: PLC0415

        print_json({"ok": not report.findings, **asdict(report)})
        return
    for note in report.notes:
        say(f"note: {note}")
    if not report.anchor_lines:
        say("note: without anchors, a cut end and a full rewriting of a chain cannot be seen")
    for finding in report.findings:
        sys.stdout.write(f"{_line(finding)}\n")
    checked = f"{report.operations} operations, {report.entries} entries, {report.calls} calls"
    verdict = f"{len(report.findings)} findings" if report.findings else "all hold"
    sys.stdout.write(f"{checked}, {report.anchor_lines} anchor lines: {verdict}\n")


def _line(finding: "Finding") -> str:
    where = [
        finding.operation_id,
        f"row {finding.seq}" if finding.seq is not None else None,
        finding.call_key,
        f"anchor line {finding.line}" if finding.line is not None and finding.operation_id is None else None,
    ]
    return f"{finding.code}: {', '.join(part for part in where if part)}: {finding.detail}"
