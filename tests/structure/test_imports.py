"""What keeps the structure honest: imports point one way, and importing anything does no work."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import ROOT

PACKAGES = ("orchestrator", "executors", "adapters", "policy", "store", "embedded", "examples")
PURE = {"collections.abc", "json", "dataclasses", "datetime", "enum", "hashlib", "typing", "rfc8785"}


def python(code: str, *arguments: str) -> str:
    """The output of `code` in a fresh interpreter that has none of our settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TURNQUEUE_", "PYTHON"))}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_contracts() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("adapters.registry", ("celery", "kombu", "sqlalchemy", "psycopg", "httpx")),
        ("executors.registry", ("celery", "kombu", "sqlalchemy", "psycopg")),
        ("orchestrator.domain.operation", ("celery", "pydantic", "sqlalchemy")),
        ("orchestrator.enqueue", ("celery", "sqlalchemy", "psycopg")),  # what another service imports
        ("orchestrator.commands", ("celery",)),
    ],
)
def test_an_import_brings_no_more_than_it_needs(module: str, absent: tuple[str, ...]) -> None:
    loaded = json.loads(python(f"import {module}, json, sys; print(json.dumps(sorted(sys.modules)))"))
    assert module in loaded
    assert sorted(set(absent) & set(loaded)) == []


QUIET = """
import importlib, sys

def watch(event, arguments):
    if event.startswith(("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.", "os.exec", "os.fork")):
        raise RuntimeError(f"{event}{arguments} while importing {sys.argv[-1]}")

import celery, kombu, redis, platform
platform.uname(), platform.processor()  # libraries ask for these; some platforms start a process for the answer
sys.addaudithook(watch)
for name in sys.argv[1:]:
    importlib.import_module(name)
import threading
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
"""


def modules() -> list[str]:
    """Every module of ours, but programs (`__main__`) and alembic's scripts, which are run and not imported."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__main__.py" and "migrations" not in path.parts:
                parts = path.relative_to(ROOT).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def test_importing_opens_no_connection_and_starts_nothing() -> None:
    python(QUIET, *modules())


def _imports(path: Path) -> set[tuple[str, str]]:
    """(module, name) of each import at run time; name is "" for `import module`."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "orchestrator" / "domain").glob("*.py")), ids=lambda path: path.stem)
def test_the_domain_is_pure(path: Path) -> None:
    outside = {module for module, _ in _imports(path) if not module.startswith("orchestrator.domain")}
    assert outside <= PURE, "no I/O, clock, randomness or environment"
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
    assert not calls & {"datetime.now", "datetime.utcnow", "open", "print", "input"}


def test_the_orchestrator_takes_types_of_sqlalchemy_and_writes_no_sql() -> None:
    taken = {
        (path.stem, name)
        for path in (ROOT / "orchestrator").glob("*.py")
        for module, name in _imports(path)
        if module.split(".")[0] == "sqlalchemy"
    }
    assert {name for _, name in taken} <= {"Connection", "func"}
    assert {stem for stem, name in taken if name == "func"} <= {"engine"}, "clock_timestamp() is asked for in one place"
