"""Workers that die by SIGKILL in mid-replay, at random but by a seed."""

import random
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from orchestrator.domain.errors import Unavailable

# Locks of the dead are found soon, so that a replay with many deaths does not take for ever.
QUICK = {"TURNQUEUE_LEASE_SECONDS": "3", "TURNQUEUE_SWEEP_SECONDS": "0.5"}


class Killable(Protocol):
    def kill(self, name: str) -> int: ...


class Killer:
    """Kills one of `names` at a time; each is started again by the stack.

    As a context manager it does so by itself: `every` is the mean of the seconds between two kills.
    """

    def __init__(self, stack: Killable, names: Sequence[str], *, seed: int, every: float = 5.0) -> None:
        self.kills = 0
        self._stack = stack
        self._names = names
        self._random = random.Random(seed)
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)

    def kill(self) -> None:
        """One, now. A process that is just being started again counts as dead already."""
        try:
            self._stack.kill(self._random.choice(self._names))
        except Unavailable:
            return
        self.kills += 1

    def _run(self) -> None:
        while not self._over.wait(self._random.expovariate(1 / self._every)):
            self.kill()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
