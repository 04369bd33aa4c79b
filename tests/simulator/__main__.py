"""`python -m tests.simulator --seed S` repeats one history step by step; `--histories N` runs many, from S on."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from tests.simulator.history import BUGS, Outcome, play

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


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator")
    parser.add_argument("--seed", type=int, default=0, help="the first history, or the only one")
    parser.add_argument("--histories", type=int, default=1)
    parser.add_argument("--bug", choices=BUGS, help="plant one wrong rule")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    if asked.histories == 1:
        return _one(asked.seed, asked.bug)
    since = time.monotonic()
    total = run(asked.seed, asked.histories, asked.bug, asked.jobs)
    figures = {
        "seed": asked.seed, "histories": total.histories, "steps": total.steps, "kills": total.kills,
        "pauses": total.pauses, "effects": total.effects, "failed": len(total.failed), "ends": dict(total.ends),
        "wall_s": round(time.monotonic() - since, 1),
    }  # fmt: skip
    print(json.dumps(figures) if asked.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    if total.first:
        print(how_to_repeat(total.first, asked.bug), file=sys.stderr)
    return 1 if total.first else 0


def _one(seed: int, bug: str | None) -> int:
    outcome = play(seed, bug, trace=True)
    print("\n".join(outcome.trace))
    print(f"SEED={seed} {outcome.problem or 'every invariant holds'}")
    return 1 if outcome.problem else 0


if __name__ == "__main__":
    sys.exit(main())
