"""Keeps a set of processes running: restarts those that die, and leaves none behind.

Each process has its own session, its output in a log file, and `guard` in front of it, so that it dies with this one.
A process that keeps dying is given up, with its log's end in the error.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from embedded import guard
from orchestrator.domain.errors import ConfigError, Unavailable

GRACE_SECONDS = 10.0
READY_POLL_SECONDS = 0.02
# The line that says "ready" comes early; a worker's log may grow without end.
READY_BYTES = 256 * 1024
MAX_LOG_BYTES = 20 * 1024 * 1024
TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Process:
    """One process to keep running.

    `ready`: a text that its log shows since its last start, a predicate, or None (ready once it runs).  `env` is added
    to the supervisor's.  `support`: others need it, so it is stopped after them.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str | Callable[[], bool] | None = None
    support: bool = False


@dataclass(frozen=True, slots=True)
class CrashLimit:
    """`deaths` within `seconds`, or so many in a row before it was ever ready, and a process is given up."""

    deaths: int = 3
    seconds: float = 10.0


@dataclass(slots=True)
class _Child:
    """The state of one process; guarded by the supervisor's condition."""

    process: Process
    log: Path
    running: subprocess.Popen[bytes] | None = None
    log_start: int = 0
    wanted: bool = True
    expected: bool = False
    ready: bool = False
    deaths: deque[float] = field(default_factory=deque)
    unready_deaths: int = 0
    failure: str | None = None


