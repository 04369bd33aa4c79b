"""Deploys: what one release has begun the other finishes, in both directions, and both at once, with real processes."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.databases import create_database, drop_database
from embedded.servers import Servers
from store.tables import SCHEMA_VERSION
from tests.skew.release import ANCHOR, Release, before, known, need_history, of_commit, of_the_future, of_working_tree
from tests.skew.world import Yard, yard

EACH = int(os.environ.get("SKEW_OPERATIONS", "50"))  # operations that cross a deploy in one direction, per release


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tq-releases-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def now(folder: Path) -> Release:
    return of_working_tree(folder)


@pytest.fixture
def here(servers: Servers, broker_url: str) -> Iterator[Yard]:
    name = f"skew_{os.getpid()}_{os.urandom(4).hex()}"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TURNQUEUE_")}
    with yard(servers, create_database(servers.database_url, name), broker_url, environ) as opened:
        yield opened
    drop_database(servers.database_url, name)


def earlier(which: str, folder: Path) -> Release:
    need_history()
    commit = before() if which == "commit before" else ANCHOR
    if not known(commit):
        pytest.skip(f"the first release ({ANCHOR}) is not in this repository's history")
    if which == "first release" and before() == commit:
        pytest.skip("the first release is the commit before")
    return of_commit(commit, folder)


BEGUN = (
    "operation MODEL_REQUESTED", "operation WAITING_APPROVAL", "operation WAITING_INPUT", "action STARTED",
)  # fmt: skip


@pytest.mark.parametrize("which", ["commit before", "first release"])
def test_what_one_release_began_the_other_finishes(which: str, folder: Path, now: Release, here: Yard) -> None:
    old = earlier(which, folder)
    assert here.migrate(old).returncode == 0

    # Forward: begun by the old release; some of its processes die, the others live to see the migration.
    running = here.start(old)
    here.begin(old, EACH, *BEGUN)
    running.kill("executors", restart=False)
    here.submit(old, EACH // 4)
    migrated = here.migrate(now)
    assert migrated.returncode == 0, migrated.stderr
    newer = here.start(now)
    running.stop()
    here.finish([now])

    # Back: begun by the new release, on the new schema.
    here.begin(now, EACH, *BEGUN)
    for name in ("executors", "orchestrator", "sweeper"):
        newer.kill(name, restart=False)
    newer.stop()
    here.submit(now, EACH // 4)
    here.start(old)
    here.finish([old])

    # Rolling: both at once, taking each other's work and each other's people.
    here.start(now)
    for _ in range(2):
        here.submit(old, EACH // 2)
        here.submit(now, EACH // 2)
    here.finish([old, now])

    assert here.violations() == []
    assert set(here.states()) <= {"COMPLETED", "RECONCILING"}, here.states()
    assert here.states()["COMPLETED"] > here.submitted * 0.9
    assert here.submitted >= EACH * 3


def test_what_a_later_release_begins_is_left_to_it(folder: Path, now: Release, here: Yard) -> None:
    """This release, side by side with one that it cannot understand, on that one's schema."""
    later = of_the_future(now, folder)
    assert here.migrate(now).returncode == 0
    running = here.start(now)
    here.begin(now, EACH, *BEGUN)
    assert here.migrate(later).returncode == 0
    newer = here.start(later)
    here.begin(later, EACH, *BEGUN)
    for name in ("executors", "orchestrator", "sweeper"):
        newer.kill(name, restart=False)
    newer.stop()

    # Only this release is left, also for new work; what the later one began stays as it is.
    running.restart("executors")  # starts anew on the newer schema
    here.submit(now, EACH // 2)
    left = here.of_newer_version()
    assert here.decide(now)["NEWER_VERSION"] > 0
    here.finish([now], version=SCHEMA_VERSION)
    assert here.of_newer_version() == left
    assert here.migrate(now).returncode == 0, "there is nothing to do, which is no error"

    here.start(later)
    here.finish([later])
    assert here.violations() == []
    assert here.states()["COMPLETED"] > here.submitted * 0.9
