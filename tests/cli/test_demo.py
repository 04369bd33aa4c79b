"""`turnqueue demo`: everything started, one refund, evidence; again and again in one data directory."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM, Result, Shell


def check(done: Result) -> Any:
    """The object that the demo promises."""
    assert done.code == 0, done
    shown = done.json
    assert shown["state"] == "COMPLETED"
    assert shown["turns"] == 4
    assert [(call["tool"], call["effect"], call["state"]) for call in shown["calls"]] == [
        ("get_order", "read", "SUCCEEDED"),
        ("get_refund_policy", "read", "SUCCEEDED"),
        ("draft_refund", "create", "SUCCEEDED"),
        ("submit_refund", "create", "SUCCEEDED"),
    ]
    assert all(call["call_id"] for call in shown["calls"])
    assert [action["state"] for action in shown["actions"]] == ["SUCCEEDED", "SUCCEEDED"]
    refund = shown["actions"][1]
    assert refund["action_id"].startswith("act_")
    assert refund["external_ref"].startswith("REF-")
    assert refund["attempts"] >= 1
    assert [approval["state"] for approval in shown["approvals"]] == ["CONSUMED"]
    assert "24.50 EUR" in shown["final_text"]
    assert [(row["kind"], row["key"]) for row in shown["ledger"]] == [("refund", refund["idempotency_key"])]
    assert len(shown["drafts"]) == 1
    return shown


def test_twice_in_one_directory(shell: Shell) -> None:
    first, second = check(shell("demo", "--yes", "--json")), check(shell("demo", "--yes", "--json"))
    assert first["operation_id"] != second["operation_id"]
    assert first["actions"][1]["idempotency_key"] != second["actions"][1]["idempotency_key"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--provider", "openai-chat", "--stream"), id="openai-chat"),
        pytest.param(("--provider", "anthropic-messages"), id="anthropic-messages", marks=pytest.mark.campaign),
        pytest.param(("--provider", "gemini-generate"), id="gemini-generate", marks=pytest.mark.campaign),
        pytest.param(
            ("--provider", "gemini-interactions", "--stream"), id="gemini-interactions", marks=pytest.mark.campaign
        ),
    ],
)
def test_on_each_provider(options: tuple[str, ...], shell: Shell) -> None:
    check(shell("demo", "--yes", "--json", *options))


def test_an_unknown_provider_names_the_known(shell: Shell) -> None:
    assert "anthropic-messages" in shell("demo", "--yes", "--provider", "nobody").failed(5, "UNKNOWN_API")


def test_worker_killed_after_the_effect_is_restarted(shell: Shell, tmp_path: Path) -> None:
    armed = {"TURNQUEUE_FAILPOINTS": "write.after_effect:2", "TURNQUEUE_FAILPOINT_DIR": str(tmp_path)}
    shown = check(shell("demo", "--yes", "--json", **armed))
    assert (tmp_path / "failpoint-write.after_effect").stat().st_size >= 2
    assert shown["actions"][1]["state"] == "SUCCEEDED"


def test_human_output_names_the_evidence(shell: Shell) -> None:
    done = shell("demo", "--yes")
    assert done.code == 0
    for part in ("COMPLETED", "submit_refund SUCCEEDED", "external ref REF-", "key tq_", "CONSUMED", "kind=refund "):
        assert part in done.out
    assert "waits for a person" in done.err


def test_asks_at_the_terminal(shell: Shell) -> None:
    code, shown = at_terminal(shell, "y")
    assert code == 0
    assert '{"amount_cents":2450,"currency":"EUR","draft_id":"DRF-' in shown.split("[y/n]")[0]
    assert "APPROVED by" in shown
    assert "kind=refund " in shown


def test_denial_at_the_terminal_moves_no_money(shell: Shell) -> None:
    code, shown = at_terminal(shell, "n")
    assert code == 1
    assert "INCOMPLETE (UNCONFIRMED)" in shown
    assert "APPROVAL_DENIED" in shown
    assert "no money was moved" in shown
    assert "kind=refund " not in shown


def test_no_terminal_and_no_yes(shell: Shell) -> None:
    done = shell("demo", "--json")
    assert "--yes" in done.failed(2, "NEEDS_YES")
    assert done.json["error"]["code"] == "NEEDS_YES"


def at_terminal(shell: Shell, answer: str) -> tuple[int, str]:
    """Play the demo at a terminal of 100 columns and type the answer when it asks; exit code and all that was shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    env = {name: value for name, value in shell.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    with subprocess.Popen([PROGRAM, "demo"], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = _read(ours, until=b"[y/n] ")
        os.write(ours, f"{answer}\n".encode())
        shown += _read(ours, until=None)
        code = process.wait()
    os.close(ours)
    return code, shown.decode()


def _read(terminal: int, until: bytes | None) -> bytes:
    """What is shown until this text, or until the program has closed the terminal."""
    shown = b""
    while until is None or until not in shown:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # Linux: the other side is closed
            more = b""
        if not more:
            assert until is None, shown.decode()
            break
        shown += more
    return shown
