"""A parent of the fork harness: imports everything once, then forks short-lived children that die by SIGKILL.

    python -m tests.chaos.forks_parent --index I --seed N --folder PATH --scratch URL --plan JSON

Started by `tests.chaos.forks`, once per core, with the environment of a worker. It opens nothing itself. Orders come in
on its standard input, one JSON object per line, what became of its children goes out on its standard output:

    {"messages": {KIND: [[task, row id], ...]}, "submit": [number...], "approvals": [id...],
     "zombies": how many to make, "counts": {POINT: kills of all parents}, "rest": bool}
    {"ready": true} | {"ended": [[kind, point, how, milliseconds of CPU], ...], "stopped": [[worker, pid], ...],
                       "waiting": {KIND: how many}}

`how` is `kill` (at its failpoint), `random` (at no particular moment), `end` (it came to its end), `missed` (the same,
without coming to its failpoint), `failed` or `stuck`.
The plan: {"points": {POINT: how many kills of all parents}, "at_once", "shots": share of kills at random moments}.
After the order "rest" no child is armed any more.
"""

import argparse
import gc
import heapq
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401 - what SQLAlchemy would import in each child

from tests.chaos.forks_child import AGAIN, Job, live, prepared
from tests.chaos.forks_memory import huge_pages
from tests.chaos.forks_script import warming_numbers

KINDS = {
    "submit.committed": "submit", "decision.committed": "decide", "sweeper.repaired": "sweep",
    "anchor.writing": "sweep", "migration.uncommitted": "migrate", "check.answered": "checks",
}  # fmt: skip
HINTED = ("turns", "reads", "starts", "checks")
STUCK = 40.0  # seconds that no child needs
SHOT = 0.03  # seconds, on average, until a child is killed at random
SWEEP = 1.5  # the same for a sweeper
LOW = 8  # rows of a kind, due for this parent, below which some children get further before they die, for more of them
PUSHING = 0.6  # the others among them
LAG = 0.03  # of its number, by which a point may lag behind others
LEAD = 0.1  # the same, by which one may be ahead of the last
FAR = (3, 6)  # at which hit they die
PASSED_OFTEN = ("turn.", "read.", "write.", "check.")  # by a child that has the time


def kinds_of(point: str) -> tuple[str, ...]:
    """Which pieces of work pass the point."""
    if point.startswith("task."):
        return HINTED
    if point == "hint.publishing":
        return ("submit", "turns", "sweep")
    if point.startswith("write."):
        return ("starts",)
    return (KINDS.get(point) or point.partition(".")[0] + "s",)


class Child:
    def __init__(self, job: Job, worker: str) -> None:
        self.job, self.worker = job, worker
        self.since = time.monotonic()
        self.shot = False  # killed by us
        self.stopped = False


