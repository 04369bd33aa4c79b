"""Which rows this release may act on: those of operations whose `schema_version` it knows.

The operation's version governs all that belongs to it: its turns, calls, actions, approvals and questions. A release
raises `tables.SCHEMA_VERSION` when the one before would misread what it writes (a new state, a new field of a stored
profile); it reads every older version, and writes into an operation only what the operation's own version knows. Two
releases then work side by side on one database, each on what it knows (docs/deploy.md).
"""

from orchestrator.domain.errors import Conflict
from store import tables

# Conditions for the statements that claim, repair or list what is due. The second is a subquery and not a join: it is
# asked row by row, in the order of the index that finds what is due, whatever the planner believes about the tables.
OWN = f"schema_version <= {tables.SCHEMA_VERSION}"
OF_C = f"(SELECT v.schema_version FROM operations v WHERE v.operation_id = c.operation_id) <= {tables.SCHEMA_VERSION}"


class NewerVersion(Conflict):
    """A newer release wrote this; only a release that knows it may act on it."""

    def __init__(self, what: str) -> None:
        super().__init__("NEWER_VERSION", f"{what} was written by a newer release of Turnqueue: use that one")


def check(operation_id: str, schema_version: int) -> None:
    """Raises NewerVersion."""
    if schema_version > tables.SCHEMA_VERSION:
        raise NewerVersion(operation_id)
