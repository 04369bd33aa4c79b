"""One run of the fork harness from the first order to rest: what the parents are told and what they say."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.forks_feed import Feed
from tests.chaos.world import World, wait_until

Say = Callable[[str], None]
ASLEEP = 50  # zombies at once
LAG, MORE = 5, 10  # kills of submissions that may be too few, and then so many more submissions
FEED = 0.15  # seconds between two orders
LOOK = 3.0  # seconds between two looks at the ledger
PROGRESS = 5.0
# So many kills come between two faults of a kind.
EVERY = {"flush": 250, "pg": 2500}
REST = 300.0  # seconds, on a machine that has other things to do


class Reins:
    """A parent process, from outside."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._rest = b""
        self.ready = False
        self.waiting: dict[str, int] = {}
        self.ended: list[Any] = []
        self.stopped: list[Any] = []

    def listen(self) -> None:
        """Raises RuntimeError when the process is gone."""
        assert self._process.stdout is not None
        data = self._process.stdout.read() or b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.ready = self.ready or said.get("ready", False)
            self.waiting = said.get("waiting", self.waiting)
            self.ended += said.get("ended", ())
            self.stopped += said.get("stopped", ())
        if self._process.poll() is not None:
            raise RuntimeError(f"a parent ended: {Path(self._log.name).read_text()[-2000:]}")

    def order(self, **what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()

    def let_go(self) -> None:
        """It ends, and with it its children."""
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Doubles:
    """Reads on in the ledger's file. What it finds holds at any moment, unlike most of what the verifier checks."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._seen: Counter[tuple[str, str]] = Counter()

    def any(self) -> bool:
        """Whether some key has had two effects, or some attempt was sent twice."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            *whole, rest = file.read().split(b"\n")
            self._offset = file.tell() - len(rest)
        for line in map(json.loads, whole):
            if line["event"] in ("effect", "arrived"):
                self._seen[line["event"], line["key"] if line["event"] == "effect" else line["attempt"]] += 1
        return any(count > 1 for count in self._seen.values())


class Run:
    def __init__(self, here: World, parents: list[Reins], feed: Feed, least: Mapping[str, int], say: Say) -> None:
        self.here, self.feed = here, feed
        self.ends: Counter[tuple[str, str]] = Counter()  # (how, point it was armed with, or kind of work)
        self.cpu: Counter[tuple[str, str]] = Counter()  # the same, in milliseconds
        self.zombies = 0
        self._share = 0.0  # of the kills that are wanted
        self.faults: Counter[str] = Counter()
        self._parents, self._least, self._say = parents, least, say
        self._doubles = Doubles(here.ledger.path)
        self._since = self._said = self._fed = self._looked = time.monotonic()

    @property
    def kills(self) -> int:
        return sum(count for (how, _), count in self.ends.items() if how in ("kill", "random"))

    def few(self) -> list[str]:
        """Points that have not killed as often as they must."""
        return [point for point, least in self._least.items() if self.ends["kill", point] < least]

    def _short(self) -> float:
        """The share of its kills that the most backward point still lacks."""
        return max((1 - self.ends["kill", point] / least for point, least in self._least.items() if least), default=0.0)

    def wait_ready(self) -> None:
        def ready() -> bool:
            for parent in self._parents:
                parent.listen()
            return all(parent.ready for parent in self._parents)

        if not wait_until(ready, REST):
            raise RuntimeError("the parents did not become ready")
        self._since = time.monotonic()

    def kill(self, kills: int, zombies: int, seconds: float, faults: Sequence[str], *, stop_on_violation: bool) -> None:
        while time.monotonic() - self._since < seconds:
            self._share = min(1.0, self.kills / kills)
            self._step(max(1 - self.kills / kills, self._short()), max(0, zombies - self.zombies))
            if self.kills >= kills and self.zombies >= zombies and not self.few():
                return
            for kind in faults:
                if self.kills >= (self.faults[kind] + 1) * EVERY[kind]:
                    getattr(self, f"_{kind}")()
                    self.faults[kind] += 1
            if stop_on_violation and time.monotonic() - self._looked > LOOK:
                self._looked = time.monotonic()
                if self._doubles.any():
                    return

    def rest(self) -> bool:
        """No more deaths; False when it did not come to rest in time."""
        for parent in self._parents:
            parent.order(rest=True)
        settled = time.monotonic() + 1.0

        def at_rest() -> bool:
            self._step(0.0, 0)
            idle = not self.feed.asleep and not any(parent.waiting.get("submit") for parent in self._parents)
            return idle and time.monotonic() > settled and self.here.rest(0.0)

        return wait_until(at_rest, REST)

    def _flush(self) -> None:
        with self.here.broker() as broker:
            broker.flushall()

    def _pg(self) -> None:
        self.here.kill_postgres()

    def _step(self, left: float, zombies: int) -> None:
        """Listen, feed, wake. `left`: which share of the kills is still to come; `zombies`: how many."""
        time.sleep(0.02)
        for parent in self._parents:
            parent.listen()
            for kind, point, how, milliseconds in parent.ended:
                end = how, point if how in ("kill", "missed") else kind
                self.ends[end] += 1
                self.cpu[end] += milliseconds
            for worker, pid in parent.stopped:
                self.feed.stopped(worker, pid)
                self.zombies += 1
            parent.ended, parent.stopped = [], []
        now = time.monotonic()
        if now - self._fed > FEED:
            self._fed = now
            self.feed.wake()
            self.feed.hurry()
            self._feed(left, zombies)
        if now - self._said > PROGRESS:
            self._said = now
            rate = self.kills / (now - self._since)
            told = f"{self.kills} kills, {rate:.0f}/s, {self.feed.submitted} operations, {self.zombies} zombies"
            fewest = min(self._least, key=lambda point: self.ends["kill", point], default="")
            self._say(f"{told}, fewest at {fewest} ({self.ends['kill', fewest]})")

    def _feed(self, left: float, zombies: int) -> None:
        number = len(self._parents)
        due = self._least.get("submit.committed", 0) * self._share
        few = left > 0 and self.ends["kill", "submit.committed"] < due - LAG * (self._share < 1)
        idle = not any(parent.waiting.get("submit") for parent in self._parents)
        numbers = self.feed.numbers(number, left, MORE if few and idle else 0)
        approvals, messages = self.feed.approvals(number), self.feed.messages(number)
        underway = self.feed.asleep + sum(parent.waiting.get("zombies", 0) for parent in self._parents)
        share = -(-max(0, min(ASLEEP, zombies) - underway) // number)
        counts = {point: self.ends["kill", point] for point in self._least}
        for parent, mine, asked, due in zip(self._parents, numbers, approvals, messages, strict=True):
            parent.order(submit=mine, approvals=asked, messages=due, zombies=share, counts=counts)
            parent.waiting["zombies"] = parent.waiting.get("zombies", 0) + share
