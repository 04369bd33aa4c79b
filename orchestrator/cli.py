"""The command line `turnqueue`: arguments in, exit code out. Every command's work is in a module that it imports."""

import gc
import sys
from functools import partial
from typing import Annotated

import typer

from orchestrator.cli_audit import audit
from orchestrator.cli_report import EXIT_CODES, reported

app = typer.Typer(
    name="turnqueue",
    help="Durable LLM tool-calling loops on Celery and PostgreSQL.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
command = partial(app.command, epilog=EXIT_CODES)
app.add_typer(audit, name="audit")

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Profile = Annotated[str, typer.Option("--profile", "-p", help="Name of a registered profile.")]
Input = Annotated[str, typer.Option("--input", "-i", help="What is asked; `-` reads standard input.")]
Tenant = Annotated[str | None, typer.Option(help="Whose operation it is.")]
Subject = Annotated[str | None, typer.Option(help="The authenticated person that it is done for.")]
Scope = Annotated[list[str] | None, typer.Option(help="A scope the subject has; may be repeated.")]
Key = Annotated[str | None, typer.Option(help="Same key and same request: the same operation.")]
Modules = Annotated[str | None, typer.Option(help="Instead of TURNQUEUE_MODULES, comma-separated.")]
OperationId = Annotated[str, typer.Argument(metavar="ID", help="An operation id.")]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="An approval id, or an operation id with one pending.")]
ActionId = Annotated[str, typer.Argument(metavar="ACTION", help="An action id.")]
By = Annotated[str | None, typer.Option(help="Who decides; default: the user of this machine.")]
Reason = Annotated[str, typer.Option(help="Kept with the decision.")]


@command()
def demo(
    yes: Annotated[bool, typer.Option("--yes", help="Approve the refund without asking.")] = False,
    provider: Annotated[str, typer.Option(help="Wire format that the scripted model speaks.")] = "openai-responses",
    stream: Annotated[bool, typer.Option("--stream", help="Ask the model for streams.")] = False,
    as_json: Json = False,
) -> None:
    """Play the support example on this machine: look up, draft, wait for approval, refund, explain."""
    with reported(as_json):
        from orchestrator import cli_demo

        sys.exit(cli_demo.demo(yes=yes, as_json=as_json, provider=provider, stream=stream))


@command()
def up(
    modules: Modules = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not stream the logs.")] = False,
) -> None:
    """Run everything on this machine until Ctrl-C: servers, migrations, workers, sweeper.

    With no modules and no profiles it serves the support example with its scripted model and its shop. Other shells of
    the same TURNQUEUE_HOME find it by themselves.
    """
    with reported(as_json=False):
        from orchestrator import cli_run

        sys.exit(cli_run.up(modules, quiet=quiet))


@command()
def run(
    profile: Profile,
    input: Input,
    tenant: Tenant = None,
    subject: Subject = None,
    scope: Scope = None,
    idempotency_key: Key = None,
    modules: Modules = None,
    as_json: Json = False,
) -> None:
    """Submit one operation and wait for its end; starts what it needs when nothing runs."""
    with reported(as_json):
        from orchestrator import cli_run
        from orchestrator.cli_verbs import request

        asked = request(profile, input, tenant, subject, scope, idempotency_key)
        sys.exit(cli_run.run(asked, modules, as_json=as_json))


@command()
def submit(
    profile: Profile,
    input: Input,
    tenant: Tenant = None,
    subject: Subject = None,
    scope: Scope = None,
    idempotency_key: Key = None,
    as_json: Json = False,
) -> None:
    """Create an operation and return at once."""
    with reported(as_json):
        from orchestrator import cli_verbs

        cli_verbs.submit(cli_verbs.request(profile, input, tenant, subject, scope, idempotency_key), as_json=as_json)


@command()
def show(
    operation_id: OperationId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for its end; shows what happens.")] = False,
    personal: Annotated[bool, typer.Option("--personal", help="Personal fields too, as an approver needs.")] = False,
    as_json: Json = False,
) -> None:
    """Show one operation: its timeline of turns, calls, attempts and waits, and what it cost."""
    with reported(as_json):
        from orchestrator import cli_verbs

        sys.exit(cli_verbs.show(operation_id, follow=follow, personal=personal, as_json=as_json))


@command(name="list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only operations in this state.")] = None,
    tenant: Tenant = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only those that wait for `release`.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    as_json: Json = False,
) -> None:
    """List operations, newest first."""
    with reported(as_json):
        from orchestrator import cli_verbs

        cli_verbs.list_operations(state=state, tenant=tenant, parked=parked, limit=limit, as_json=as_json)


