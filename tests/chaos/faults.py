"""What goes wrong in a run, and when: drawn from the seed, which names a run, though no exact interleaving."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psycopg

from orchestrator.failpoints import POINTS
from orchestrator.hints import HintPublisher
from tests.chaos.network import Network
from tests.chaos.world import LEASE, World

# The migration is killed once, before the run (tests.chaos.world).
REACHED = sorted(POINTS - {"migration.uncommitted"})
ARMED = 6  # points at once
GIVE_UP = 6.0  # seconds for an armed point to be reached
STOPPED = 4.0  # seconds for which the broker hangs; longer than a publisher waits
LEDGER = {
    "before": 0.03, "after": 0.03, "silent": 0.01, "unanswered": 0.01, "status": 0.03, "garbage": 0.02, "late": 0.05,
    "slow": 0.03, "refuse": 0.02, "hide": 0.06,
}  # fmt: skip
# So many kills come between two faults of a kind, unless a run asks for a number of each.
EVERY = {"flush": 25, "stop": 30, "dup": 10, "pg": 40, "broker": 30, "zombie": 12}
_ROWS = """
    SELECT 'orchestrator', 'turnqueue.advance', operation_id FROM operations
    UNION ALL SELECT queue, 'tool.' || tool, call_key FROM calls WHERE queue IS NOT NULL
    UNION ALL SELECT queue, 'tool.' || tool, action_id FROM actions
"""


class Faults:
    """`step` again and again does what is due; `killed` counts deaths of processes.

    `every`: kills between two faults of a kind.
    """

    def __init__(
        self, world: World, seed: int, kinds: set[str], say: Callable[[str], None], every: dict[str, int] = EVERY
    ) -> None:
        self.done: Counter[str] = Counter()
        self._world = world
        self._random = random.Random(seed)
        self._kinds = kinds
        self._say = say
        self._since: dict[str, float] = {}
        self._next_kill = 0.0
        self._every = every
        self._due = {kind: self._random.randint(1, every[kind]) for kind in sorted(kinds & every.keys())}
        self.network = Network(world, seed, say)
        self._hung: float | None = None  # when the stopped broker goes on
        self._stopped: dict[int, float] = {}  # zombies: process id -> when to wake it

    def killed(self) -> int:
        return self.done["sigkill"] + sum(action == "kill" for *_, action in self._world.fired())

    def step(self) -> None:
        if "kill" in self._kinds:
            self._rearm()
            self._kill_somebody()
        self._wake_zombies()
        self._wake_broker()
        self.network.step()
        for kind, due in self._due.items():
            if self.killed() >= due and self._hung is None:
                every = self._every[kind]
                self._due[kind] = due + self._random.randint((every + 1) // 2, max(1, every * 3 // 2))
                getattr(self, f"_{kind}")()
                self.done[kind] += 1
                self._say(kind)

    def finish(self) -> None:
        """No more of it."""
        self.network.finish()
        self._world.disarm()
        self._wake_zombies(everybody=True)
        self._wake_broker(at_once=True)

    # --- deaths ----------------------------------------------------------------------------------------------------

    def _rearm(self) -> None:
        """Keep some points armed, those first that killed least; one that is not reached makes room."""
        fired = self._world.fired()
        now = time.monotonic()
        hit = {f"{point}:{number}:{action}" for point, number, _, action in fired}
        for point, arm in list(self._world.arms.items()):
            if arm in hit or now - self._since[point] > GIVE_UP:
                self._world.disarm(point)
        often = Counter(point for point, *_ in fired)
        while len(self._world.arms) < ARMED:
            free = [point for point in REACHED if point not in self._world.arms]
            fewest = sorted(free, key=lambda point: (often[point], self._random.random()))
            point = self._random.choice(fewest[:ARMED])
            self._since[point] = now
            self._world.arm(point, self._random.randint(1, 3))

    def _kill_somebody(self) -> None:
        """At a moment that no point names."""
        if time.monotonic() < self._next_kill:
            return
        self._next_kill = time.monotonic() + self._random.expovariate(1 / 3.0)
        self.done["sigkill"] += self._world.kill(self._random.choice(self._world.names))

    # --- servers and messages --------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._world.flush_broker()

    def _stop(self) -> None:
        """The broker hangs: it keeps its connections and answers nothing. Kills go on meanwhile."""
        os.kill(self._world.broker_pid(), signal.SIGSTOP)
        self._hung = time.monotonic() + STOPPED

    def _wake_broker(self, *, at_once: bool = False) -> None:
        if self._hung is not None and (at_once or time.monotonic() > self._hung):
            os.kill(self._world.broker_pid(), signal.SIGCONT)
            self._hung = None

    def _broker(self) -> None:
        self._world.kill_broker()

    def _pg(self) -> None:
        self._world.kill_postgres()

    def _dup(self) -> None:
        """Every hint there could be, three times, shuffled, and some of rows that there are not."""
        with suppress(psycopg.OperationalError):
            hints = [(str(a), str(b), str(c)) for a, b, c in self._world.sql(_ROWS)]
            hints = self._random.sample(hints, min(len(hints), 60)) * 3
            hints += [("orchestrator", "turnqueue.advance", f"op_{n}") for n in range(5)]
            self._random.shuffle(hints)
            publisher = HintPublisher(self._world.settings)
            self.done["duplicated_hints"] += publisher.publish(hints)
            publisher.close()

    # --- zombies ---------------------------------------------------------------------------------------------------

    def _zombie(self) -> None:
        """Whoever sends a write next is stopped just before, for longer than its lease."""
        self._world.arm("write.sending", 1, "stop")
        self._since["write.sending"] = time.monotonic()

    def _wake_zombies(self, *, everybody: bool = False) -> None:
        now = time.monotonic()
        for *_, pid, action in self._world.fired():
            if action == "stop":
                self._stopped.setdefault(pid, now + LEASE * 2)
        for pid, at in self._stopped.items():
            if everybody or now > at:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
