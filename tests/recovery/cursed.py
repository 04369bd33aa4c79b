"""Tools whose host's code breaks where nobody catches it: in a schema, a refusal, a reconciliation, a contract."""

from typing import Any

from pydantic import model_validator

from executors.context import Context
from executors.outcomes import Absent, Reconciled, ToolRejected
from executors.registry import IdempotencyContract
from orchestrator.domain.model import Effect
from tests.orchestrator import lab

CURSES: set[str] = set()  # what is broken now
SECRET = "the text of an error may hold anything"


class Cursed(lab.Note):
    @model_validator(mode="after")
    def _look_up(self) -> "Cursed":
        if "schema" in CURSES:
            raise RuntimeError(SECRET)  # pydantic reports ValueError and AssertionError only
        return self


def _refuse(args: lab.Note, ctx: Context) -> Any:
    answer = lab._write(args, ctx)
    if "refusal" in CURSES:
        raise ToolRejected(7)  # type: ignore[arg-type]
    return answer


def _check(args: lab.Note, key: str, reference: str | None, ctx: Context) -> Reconciled:
    return Absent() if "check" in CURSES else lab._check(args, key, reference, ctx)


_SOON: Any = "soon"  # no time: comparing it raises
_VAGUE = IdempotencyContract(retention=_SOON)
TOOLS = (
    lab._spec("cursed_look", Effect.READ, lab._look, arguments=Cursed),
    lab._spec("cursed_write", Effect.CREATE, lab._write, arguments=Cursed, unreconcilable=True),
    lab._spec("refused_look", Effect.READ, _refuse, max_attempts=2),
    lab._spec("refused_write", Effect.CREATE, _refuse, unreconcilable=True),
    lab._spec("doubtful", Effect.CREATE, lab._write, idempotency=_VAGUE, reconcile=_check),
    lab._spec("vague", Effect.CREATE, lab._write, idempotency=_VAGUE),
)
