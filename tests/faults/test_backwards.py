"""F12: a database that was restored to an older state knows nothing of what has happened since. Nothing is sent from
it until an operator has looked. And one that crashes has kept all that it had confirmed.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from embedded.keeper import live_postgres
from embedded.layout import prepare
from embedded.servers import EmbeddedServers
from executors.registry import Registry
from orchestrator import auditing, commands, dispatch, sweeper
from orchestrator.app import App
from orchestrator.domain.errors import Unavailable, UserError
from orchestrator.settings import Settings
from policy.profile import Model, Profile
from store.migrate import migrate
from tests.faults.locks import administrator, end_sessions
from tests.orchestrator.desk import DONE, Desk, call, calls
from tests.shared import ROOT
from tests.store.rows import eventually

KEY = "an anchor key for tests only, 32"
BACKWARDS = "DATABASE_WENT_BACKWARDS"


class Backup:
    """The whole database as it was at one moment, which can take its place again, and again."""

    def __init__(self, desk: Desk, database_url: str) -> None:
        self._desk, self._url = desk, database_url
        with administrator(database_url) as (connection, name):
            self._copy = f"{name}_copy"
            self._replace(connection, self._copy, name)

    def restore(self) -> None:
        with administrator(self._url) as (connection, name):
            self._replace(connection, name, self._copy)

    def drop(self) -> None:
        with administrator(self._url) as (connection, _):
            connection.execute(f'DROP DATABASE IF EXISTS "{self._copy}"')

    def _replace(self, connection: psycopg.Connection[object], name: str, by: str) -> None:
        for each in (name, by):
            end_sessions(connection, each)
        connection.execute(f'DROP DATABASE IF EXISTS "{name}"')
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{by}"')
        self._desk.app.database.engine.dispose()


@pytest.fixture
def anchored(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The sweeper's and the workers' settings."""
    monkeypatch.setenv("ANCHOR_KEY", KEY)
    changed = {"anchor_file": tmp_path / "anchors", "anchor_key_env": "ANCHOR_KEY", "anchor_seconds": 0.05}
    settings = desk.app.settings.model_copy(update=changed | {"sweep_seconds": 0.1})
    monkeypatch.setattr(desk.app, "settings", settings)
    return settings


