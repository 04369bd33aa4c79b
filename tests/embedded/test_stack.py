"""The supervisor: real processes that are started, killed, restarted, given up and never left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embedded.keeper import wait_until
from embedded.servers import Servers
from embedded.stack import Stack, Worker, default_workers, exit_on_sigterm
from embedded.supervisor import CrashLimit, Process, Supervisor
from orchestrator.domain.errors import ConfigError, Unavailable
from tests.embedded.conftest import embedded_environ

NO_CRASH_LIMIT = CrashLimit(deaths=1000)


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


STEADY = script("import signal; print('up and ready', flush=True); signal.pause()")
STUBBORN = script(
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "while True: signal.pause()"
)


def alive(pid: int) -> bool:
    """A running process; a zombie that nobody collects is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, 60)


def pid_or_none(stack: Supervisor, name: str) -> int | None:
    try:
        return stack.pid(name)
    except Unavailable:
        return None


def test_starts_waits_and_stops(tmp_path: Path) -> None:
    code = "import os, signal; print(os.environ['SHARED'], os.environ['OWN'], 'ready', flush=True); signal.pause()"
    one = Process("one", script(code), env={"OWN": "b"}, ready="ready")
    with Supervisor([one, Process("two", STEADY)], log_dir=tmp_path, env={"SHARED": "a"}) as stack:
        stack.wait_ready()
        pids = [stack.pid("one"), stack.pid("two")]
        assert all(os.getpgid(pid) == pid != os.getpgid(0) for pid in pids)
        assert stack.tail("one") == "a b ready"
    assert not any(map(alive, pids))
    with pytest.raises(Unavailable):
        stack.pid("one")
    stack.stop()


def test_predicate_decides_readiness(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = f"import pathlib, signal; pathlib.Path({str(flag)!r}).touch(); signal.pause()"
    with Supervisor([Process("one", script(code), ready=flag.exists)], log_dir=tmp_path) as stack:
        stack.wait_ready()
        assert flag.exists()


def test_not_ready_in_time_shows_the_log(tmp_path: Path) -> None:
    slow = Process("slow", script("import signal; print('still loading', flush=True); signal.pause()"), ready="done")
    with Supervisor([slow], log_dir=tmp_path) as stack:
        until(lambda: stack.tail("slow") == "still loading")
        with pytest.raises(Unavailable, match=r"slow is not ready.*\nstill loading") as late:
            stack.wait_ready(timeout=0.05)
        assert late.value.code == "NOT_READY"


def test_restarts_a_process_killed_from_outside(tmp_path: Path) -> None:
    with Supervisor([Process("one", STEADY, ready="ready")], log_dir=tmp_path) as stack:
        stack.wait_ready()
        first = stack.pid("one")
        os.kill(first, signal.SIGKILL)
        until(lambda: pid_or_none(stack, "one") not in (None, first))
        stack.wait_ready()
        assert not alive(first)


def test_kill_does_not_count_as_a_crash(tmp_path: Path) -> None:
    with Supervisor([Process("one", STEADY, ready="ready")], log_dir=tmp_path) as stack:
        seen = set()
        for _ in range(5):
            stack.wait_ready()
            seen.add(stack.kill("one"))
        stack.wait_ready()
        assert len(seen) == 5
        assert not any(map(alive, seen))


def test_killed_process_can_be_kept_down_until_restart(tmp_path: Path) -> None:
    with Supervisor([Process("one", STEADY, ready="ready")], log_dir=tmp_path) as stack:
        stack.wait_ready()
        killed = stack.kill("one", restart=False)
        assert pid_or_none(stack, "one") is None
        stack.restart("one")
        stack.wait_ready()
        assert stack.pid("one") != killed


def test_restart_replaces_the_process(tmp_path: Path) -> None:
    with Supervisor([Process("one", STEADY, ready="ready")], log_dir=tmp_path) as stack:
        stack.wait_ready()
        before = stack.pid("one")
        stack.restart("one")
        stack.wait_ready()
        assert stack.pid("one") != before
        assert not alive(before)


def test_process_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    with Supervisor([Process("one", STUBBORN, ready="ready")], log_dir=tmp_path, grace=0.2) as stack:
        stack.wait_ready()
        pid = stack.pid("one")
    assert not alive(pid)


def test_group_of_a_dead_process_goes_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, signal\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, 'ready', flush=True); signal.pause()"
    )
    with Supervisor([Process("one", script(code), ready="ready")], log_dir=tmp_path) as stack:
        stack.wait_ready()
        grandchild = int(stack.tail("one").split()[0])
        os.kill(stack.pid("one"), signal.SIGKILL)
        until(lambda: not alive(grandchild))


