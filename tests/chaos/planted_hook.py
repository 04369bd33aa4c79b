"""Plants a bug in the real source: installed before the system is imported, it edits a module as Python loads it.

    TURNQUEUE_PLANTED=NAME ...                    # in the environment of the run
    python -m tests.chaos.planted_hook            # a lane, which does the runs of `planted` in forks of its own

Each edit names a module and a snippet that must stand in its source exactly once; otherwise the table is out of date
and the import fails, so that no run ever goes without its bug.
"""

import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

VARIABLE = "TURNQUEUE_PLANTED"


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `new` in the place of `old` in the source of `module`."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Bug:
    """What is planted, what it does, in which scenario it must show, and as which kinds of violation (any of them)."""

    what: str
    scenario: str
    shows: frozenset[str]
    edits: tuple[Edit, ...]


def bug(what: str, scenario: str, shows: str, *edits: tuple[str, str, str]) -> Bug:
    """`shows`: names separated by blanks; each edit: module, old, new."""
    return Bug(what, scenario, frozenset(shows.split()), tuple(Edit(*edit) for edit in edits))


class OutOfDate(ImportError):
    """The snippet that an edit is about is not there, or there more than once."""


def edited(source: str, edits: Sequence[Edit]) -> str:
    """The source with the edits, one after the other. Raises OutOfDate."""
    for edit in edits:
        found = source.count(edit.old)
        if found != 1:
            raise OutOfDate(f"{edit.module}: this stands there {found} times, not once:\n{edit.old}")
        source = source.replace(edit.old, edit.new)
    return source


def source_of(module: str) -> Path:
    """The file of a module, without importing it (its packages are)."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise OutOfDate(f"there is no module {module}")
    return Path(spec.origin)


class _Loader(SourceFileLoader):
    """Compiles the edited source; the bytecode cache, which has the original's, is passed over."""

    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        return compile(edited(source, self._edits), self.path, "exec", dont_inherit=True)


class Planted(MetaPathFinder):
    """`loaded` are the edited modules that have been imported."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.loaded: set[str] = set()
        self._edits: dict[str, list[Edit]] = {}
        for edit in edits:
            self._edits.setdefault(edit.module, []).append(edit)

    @property
    def modules(self) -> set[str]:
        return set(self._edits)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._edits:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            raise OutOfDate(f"there is no module {fullname}")
        spec.loader = _Loader(fullname, spec.origin, self._edits[fullname])
        self.loaded.add(fullname)
        return spec


def install(table: Mapping[str, Sequence[Edit]], environ: Mapping[str, str] = os.environ) -> Planted:
    """Plant the bug that the environment names, if it names one. Raises KeyError for one that is not in the table."""
    name = environ.get(VARIABLE, "")
    finder = Planted(table[name] if name else ())
    early = finder.modules & sys.modules.keys()
    if early:
        raise RuntimeError(f"imported before the bug could be planted: {sorted(early)}")
    sys.meta_path.insert(0, finder)
    return finder


# --- lanes -----------------------------------------------------------------------------------------------------------

# What the system imports and nobody plants bugs in: most of the time that an import takes.
OTHERS = (
    "celery", "httpx", "jsonschema", "kombu.transport.redis", "psycopg", "pydantic", "redis", "rfc8785", "structlog",
    "sqlalchemy.dialects.postgresql.psycopg", "tenacity", "itsdangerous",
)  # fmt: skip


def begin(arguments: Sequence[str]) -> int:
    """Plant, then run: the system is imported after this."""
    from tests.chaos.planted_bugs import EDITS

    finder = install(EDITS)
    from tests.chaos import planted_run

    if finder.loaded != finder.modules:
        raise RuntimeError(f"never imported, so the bug is not there: {sorted(finder.modules - finder.loaded)}")
    return planted_run.main(arguments)


def main() -> None:
    """A lane: for each line of its input, {"argv", "environ", "output", "errors"}, a fork that does the run.

    Answers each with its exit status. Only what `OTHERS` names was imported before the fork.
    """
    for name in OTHERS:
        importlib.import_module(name)
    ours = {"orchestrator", "executors", "adapters", "policy", "store"}
    if early := {name for name in sys.modules if name.partition(".")[0] in ours}:
        raise RuntimeError(f"imported too early: {sorted(early)}")
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: dict[str, Any]) -> NoReturn:
    code = 70
    for number, name in ((0, os.devnull), (1, order["output"]), (2, order["errors"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
    os.environ.clear()
    os.environ.update(order["environ"])
    try:
        code = begin(order["argv"])
    except BaseException:  # noqa: BLE001 - the fork must not go on as a lane
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