@contextmanager
def sweeping(desk: Desk) -> Iterator[None]:
    """The sweeper's real loop."""
    stop = threading.Event()
    thread = threading.Thread(target=sweeper.run, args=(desk.app, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def halted(desk: Desk) -> list[str]:
    return [row["code"] for row in desk.sql("SELECT code FROM halts WHERE lifted_at IS NULL")]


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def accept(database_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"TURNQUEUE_DATABASE_URL": database_url, "TURNQUEUE_BROKER_URL": "redis://127.0.0.1:1"}
    argv = [sys.executable, "-m", "orchestrator.cli", "audit", "accept", *arguments, "--json"]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("notices", ["sweeper", "worker"])
def test_a_restored_database_starts_no_write(desk: Desk, anchored: Settings, database_url: str, notices: str) -> None:
    """`notices`: who starts first with the anchors at hand."""
    assert anchored.anchor_file is not None
    sent, asked = desk.submit(calls(call("write", text="a")), DONE), desk.submit(calls(call("look")), DONE)
    desk.advance(sent)
    backup = Backup(desk, database_url)
    try:
        desk.step("writes")
        assert (desk.action(sent).state, len(desk.lab.effects)) == ("SUCCEEDED", 1)
        with sweeping(desk):
            eventually(lambda: lines(anchored.anchor_file or Path()) > 0)
        auditing.check_anchors(desk.app.database, anchored)
        assert halted(desk) == [], "as long as all is there"
        backup.restore()
        assert desk.action(sent).state == "READY", "the database does not know of it"
        if notices == "worker":
            auditing.check_anchors(desk.app.database, anchored)
            assert halted(desk) == [BACKWARDS]
        with sweeping(desk):
            eventually(lambda: halted(desk) == [BACKWARDS])
            nothing_is_sent(desk, sent)
            assert desk.run(asked).state == "COMPLETED", "turns and reads go on"
        released(desk, anchored, database_url, sent)
        backup.restore()
        auditing.check_anchors(desk.app.database, anchored)
        assert halted(desk) == [BACKWARDS], "restored once more, accepted for the first time only"
        assert accept(database_url, "--reason", "the same as before").returncode == 0
    finally:
        backup.drop()


def nothing_is_sent(desk: Desk, operation: str) -> None:
    effects = len(desk.lab.seen)
    assert desk.idle("writes")
    with pytest.raises(Unavailable) as caught:
        dispatch.run_one(desk.app, "writes", desk.action(operation).action_id)
    assert caught.value.code == BACKWARDS
    assert (desk.action(operation).state, len(desk.lab.seen)) == ("READY", effects)
    report = auditing.verify(desk.app.database, operation_id=operation)
    assert any(BACKWARDS in note for note in report.notes)


def released(desk: Desk, anchored: Settings, database_url: str, sent: str) -> None:
    """The operator saw in the downstream that it had happened, and cancels; what is new goes on."""
    with pytest.raises(UserError, match="reason"):
        auditing.accept(desk.app.database, by="ops", reason=" ")
    commands.cancel(desk.app, sent)
    done = accept(database_url, "--by", "ops", "--reason", "compared with the downstream")
    assert json.loads(done.stdout) == {"lifted": [BACKWARDS]}, done.stderr
    new = desk.submit(calls(call("write", text="b")), DONE)
    with sweeping(desk):
        before = lines(anchored.anchor_file or Path())
        assert desk.run(new).state == "COMPLETED"
        eventually(lambda: lines(anchored.anchor_file or Path()) > before)
    assert [seen.path for seen in desk.lab.effects] == ["/notes/a", "/notes/b"]
    assert halted(desk) == []
    auditing.check_anchors(desk.app.database, anchored)
    assert halted(desk) == [], "and so for who starts later"


def test_an_uncertain_write_is_still_asked_about(desk: Desk, database_url: str) -> None:
    """A lookup changes nothing, and is what the operator needs."""
    operation = desk.submit(calls(call("checked", text="a")), DONE)
    desk.advance(operation)
    desk.lab.will(cut=True)
    desk.step("writes")
    desk.sql("INSERT INTO halts (code, detail, anchored_at) VALUES ('X', 'x', now())")
    desk.lab.will(json={"id": "r-1"})
    assert desk.run(operation).state == "COMPLETED"
    assert auditing.accept(desk.app.database, by="ops", reason="seen") == ["X"]


# --- a crash of the server -----------------------------------------------------------------------------------------


def test_a_crash_loses_nothing_that_was_confirmed() -> None:
    """SIGKILL of the postmaster under four submitters, three times. What was answered is there; what was not can be
    repeated under its key."""
    home = Path(tempfile.mkdtemp(prefix="tq-"))  # not tmp_path: as root the servers run as another user
    try:
        with EmbeddedServers(home, {}) as servers:
            settings = Settings(database_url=servers.database_url, broker_url="redis://127.0.0.1:1", pool_size=6)
            registry = Registry()
            model = Model(api="openai-chat", name="m", base_url="http://h/v1")
            registry.add_profile(Profile(name="desk", model=model, instructions="x"))
            app = App(settings, registry)
            migrate(app.database)
            accepted, uncertain = submitted_through_crashes(app, home, servers_of=EmbeddedServers(home, {}))
            answered = {key: commands.submit(app, request(key)).operation_id for key in uncertain}
            with app.database.autocommit() as connection:
                rows = connection.exec_driver_sql("SELECT caller_key, operation_id FROM operations").all()
            found = {str(key): str(operation_id) for key, operation_id in rows}
            app.close()
        assert accepted.items() <= found.items()
        assert found == accepted | answered, "and one operation for each key"
        assert len(accepted) > 20
    finally:
        shutil.rmtree(home, ignore_errors=True)


def request(key: str) -> commands.Submission:
    return commands.submission(profile="desk", input="Please.", tenant="acme", idempotency_key=key)


def submitted_through_crashes(app: App, home: Path, servers_of: EmbeddedServers) -> tuple[dict[str, str], set[str]]:
    """(operation by key of what was answered, keys of what was not)."""
    accepted: dict[str, str] = {}
    uncertain: set[str] = set()
    over = threading.Event()

    def submit(thread: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            key = f"{thread}-{number}"
            try:
                accepted[key] = commands.submit(app, request(key)).operation_id
            except Unavailable:
                uncertain.add(key)
                time.sleep(0.05)  # the server is away: no reason to try thousands of keys

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    with servers_of:
        for crash in range(3):
            eventually(lambda crash=crash: len(accepted) >= 8 * (crash + 1))  # type: ignore[misc]
            pid = live_postgres(prepare(home).cluster)
            assert pid is not None
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            servers_of.ensure()
            more = len(accepted)
            eventually(lambda more=more: len(accepted) > more)  # type: ignore[misc]
    over.set()
    for thread in threads:
        thread.join(60)
    return accepted, uncertain
