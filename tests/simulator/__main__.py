"""`python -m tests.simulator --seed S` repeats one history step by step; `--histories N` runs many, from S on."""

import argparse
import json
import sys
import time
from collections.abc import Iterable

from tests.simulator.history import BUGS, play
from tests.simulator.runs import how_to_repeat, run


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
