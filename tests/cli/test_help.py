"""Help costs little and says everything."""

import re
import subprocess
import sys
from pathlib import Path

from orchestrator.cli_report import EXIT_CODES, Exit
from tests.cli.conftest import Shell

HEAVY = ("celery", "kombu", "sqlalchemy", "psycopg", "httpx", "pydantic", "embedded", "examples", "orchestrator.app")
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = {"demo", "up", "run", "submit", "show", "list", "approve", "deny", "answer", "amend", "cancel"}
COMMANDS |= {"release", "reviews", "resolve", "complete", "compensate"}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['turnqueue', '--help']\n"
        "from orchestrator.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_help_names_every_command_and_exit_code(shell: Shell) -> None:
    shown = shell("--help")
    assert shown.code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", shown.out, re.MULTILINE)
    assert _codes(shown.out) == {each.value for each in Exit}


def test_every_command_documents_the_exit_codes(shell: Shell) -> None:
    shown = shell("run", "--help")
    assert shown.code == 0
    assert _codes(shown.out) == {each.value for each in Exit}


def test_page_documents_every_command_and_exit_code() -> None:
    page = PAGE.read_text()
    assert {name for name in COMMANDS if f"`turnqueue {name}" in page} == COMMANDS
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert table == _codes(EXIT_CODES)


def test_wrong_usage_is_2(shell: Shell) -> None:
    assert shell("show").code == 2
    assert shell("no-such-command").code == 2
    assert shell("list", "--limit", "none").code == 2


def _codes(text: str) -> set[int]:
    return {int(code) for code in re.findall(r"^ +(\d+) {2,}\S", text, re.MULTILINE)}
