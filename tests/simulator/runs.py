"""Many histories in parallel, and their sums."""

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from tests.simulator.history import Outcome, play

CHUNK = 250


@dataclass(slots=True)
class Total:
    """Sums over many histories; `first` is the first that broke an invariant, by seed."""

    histories: int = 0
    steps: int = 0
    kills: int = 0
    pauses: int = 0
    effects: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.histories += 1
        self.steps += outcome.steps
        self.kills += outcome.kills
        self.pauses += outcome.pauses
        self.effects += outcome.effects
        self.ends.update(outcome.ends)
        if outcome.problem:
            self.failed.append(outcome)

    @property
    def first(self) -> Outcome | None:
        return min(self.failed, key=lambda outcome: outcome.seed, default=None)


def _chunk(bug: str | None, seeds: range) -> list[Outcome]:
    return [play(seed, bug) for seed in seeds]


def run(seed: int, histories: int, bug: str | None = None, jobs: int | None = None, *, stop: bool = False) -> Total:
    """Play histories seed, seed + 1, … in parallel. `stop`: not further than the chunk of the first failure."""
    total = Total()
    chunks = [range(at, min(at + CHUNK, seed + histories)) for at in range(seed, seed + histories, CHUNK)]
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn")) as pool:
        for outcomes in pool.map(partial(_chunk, bug), chunks):
            for outcome in outcomes:
                total.add(outcome)
            if stop and total.failed:
                pool.shutdown(cancel_futures=True)
                break
    return total


def how_to_repeat(outcome: Outcome, bug: str | None = None) -> str:
    planted = f" --bug {bug}" if bug else ""
    return f"SEED={outcome.seed} {outcome.problem}\nrepeat it: python -m tests.simulator --seed {outcome.seed}{planted}"