class Supervisor:
    """Runs `processes` from `start` to `stop`, or in a `with` block.

    `env` is what each child gets beside this process's own environment; logs go to `log_dir/<name>.log`.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        log_dir: Path,
        env: Mapping[str, str] | None = None,
        grace: float = GRACE_SECONDS,
        crash_limit: CrashLimit | None = None,
    ) -> None:
        self._env = dict(env or {})
        self._log_dir = log_dir
        self._grace = grace
        self._limit = crash_limit or CrashLimit()
        self._children = {each.name: _Child(each, log_dir / f"{each.name}.log") for each in processes}
        if len(self._children) != len(processes):
            raise ConfigError("DUPLICATE_PROCESS", "Two processes of the stack have the same name")
        self._changed = threading.Condition()
        self._closing = False
        self._monitor: threading.Thread | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every process; returns at once (see `wait_ready`)."""
        if self._monitor is not None:
            raise RuntimeError("This supervisor was started already")
        self._log_dir.mkdir(parents=True, exist_ok=True)
        atexit.register(self.stop)
        # One thread starts all children for as long as they live: the kernel's death signal follows the thread.
        self._monitor = threading.Thread(target=self._keep_running, name="supervisor", daemon=True)
        self._monitor.start()

    def stop(self) -> None:
        """SIGTERM to all, SIGKILL to those left after the grace period; returns when none is left.  May be repeated."""
        if self._monitor is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.stop)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._monitor.join()

    def kill(self, name: str, *, restart: bool = True) -> int:
        """SIGKILL one process and its group, and wait for its end; returns its id.  Does not count as a crash.

        It is started again at once, unless `restart` is False: then by `restart(name)`.
        """
        child = self._child(name)
        with self._changed:
            pid = self._pid(child)
            child.wanted, child.expected = restart, True
        _signal_group(pid, signal.SIGKILL)
        self._wait_for(lambda: not self._runs(child, pid), None)
        return pid

    def restart(self, name: str) -> None:
        """Stop one process with its grace period and start it again; also after it was given up or kept down."""
        child = self._child(name)
        with self._changed:
            child.wanted = False
        self._end([child])
        with self._changed:
            child.wanted, child.failure, child.unready_deaths = True, None, 0
            child.deaths.clear()
            self._changed.notify_all()
        self._wait_for(lambda: child.running is not None or child.failure is not None or self._closing, None)

    def pid(self, name: str) -> int:
        """The process's id now.  Raises Unavailable NOT_RUNNING."""
        with self._changed:
            return self._pid(self._child(name))

    def tail(self, name: str, lines: int = TAIL_LINES) -> str:
        """The end of the process's log since its last start, for messages."""
        return _tail(self._child(name).log, self._child(name).log_start, lines)

    def check(self) -> None:
        """Raises ConfigError CRASH_LOOP, with the end of the log, when a process was given up."""
        with self._changed:
            failure = next((child.failure for child in self._children.values() if child.failure), None)
        if failure:
            raise ConfigError("CRASH_LOOP", failure)

    def wait(self, timeout: float | None = None) -> None:
        """Block until `stop` or for `timeout` seconds.  Raises ConfigError CRASH_LOOP as soon as that happens."""
        self._wait_for(lambda: self._closing or any(child.failure for child in self._children.values()), timeout)
        self.check()

    def wait_ready(self, timeout: float = 120.0) -> None:
        """Block until every wanted process is ready.

        Raises ConfigError CRASH_LOOP, or Unavailable NOT_READY with the end of the log after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while waiting := [child for child in self._children.values() if child.wanted and not self._is_ready(child)]:
            self.check()
            if time.monotonic() > end:
                name = waiting[0].process.name
                raise Unavailable(
                    "NOT_READY", f"{name} is not ready after {timeout:g} s; see {waiting[0].log}\n{self.tail(name)}"
                )
            self._wait_for(lambda: False, READY_POLL_SECONDS)
        self.check()

    def _child(self, name: str) -> _Child:
        try:
            return self._children[name]
        except KeyError:
            raise ConfigError("NO_SUCH_PROCESS", f"No process {name}; there are {', '.join(self._children)}") from None

    def _pid(self, child: _Child) -> int:
        if child.running is None:
            raise Unavailable("NOT_RUNNING", f"{child.process.name} is not running")
        return child.running.pid

    def _runs(self, child: _Child, pid: int) -> bool:
        return child.running is not None and child.running.pid == pid

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def _is_ready(self, child: _Child) -> bool:
        with self._changed:
            running, wanted = child.running, child.process.ready
            if running is None or child.ready:
                return running is not None
        found = (wanted is None) or (_has_text(child, wanted) if isinstance(wanted, str) else wanted())
        with self._changed:
            if found and child.running is running:
                child.ready, child.unready_deaths = True, 0
            return child.ready

    def _keep_running(self) -> None:
        """The monitor thread: start whatever should run and does not; at the end stop it all.

        To the kernel this thread is the children's parent, so it must not end before them.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or bool(self._missing()))
                if self._closing:
                    break
                for child in self._missing():
                    self._spawn(child)
                self._changed.notify_all()
        for support in (False, True):
            self._end([child for child in self._children.values() if child.process.support is support])

    def _missing(self) -> list[_Child]:
        return [each for each in self._children.values() if each.wanted and not each.failure and each.running is None]

    def _spawn(self, child: _Child) -> None:
        process = child.process
        try:
            child.log_start = _fresh_log(child.log)
            child.running = start_guarded(process.argv, {**self._env, **process.env}, child.log)
        except OSError as error:
            child.failure = f"{process.name} could not be started: {error}"
            return
        child.ready = child.expected = False
        threading.Thread(
            target=self._reap, args=(child, child.running), name=f"reap-{process.name}", daemon=True
        ).start()

    def _reap(self, child: _Child, running: subprocess.Popen[bytes]) -> None:
        """Wait for one process to end, take what it left in its group with it, and say so."""
        status = running.wait()
        _signal_group(running.pid, signal.SIGKILL)
        with self._changed:
            if child.wanted and not child.expected and not self._closing:
                self._note_crash(child, status)
            child.running, child.ready = None, False
            self._changed.notify_all()

    def _note_crash(self, child: _Child, status: int) -> None:
        now, text = time.monotonic(), child.process.ready
        child.deaths.append(now)
        while now - child.deaths[0] > self._limit.seconds:
            child.deaths.popleft()
        was_ready = child.ready or text is None or (isinstance(text, str) and _has_text(child, text))
        child.unready_deaths = 0 if was_ready else child.unready_deaths + 1
        if max(len(child.deaths), child.unready_deaths) >= self._limit.deaths:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            child.failure = (
                f"{child.process.name} died {self._limit.deaths} times in a row (last: {how}) and is not restarted; "
                f"see {child.log}\n{_tail(child.log, child.log_start, TAIL_LINES)}"
            )

    def _end(self, children: list[_Child]) -> None:
        """SIGTERM, the grace period, SIGKILL; returns when they have ended."""
        with self._changed:
            pids = {child.process.name: child.running.pid for child in children if child.running is not None}
            for child in children:
                child.expected = True
        for pid in pids.values():
            # The process alone: it decides how its own children end.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

        def ended() -> bool:
            return not any(self._runs(self._children[name], pid) for name, pid in pids.items())

        if not self._wait_for(ended, self._grace):
            for name, pid in pids.items():
                if self._runs(self._children[name], pid):
                    _signal_group(pid, signal.SIGKILL)
            self._wait_for(ended, None)


def start_guarded(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in its own session that dies with the calling thread; output is appended to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            start_new_session=True,
        )


def _fresh_log(log: Path) -> int:
    """Where the next start's output begins; a large log is put aside first."""
    if not log.exists():
        return 0
    if log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".old.log"))
        return 0
    return log.stat().st_size


def _has_text(child: _Child, text: str) -> bool:
    try:
        with child.log.open("rb") as log:
            log.seek(child.log_start)
            return text.encode() in log.read(READY_BYTES)
    except FileNotFoundError:
        return False


def _tail(log: Path, start: int, lines: int) -> str:
    """The last lines that a log got since `start` (bytes)."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - READY_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
