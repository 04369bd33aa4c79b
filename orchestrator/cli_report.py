"""What the command line says when something goes wrong, and its exit codes."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from rich.console import Console

from orchestrator.domain.errors import CommitUnknown, Conflict, NotFound, TurnqueueError, Unavailable, UserError

PIPE_WIDTH = 200  # columns


class Exit(IntEnum):
    OK = 0
    NOT_COMPLETED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    BAD_FIELD = 5
    UNREACHABLE = 6
    DEFECT = 70
    INTERRUPTED = 130


EXIT_CODES = """\b
Exit codes:
  0    done
  1    the operation ended, but not COMPLETED
  2    wrong usage
  3    no such operation, approval or profile
  4    conflict: decided or ended already, or a key used for another request
  5    a field, setting, module, profile or tool is wrong
  6    a server is not reachable
  70   a defect in Turnqueue (TURNQUEUE_TRACEBACK=1 shows where)
  130  interrupted
"""


class UsageError(UserError):
    """The command was called in a way that cannot work here."""


def say(text: str) -> None:
    """One line for people; machines read standard output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def terminal(*, stderr: bool = False) -> Console:
    """Rich's view of an output; what is not a terminal has room for whole lines."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Within the block an error ends the program with one line `CODE: message` on stderr and its exit code.

    With `as_json` standard output holds `{"error": {"code", "message"}}` besides, and "operation_id" where a change to
    that operation may have been saved.
    """
    try:
        yield
    except TurnqueueError as error:
        known = {"operation_id": error.operation_id} if isinstance(error, CommitUnknown) else {}
        _leave(exit_code(error), error.code, error.message, as_json, **known)
    except KeyboardInterrupt:
        _leave(Exit.INTERRUPTED, "INTERRUPTED", "stopped by Ctrl-C", as_json)
    except BrokenPipeError:
        # The reader of our output has left; what is buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(Exit.OK) from None
    except Exception as error:
        if os.environ.get("TURNQUEUE_TRACEBACK"):
            raise
        if state := _sqlstate(error):
            _leave(*_database_problem(state, error), as_json)
        _leave(Exit.DEFECT, "DEFECT", f"{type(error).__name__}: {error}", as_json)


def exit_code(error: TurnqueueError) -> Exit:
    match error:
        case NotFound():
            return Exit.NOT_FOUND
        case Conflict():
            return Exit.CONFLICT
        case UsageError():
            return Exit.USAGE
        case Unavailable():
            return Exit.UNREACHABLE
        case _:
            return Exit.BAD_FIELD


def _leave(code: Exit, name: str, message: str, as_json: bool, **known: str | None) -> None:
    line = message.strip().split("\n", 1)[0]  # what follows is the end of a log that the line names
    if as_json:
        print_json({"error": {"code": name, "message": line, **known}})
    say(f"{name}: {line}")
    raise SystemExit(code) from None


def _sqlstate(error: Exception) -> str | None:
    """The driver's code behind a SQLAlchemy error."""
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _database_problem(state: str, error: Exception) -> tuple[Exit, str, str]:
    if state in ("42P01", "42703"):  # undefined table, undefined column
        message = "the database has not this version's schema; run `python -m store.migrate`"
        return Exit.BAD_FIELD, "NOT_MIGRATED", message
    return Exit.DEFECT, "DATABASE_ERROR", f"{state}: {getattr(error, 'orig', error)}"
