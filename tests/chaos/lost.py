"""COMMITs that are not answered, for the tests that lose them one by one; the fixtures are in `conftest`."""

from orchestrator import commands
from tests.orchestrator.desk import DONE, Desk

LOST = {"commit": 1.0}  # every COMMIT is durable and its answer lost
STOPPED = {"uncommitted": 1.0}  # no COMMIT arrives


def kinds(desk: Desk, operation: str) -> list[str]:
    rows = desk.sql("SELECT kind FROM audit WHERE operation_id = :o ORDER BY seq", o=operation)
    return [row["kind"] for row in rows]


def submission(desk: Desk, key: str | None = None) -> commands.Submission:
    """Of a profile that is known; the pool's connections are warm after it."""
    profile = desk.scripts[desk.submit(DONE)]
    return commands.submission(
        profile=profile, input="Please.", tenant="acme", subject="alice", idempotency_key=key
    )  # fmt: skip
