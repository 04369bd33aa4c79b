"""Deploys: what one release has begun the other finishes, in both directions, and both at once, with real processes."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.databases import create_database, drop_database
from embedded.servers import Servers
from embedded.supervisor import Supervisor
from store.tables import SCHEMA_VERSION
from tests.skew.release import FIRST, Release, before, known, need_history, of_commit, of_the_future, of_working_tree
from tests.skew.world import Yard, yard

EACH = int(os.environ.get("SKEW_OPERATIONS", "12"))  # operations that cross a deploy in one direction, per release


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


BEGUN = (
    "operation MODEL_REQUESTED", "operation WAITING_APPROVAL", "operation WAITING_INPUT", "action STARTED",
)  # fmt: skip


def forward(here: Yard, old: Release, now: Release, *, alive: bool) -> Supervisor:
    """Begun by the old release, finished by the new one. `alive`: the migration runs while the old worker is at work;
    that goes on with the new schema, takes new operations, and dies in the middle of them.
    """
    assert here.migrate(old).returncode == 0
    running = here.start(old)
    if alive:
        here.begin(old, EACH)
        assert migrated(here, now)
        here.begin(old, EACH // 4, *BEGUN)
    else:
        here.begin(old, EACH, *BEGUN)
    running.kill("worker", restart=False)
    here.submit(old, 5)
    if not alive:
        here.dismiss(old)
    assert migrated(here, now)
    newer = here.start(now)
    running.stop()
    here.finish([now])
    return newer


def migrated(here: Yard, release: Release) -> bool:
    done = here.migrate(release)
    assert done.returncode == 0, done.stderr
    return True


def back(here: Yard, old: Release, now: Release, newer: Supervisor) -> None:
    """Begun by the new release, whose processes die in the middle, and finished by the old one on the new schema."""
    here.begin(now, EACH, *BEGUN)
    newer.kill("worker", restart=False)
    newer.kill("sweeper", restart=False)
    newer.stop()
    here.submit(now, 5)
    here.start(old)
    here.finish([old])


def all_is_well(here: Yard) -> bool:
    assert here.violations() == []
    states = here.states()
    assert set(states) <= {"COMPLETED", "RECONCILING"}, (
        states
    )  # the latter: an operator must say what became of a write
    return states["COMPLETED"] > here.submitted * 0.9


def test_the_commit_before_and_this_one_finish_each_others_work(folder: Path, now: Release, here: Yard) -> None:
    need_history()
    old = of_commit(before(), folder)
    back(here, old, now, forward(here, old, now, alive=True))
    # Rolling: both at once, taking each other's work, and each other's decisions of people.
    here.start(now)
    for release in (old, now, old, now):
        here.submit(release, EACH // 2)
    here.finish([old, now])
    assert all_is_well(here)
    assert here.submitted > EACH * 4


def test_the_first_release_and_this_one_finish_each_others_work(folder: Path, now: Release, here: Yard) -> None:
    """Its workers do not outlive a migration: they must be started again after it (docs/deploy.md)."""
    need_history()
    if not known(FIRST):
        pytest.skip(f"the first release ({FIRST}) is not in this repository's history")
    old = of_commit(FIRST, folder)
    back(here, old, now, forward(here, old, now, alive=False))
    assert all_is_well(here)


def test_what_a_later_release_begins_is_left_to_it(folder: Path, now: Release, here: Yard) -> None:
    """This release, side by side with one that it cannot understand, on that one's schema."""
    later = of_the_future(now, folder)
    assert here.migrate(now).returncode == 0
    running = here.start(now)
    here.begin(now, EACH)
    assert here.migrate(later).returncode == 0
    newer = here.start(later)
    here.begin(later, EACH, *BEGUN)
    newer.kill("worker", restart=False)
    newer.kill("sweeper", restart=False)
    newer.stop()

    # Only this release is left, also for new work; what the later one began stays as it is.
    left = here.of_newer_version()
    assert here.decide(now)["NEWER_VERSION"] > 0
    here.submit(now, 5)
    here.finish([now], version=SCHEMA_VERSION)
    assert here.of_newer_version() == left
    assert here.migrate(now).returncode == 0, "there is nothing to do, which is no error"
    running.restart("worker")  # it starts on the newer schema too
    running.wait_ready()

    here.start(later)
    here.finish([later])
    assert all_is_well(here)
