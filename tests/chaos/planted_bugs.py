"""The table of planted bugs: slips that somebody could make in the real code, each of which must be found.

A snippet that does not stand in its module exactly once makes the table out of date: `test_planted` says so.
"""

from collections.abc import Mapping

from tests.chaos.planted_hook import Bug
from tests.chaos.planted_rows import ROWS
from tests.chaos.planted_writes import WRITES

BUGS: Mapping[str, Bug] = WRITES | ROWS
EDITS = {name: bug.edits for name, bug in BUGS.items()}