def test_support_process_outlives_those_that_need_it(tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal, sys\n"
        "def leave(*_):\n"
        f"    with open({str(order)!r}, 'a') as file: file.write(sys.argv[1] + ' ')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave); print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    processes = [
        Process("service", (*script(code), "service"), ready="ready", support=True),
        Process("worker", (*script(code), "worker"), ready="ready"),
    ]
    with Supervisor(processes, log_dir=tmp_path) as stack:
        stack.wait_ready()
    assert order.read_text() == "worker service "


@pytest.mark.parametrize("ready", ["never said", None])
def test_crash_loop_is_given_up_with_the_log(ready: str | None, tmp_path: Path) -> None:
    bad = Process("bad", script("import sys; print('no such setting: X'); sys.exit(3)"), ready=ready)
    # So long a window that a busy machine makes no difference.
    limit = CrashLimit(deaths=3, seconds=600)
    with Supervisor([bad, Process("good", STEADY)], log_dir=tmp_path, crash_limit=limit) as stack:
        with pytest.raises(ConfigError) as loop:
            stack.wait(timeout=60)
        assert loop.value.code == "CRASH_LOOP"
        assert "bad died 3 times" in loop.value.message
        assert "exit status 3" in loop.value.message
        assert "no such setting: X" in loop.value.message
        assert (tmp_path / "bad.log").read_text().count("no such setting") == 3
        with pytest.raises(ConfigError):
            stack.wait_ready()
        assert alive(stack.pid("good"))


def test_process_that_cannot_get_ready_is_given_up_however_slowly_it_dies(tmp_path: Path) -> None:
    bad = Process("bad", script("import sys; sys.exit(1)"), ready="never said")
    with (
        Supervisor([bad], log_dir=tmp_path, crash_limit=CrashLimit(deaths=3, seconds=0)) as stack,
        pytest.raises(ConfigError, match="bad died 3 times"),
    ):
        stack.wait_ready()


def test_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    with (
        Supervisor([Process("gone", ("/no/such/program",), ready="x")], log_dir=tmp_path) as stack,
        pytest.raises(ConfigError, match="cannot run /no/such/program"),
    ):
        stack.wait_ready()


def test_unknown_and_duplicate_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="same name"):
        Supervisor([Process("one", STEADY), Process("one", STEADY)], log_dir=tmp_path)
    with pytest.raises(ConfigError, match="No process other; there are one"):
        Supervisor([Process("one", STEADY)], log_dir=tmp_path).pid("other")


SUPERVISED = f"""
import json, sys
from pathlib import Path
from embedded.stack import exit_on_sigterm
from embedded.supervisor import Process, Supervisor
processes = [Process("one", {STEADY!r}, ready="ready"), Process("two", {STUBBORN!r}, ready="ready")]
with exit_on_sigterm(), Supervisor(processes, log_dir=Path(sys.argv[1]), grace=0.2) as stack:
    stack.wait_ready()
    stack.kill("one")
    stack.wait_ready()
    print(json.dumps([stack.pid("one"), stack.pid("two")]), flush=True)
    stack.wait()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_death_of_the_supervisor_leaves_nothing(number: int, status: int, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*script(SUPERVISED), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=embedded_environ(),
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = json.loads(supervisor.stdout.readline())
        assert all(map(alive, pids))
        supervisor.send_signal(number)
        assert supervisor.wait(60) == status
    until(lambda: not any(map(alive, pids)))


def test_guard_without_the_kernels_help(tmp_path: Path) -> None:
    """The way of systems without PR_SET_PDEATHSIG, which works here too."""
    code = f"""