@command()
def approve(
    approval_id: ApprovalId,
    by: By = None,
    reason: Reason = "",
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Approve it with these arguments instead of the ones shown.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Approve exactly the action that the approval shows, or the same tool with other --arguments."""
    with reported(as_json):
        from orchestrator import cli_people

        cli_people.approve(approval_id, by=by, reason=reason, arguments=arguments, as_json=as_json)


@command()
def deny(approval_id: ApprovalId, by: By = None, reason: Reason = "", as_json: Json = False) -> None:
    """Refuse the action; the model is told and goes on."""
    with reported(as_json):
        from orchestrator import cli_people

        cli_people.deny(approval_id, by=by, reason=reason, as_json=as_json)


@command()
def answer(
    question_id: Annotated[str, typer.Argument(metavar="ID", help="A question id, or an operation id with one open.")],
    text: Annotated[str | None, typer.Argument(help="The answer; `-` reads standard input.")] = None,
    json_answer: Annotated[
        str | None, typer.Option(metavar="JSON", help="The answer as JSON, where the question has a schema.")
    ] = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Answer a question of the model; the operation goes on."""
    with reported(as_json):
        from orchestrator import cli_people

        cli_people.answer(question_id, text=text, json_answer=json_answer, by=by, as_json=as_json)


@command()
def amend(operation_id: OperationId, input: Input, by: By = None, as_json: Json = False) -> None:
    """Correct the request while it is worked on: what has not started is dropped, and the model is asked again."""
    with reported(as_json):
        from orchestrator import cli_people

        cli_people.amend(operation_id, text=input, by=by, as_json=as_json)


@command()
def cancel(operation_id: OperationId, by: By = None, as_json: Json = False) -> None:
    """Stop an operation: nothing new starts; a write that has started is still settled."""
    with reported(as_json):
        from orchestrator import cli_verbs

        cli_verbs.cancel(operation_id, by=by, as_json=as_json)


@command()
def release(operation_id: OperationId, by: By = None, as_json: Json = False) -> None:
    """Try again what was parked because it failed too often."""
    with reported(as_json):
        from orchestrator import cli_verbs

        cli_verbs.release(operation_id, by=by, as_json=as_json)


@command()
def reviews(
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    as_json: Json = False,
) -> None:
    """List uncertain actions that wait for an operator; `resolve` settles them."""
    with reported(as_json):
        from orchestrator import cli_settle

        cli_settle.reviews(tenant=tenant, limit=limit, as_json=as_json)


@command()
def resolve(
    action_id: ActionId,
    succeeded: Annotated[
        str | None, typer.Option(metavar="REF", help="It happened; the downstream's reference.")
    ] = None,
    not_applied: Annotated[bool, typer.Option("--not-applied", help="It did not happen and will not.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Send it again, where a second arrival is harmless.")] = False,
    evidence: Annotated[str, typer.Option(help="How you know.")] = "",
    result: Annotated[str | None, typer.Option(metavar="JSON", help="The fields of the tool's result.")] = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Settle an action whose outcome is UNKNOWN or PENDING by evidence."""
    with reported(as_json):
        from orchestrator import cli_settle

        cli_settle.resolve(
            action_id, succeeded=succeeded, not_applied=not_applied, retry=retry, evidence=evidence, result=result,
            by=by, as_json=as_json,
        )  # fmt: skip


@command()
def complete(
    action_id: ActionId,
    token: Annotated[str, typer.Option(help="The completion token that the tool passed to the downstream.")],
    result: Annotated[str | None, typer.Option(metavar="JSON", help="The fields of the tool's result.")] = None,
    reference: Annotated[str | None, typer.Option(help="The downstream's reference.")] = None,
    code: Annotated[str | None, typer.Option(help="It was refused for good; a short code.")] = None,
    as_json: Json = False,
) -> None:
    """Report the outcome of an action that the downstream had accepted. A token counts once."""
    with reported(as_json):
        from orchestrator import cli_settle

        cli_settle.complete(action_id, token=token, result=result, reference=reference, code=code, as_json=as_json)


@command()
def compensate(
    action_id: ActionId,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="Arguments of the tool that undoes it.")],
    by: By = None,
    as_json: Json = False,
) -> None:
    """Undo an action that SUCCEEDED, with the tool that its own tool names, as a separate action."""
    with reported(as_json):
        from orchestrator import cli_settle

        cli_settle.compensate(action_id, arguments=arguments, by=by, as_json=as_json)


def main() -> None:
    gc.set_threshold(20_000)  # what a command imports is no garbage, and looking for it a sixth of the time
    app()


if __name__ == "__main__":
    main()
