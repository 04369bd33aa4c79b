"""`turnqueue run` with nothing running: it starts what it needs, and another shell can find that."""

import signal

from tests.cli.conftest import Shell, submit_options, wait_for_approval


def test_starts_its_own_and_stops_it(shell: Shell) -> None:
    running = shell.start("run", *submit_options())
    approval_id = running.until("decide in another shell").split("approve ")[1].split()[0]
    assert any("starting PostgreSQL" in line for line in running.seen)
    assert shell("approve", approval_id, "--by", "ops").code == 0
    done = running.end()
    assert done.code == 0
    assert "The refund of 24.50 EUR" in done.out
    shell("list").failed(6, "NO_SERVERS")


def test_interrupted_run_leaves_a_durable_operation(shell: Shell) -> None:
    running = shell.start("run", *submit_options())
    operation_id = running.until(" submitted").split()[0]
    running.until("decide in another shell")
    assert f"{operation_id} is saved" in running.end(signal.SIGINT).err
    again = shell.start("up", "--quiet")
    again.until("Ready.")
    wait_for_approval(shell, operation_id)
    assert shell("approve", operation_id).code == 0
    assert shell("show", operation_id, "--follow").code == 0
    assert again.end(signal.SIGTERM).code == 0