import os, subprocess, sys
watch = "import sys; from embedded import guard; sys.exit(guard.watch(int(sys.argv[1]), sys.argv[2:]))"
with subprocess.Popen([sys.executable, "-c", watch, str(os.getpid()), *{STEADY!r}], start_new_session=True) as guard:
    print(guard.pid, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(script(code), stdin=-1, stdout=-1, text=True, env=embedded_environ()) as parent:
        assert parent.stdout is not None
        guard = int(parent.stdout.readline())
        assert "ready" in parent.stdout.readline()
        children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
        assert len(children) == 1
        parent.kill()
    until(lambda: not alive(guard) and not alive(int(children[0])))


def test_exit_on_sigterm_restores_the_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left, exit_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def local(servers: Servers, broker_url: str, data_dir: Path) -> Servers:
    return Servers(servers.database_url, broker_url, data_dir)


def test_failed_migration_starts_nothing(servers: Servers, tmp_path: Path) -> None:
    migrate = script("import sys; print('revision 0099 is unknown'); sys.exit(4)")
    stack = Stack(local(servers, servers.broker_url, tmp_path), migrate=migrate, workers=[], sweeper=STEADY)
    with pytest.raises(ConfigError, match=r"could not be migrated \(4\).*\nrevision 0099 is unknown") as failed:
        stack.start()
    assert failed.value.code == "MIGRATE_FAILED"
    with pytest.raises(Unavailable):
        stack.pid("sweeper")


def test_default_workers_serve_every_queue() -> None:
    workers = default_workers(["slow"], concurrency=4)
    assert [each.name for each in workers] == ["orchestrator", "executors"]
    assert "orchestrator,submit" in workers[0].process().argv
    argv = workers[1].process().argv
    assert "reads,writes,slow" in argv
    assert argv[argv.index("-c", 3) + 1] == "4"


def test_real_workers_survive_kill(servers: Servers, broker_url: str, tmp_path: Path) -> None:
    """Migration first, then two Celery workers; a task sent while one is dead runs after its restart."""
    from celery import Celery

    migrated = tmp_path / "migrated"
    check = script(f"import os, pathlib, signal; assert pathlib.Path({str(migrated)!r}).exists(); signal.pause()")
    environment = script(
        f"import os, pathlib; pathlib.Path({str(migrated)!r}).write_text("
        "' '.join(os.environ[f'TURNQUEUE_{name}'] for name in ('DATABASE_URL', 'BROKER_URL', 'MODULES')))"
    )
    workers = [Worker("orchestrator", ["orchestrator"], 2), Worker("executors", ["reads", "writes"], 2)]
    with Stack(
        local(servers, broker_url, tmp_path),
        modules=["a.b", "c"],
        workers=workers,
        migrate=environment,
        sweeper=check,
        app="tests.embedded.tiny_app",
        crash_limit=NO_CRASH_LIMIT,
    ) as stack:
        assert migrated.read_text() == f"{servers.database_url} {broker_url} a.b,c"
        stack.wait_ready()
        with Celery("client", broker=broker_url) as client:
            for name, queue in (("orchestrator", "orchestrator"), ("executors", "writes")):
                path = tmp_path / f"{name}.done"
                killed = stack.kill(name, restart=False)
                client.send_task("tests.embedded.tiny_app.touch", [str(path)], queue=queue)
                stack.restart(name)
                until(path.exists)
                until(lambda: path.read_text() != "")  # noqa: B023 (used at once)
                assert int(path.read_text()) == stack.pid(name) != killed
        stack.wait_ready()
        pids = [stack.pid(each) for each in ("orchestrator", "executors", "sweeper")]
    assert not any(map(alive, pids))
    assert "Traceback" not in (tmp_path / "logs" / "executors.log").read_text()
