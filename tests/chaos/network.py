"""The network of a run goes bad and good by turns, on the way to each server: `--faults proxy`."""

import random
import time
from collections import Counter
from collections.abc import Callable

from tests.chaos.proxy_link import KINDS
from tests.chaos.world import World

BAD, GOOD = (4.0, 8.0), (2.0, 4.0)  # seconds
AWAY = 0.3  # share of bad times in which nothing listens on one of the ways
# Per connection, chunk or statement (`proxy`). One turn of a model is some dozens of chunks to PostgreSQL.
_WIRE = {"drop": 0.03, "delay": 0.05, "reset": 0.004, "half": 0.004, "swallow": 0.001, "blackhole": 0.001}
RATES: dict[str, dict[str, float]] = {
    "postgres": {
        "drop": 0.03, "delay": 0.02, "reset": 0.001, "half": 0.001, "swallow": 0.0001, "blackhole": 0.0001,
        "commit": 0.06, "uncommitted": 0.02, "answer": 0.02,
    },
    "broker": _WIRE,
    "model": {**_WIRE, "reset": 0.02, "half": 0.02, "blackhole": 0.004},
    "ledger": {**_WIRE, "reset": 0.02, "half": 0.02, "blackhole": 0.004},
}  # fmt: skip


class Network:
    """`step` again and again changes the weather when its time has come."""

    def __init__(self, world: World, seed: int, say: Callable[[str], None]) -> None:
        self._proxies = world.proxies
        self._random = random.Random(f"network:{seed}")
        self._say = say
        self._bad = False
        self._until = 0.0

    def step(self) -> None:
        now = time.monotonic()
        if now < self._until or not self._proxies:
            return
        self._bad = not self._bad
        self._until = now + self._random.uniform(*(BAD if self._bad else GOOD))
        if not self._bad:
            self._heal(reset=True)
            return
        for name, proxy in self._proxies.items():
            proxy.control(faults=RATES[name], delay_s=0.1)
        if self._random.random() < AWAY:
            away = self._random.choice(sorted(self._proxies))
            self._proxies[away].control(refuse=True, reset_all=True)
            self._say(f"{away} is away")

    def finish(self) -> None:
        """Good from now on. What hangs is not reset: whoever waits for it has to find out."""
        self._heal(reset=False)

    def _heal(self, *, reset: bool) -> None:
        for proxy in self._proxies.values():
            proxy.heal(reset=reset)

    def done(self) -> dict[str, dict[str, int]]:
        """How often each kind went wrong, by server, and all together."""
        by_server = {name: self._kinds(proxy.counts()) for name, proxy in self._proxies.items()}
        return {"all": self._kinds(sum((Counter(each) for each in by_server.values()), Counter()))} | by_server

    @staticmethod
    def _kinds(counts: Counter[str]) -> dict[str, int]:
        return {kind: counts[kind] for kind in KINDS if counts[kind]}
