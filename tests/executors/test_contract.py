"""Revisions of a tool's contract: the same in every process that has the same code."""

import subprocess
import sys
from pathlib import Path

CODE = """
import functools
from dataclasses import replace
from examples.support.tools import get_order
from executors.contract import contract
class Callable:
    def __call__(self, args, ctx): ...
for handler in (functools.partial(get_order.handler), Callable()):
    print(contract(replace(get_order, handler=handler)).handler)
"""


def revisions() -> str:
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [sys.executable, "-c", CODE], cwd=root, check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_a_revision_names_no_address() -> None:
    first, second = revisions(), revisions()
    assert first == second
    assert len(set(first.splitlines())) == 2