class Parent:
    def __init__(self, options: argparse.Namespace) -> None:
        self._index, self._seed = options.index, options.seed
        self._folder, self._scratch = options.folder, options.scratch
        self._random = random.Random(f"{options.seed}:{options.index}")
        plan = json.loads(options.plan)
        self._points: dict[str, int] = plan["points"]
        self._at_once: int = plan["at_once"]
        self._shots: float = plan["shots"]
        self._messages: dict[str, deque[Any]] = {kind: deque() for kind in HINTED}
        self._numbers: deque[int] = deque()
        self._again: deque[int] = deque()  # numbers of children that died of them: committed or not, to be asked again
        self._approvals: deque[str] = deque(maxlen=40)
        self._children: dict[int, Child] = {}
        self._shooting: list[tuple[float, int]] = []
        self._count: Counter[str] = Counter()
        self._serial = 0
        self._zombies = 0  # still to be made
        self._rest = False
        self._input = b""
        self._ended: list[Any] = []
        self._stops: list[Any] = []
        self._told = 0.0
        self._root: Any = None

    # --- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._root = prepared(warming_numbers(self._index), self._seed, self._folder)
        gc.collect()
        gc.freeze()
        huge_pages()
        _say({"ready": True})
        while self._take_orders(self._until_next_shot()):
            self._reap()
            self._shoot()
            while self._start():
                pass
            self._tell()

    def _until_next_shot(self) -> float:
        at = self._shooting[0][0] - time.monotonic() if self._shooting else 1.0
        return max(0.001, min(0.005, at))

    def _take_orders(self, seconds: float) -> bool:
        """False: whoever started us is gone or has enough."""
        if not select.select([0], [], [], seconds)[0]:
            return True
        data = os.read(0, 1 << 20)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(data)

    def _obey(self, order: dict[str, Any]) -> None:
        for kind, messages in order.get("messages", {}).items():
            at_hand = {child.job.given for child in self._children.values()}
            self._messages[kind] = deque(message for message in messages if tuple(message) not in at_hand)
        self._numbers.extend(order.get("submit", ()))
        self._approvals.extend(order.get("approvals", ()))
        self._zombies += order.get("zombies", 0)
        self._count = Counter(order.get("counts", self._count))
        self._rest = order.get("rest", self._rest)

    def _tell(self) -> None:
        if time.monotonic() - self._told < 0.05:
            return
        self._told = time.monotonic()
        waiting = {kind: len(found) for kind, found in self._messages.items()}
        waiting |= {"submit": self._waiting("submit"), "approvals": len(self._approvals), "zombies": self._zombies}
        _say({"ended": self._ended, "stopped": self._stops, "waiting": waiting})
        self._ended, self._stops = [], []

    # --- births ----------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        working = sum(not child.stopped and child.job.kind != "sweep" for child in self._children.values())
        sweeping = any(child.job.kind == "sweep" for child in self._children.values())
        if not sweeping:
            job, shot = self._sweeping()
        elif working < self._at_once:
            job, shot = self._next()
        else:
            return False
        if job is None:
            return False
        self._serial += 1
        child = Child(job, f"fork{self._index}:{self._serial}")
        pid = os.fork()
        if pid == 0:
            self._become(child)
        self._children[pid] = child
        if shot is not None:
            heapq.heappush(self._shooting, (child.since + shot, pid))
        return True

    def _become(self, child: Child) -> None:
        code = 70
        os.dup2(2, 1)  # the parent's own output is for its orders' giver
        os.close(0)
        try:
            live(self._root, child.job, child.worker, os.getppid(), self._seed, self._folder)
            code = 0
        except BaseException:  # noqa: BLE001 - reported by its status
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _sweeping(self) -> tuple[Job | None, float | None]:
        """There is always one, as in production; the other parent's waits for the lock."""
        if self._rest:
            return Job("sweep"), None
        if self._random.random() < self._shots / 2:
            return Job("sweep"), self._random.expovariate(1 / SWEEP)
        points = [point for point in self._points if "sweep" in kinds_of(point)]
        if not points:
            return Job("sweep"), None
        point = min(points, key=self._fraction)
        nth = {"sweeper.repaired": 12, "hint.publishing": 8}.get(point, 1)
        return Job("sweep", (), point, self._random.randint(1, nth)), None

    def _next(self) -> tuple[Job | None, float | None]:
        ready = [kind for kind in (*HINTED, "submit", "decide") if self._waiting(kind)]
        if self._zombies and self._messages["starts"]:
            self._zombies -= 1
            return self._job("starts", "write.sending", 1, "stop"), None
        if self._rest:
            return (self._job(self._random.choice(ready)) if ready else None), None
        drawn = self._random.random()
        if drawn < self._shots and ready:
            return self._job(self._random.choice(ready)), self._random.expovariate(1 / SHOT)
        pushed = self._abundant(ready) if drawn > PUSHING else None
        possible = [
            (point, kind)
            for point in self._points
            for kind in kinds_of(point)
            if kind in ready or (kind == "migrate" and not self._is_migrating())
            if pushed in (None, kind)
        ]
        point, kind = min(possible, key=lambda each: (self._fraction(each[0]), self._random.random()), default=("", ""))
        if point and not self._ahead(point):
            return self._job(kind, point, self._far(kind, point) if pushed else 1), None
        return (self._job(pushed or self._random.choice(ready)) if ready else None), None

    def _far(self, kind: str, point: str) -> int:
        """At which hit a child is to die that is to get something done first."""
        if kind not in HINTED or not point.startswith(PASSED_OFTEN):
            return 1
        return min(self._random.randint(*FAR), 1 + len(self._messages[kind]) // 3)

    def _abundant(self, ready: Sequence[str]) -> str | None:
        """What there is most of, if there is little of something else: working on it makes more of that."""
        waiting = {kind: len(self._messages[kind]) for kind in HINTED}
        if min(waiting["turns"], waiting["reads"], waiting["starts"]) >= LOW and not self._starved(ready):
            return None
        if waiting["starts"] < LOW <= 2 * waiting["checks"]:
            return "checks"
        most = max(waiting, key=lambda kind: waiting[kind])
        if self._waiting("submit") and waiting[most] < 3 * LOW:
            return "submit"
        return most if waiting[most] > LOW else None

    def _starved(self, ready: Sequence[str]) -> bool:
        """Whether a point lags behind because nothing leads to it at the moment, as with approvals."""
        fractions = {point: self._fraction(point) for point in self._points}
        reached = [fractions[point] for point in self._points if set(kinds_of(point)) & {*ready, "sweep", "migrate"}]
        return bool(reached) and min(fractions.values()) < min(reached) - LAG

    def _ahead(self, point: str) -> bool:
        """Whether work had better be done than killed here: others lag behind, and work leads to them."""
        fraction = self._fraction(point)
        return fraction > LEAD + min(self._fraction(each) for each in self._points)

    def _waiting(self, kind: str) -> int:
        match kind:
            case "submit":
                return len(self._numbers) + len(self._again)
            case "decide":
                return len(self._approvals)
            case _:
                return len(self._messages[kind])

    def _is_migrating(self) -> bool:
        return any(child.job.kind == "migrate" for child in self._children.values())

    def _fraction(self, point: str) -> float:
        underway = sum(child.job.point == point for child in self._children.values())
        return (self._count[point] + 0.5 * underway) / max(1, self._points[point])

    def _job(self, kind: str, point: str = "", nth: int = 1, action: str = "kill") -> Job:
        given: tuple[Any, ...]
        match kind:
            case "submit":
                given = _taken(self._again, 8) + _taken(self._numbers, 1 if point else 8)
            case "decide":
                given = _taken(self._approvals, 1 if point else 4)
            case "migrate":
                given = (self._scratch,)
            case _:
                given = tuple(self._messages[kind].popleft())
        return Job(kind, given, point, nth, action)

    # --- deaths ----------------------------------------------------------------------------------------------------

    def _shoot(self) -> None:
        now = time.monotonic()
        while self._shooting and self._shooting[0][0] <= now:
            _, pid = heapq.heappop(self._shooting)
            self._kill(pid)
        for pid, child in self._children.items():
            if now - child.since > STUCK and child.job.kind != "sweep" and not child.stopped:
                self._kill(pid)

    def _kill(self, pid: int) -> None:
        """A child that is not reaped yet keeps its number, so nobody else can be hit."""
        child = self._children.get(pid)
        if child is not None and not child.shot:
            child.shot = True
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._children:
            pid, status, used = os.wait4(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            child = self._children[pid]
            if os.WIFSTOPPED(status):
                child.stopped = True
                self._stops.append([child.worker, pid])
            elif os.WIFCONTINUED(status):
                child.stopped, child.since = False, time.monotonic()
            else:
                del self._children[pid]
                self._bury(pid, child, status, round((used.ru_utime + used.ru_stime) * 1000, 1))

    def _bury(self, pid: int, child: Child, status: int, milliseconds: float) -> None:
        job, how = child.job, "missed" if child.job.point else "end"
        if os.WIFSIGNALED(status):
            stuck = time.monotonic() - child.since > STUCK and job.kind != "sweep"
            how = "stuck" if stuck else "random" if child.shot else "kill"
            if os.WTERMSIG(status) != signal.SIGKILL or (how == "kill" and not job.point):
                how = "failed"
        elif os.WEXITSTATUS(status) not in (0, AGAIN):
            how = "failed"
        if how == "kill":
            self._count[job.point] += 1
        if job.kind == "submit" and status != 0:
            self._again.extend(job.given)
        self._ended.append([job.kind, job.point, how, milliseconds])


def _taken(waiting: deque[Any], most: int) -> tuple[Any, ...]:
    return tuple(waiting.popleft() for _ in range(min(most, len(waiting))))


def _say(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--plan", required=True)
    Parent(parser.parse_args()).run()


if __name__ == "__main__":
    main()
