"""The fork harness: ten thousand SIGKILLs in minutes, on the system's real code.

    report = run(seed=1, kills=10_000, per_point=300, zombies=200)

A real worker takes a second to start, which bounds how often one can be killed. Here one parent per core has imported
everything and forks children that live for some tens of milliseconds: each does one piece of real work (see
`forks_child`) against real PostgreSQL, Valkey, the ledger and the scripted model over HTTP, with a failpoint armed for
it alone, and dies there. Work that died is due again as soon as its lease (LEASE) is over; the sweeper is such a child
too. When enough have died, unarmed children bring everything to rest, and `verify`, which knows nothing of all this,
looks at what is left.

`run` is also there for whoever looks for planted bugs: `parent` is the command of a parent, which may install what it
likes before it runs `tests.chaos.forks_parent` (it gets that module's arguments). Nothing of the code under test runs
anywhere else, but for the first migration.
"""

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from orchestrator.failpoints import POINTS
from tests.chaos.faults import LEDGER
from tests.chaos.forks_feed import Feed
from tests.chaos.forks_run import Reins, Run, Say
from tests.chaos.forks_scratch import Scratch
from tests.chaos.forks_script import warming
from tests.chaos.world import QUICK, World, world

PARENT = (sys.executable, "-m", "tests.chaos.forks_parent")
LEASE = 2.0
ENV = {
    "TURNQUEUE_LEASE_SECONDS": str(LEASE),
    "TURNQUEUE_SWEEP_SECONDS": "0.1",
    "TURNQUEUE_HINT_LIMIT": "64",
    "TURNQUEUE_POOL_SIZE": "2",
    "TURNQUEUE_CHECK_LIMIT": "3",
    "TURNQUEUE_ANCHOR_SECONDS": "1",
}
REVISIONS = ("", "0001")  # from which migrations are killed, by parent: an empty database, and the first release's
AT_ONCE = 5  # children of a parent, beside the sweeper and zombies
LEAST, KILLS_EACH = 20, 20  # operations in flight at least, and kills for each of them
SHOTS = 0.12  # share of kills at no particular moment
# Kills beyond `per_point` go to these, whose children cost the least.
CHEAP = ("turn.claimed", "turn.replied", "read.claimed", "read.answered", "write.before_started", "write.after_started")
FAULTS = ("flush", "pg")


def run(
    *,
    seed: int = 1,
    kills: int = 1000,
    per_point: int = 0,
    points: Sequence[str] = (),
    zombies: int = 0,
    seconds: float = 3600.0,
    faults: Sequence[str] = FAULTS,
    stop_on_violation: bool = False,
    parent: Sequence[str] = PARENT,
    in_flight: int = 250,
    keep: Path | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Kill `kills` children, each of `points` (all, if none are named) at least `per_point` times, wake `zombies` that
    were stopped before their request left, come to rest, verify.

    `seconds` ends the killing early, `stop_on_violation` as soon as the ledger shows two effects of a key or an attempt
    sent twice. `faults`: `flush` (of the broker), `pg` (SIGKILL of PostgreSQL). `in_flight`: operations at once, in a
    long run.

    The report is that of `tests.chaos`, with "points" (kills at each), "random" (kills at none), "children", "zombies",
    "zombie_late_requests", "zombie_late_effects", "violations" (the first 50), "killing_s", "wall_s" and, where the run
    itself went wrong, "failure" (text).
    """
    since = time.monotonic()
    chosen = sorted(points or POINTS)
    with ExitStack() as opened:
        here = opened.enter_context(world(seed, workers=0, env=ENV))
        scratch = [Scratch(here.servers, revision) for revision in REVISIONS]
        plan = json.dumps({"points": _targets(kills, chosen, per_point), "at_once": AT_ONCE, "shots": SHOTS})
        parents = []
        for index, database in enumerate(scratch, 1):
            command = [*parent, "--index", str(index), "--seed", str(seed), "--folder", str(here.folder)]
            command += ["--scratch", database.url, "--plan", plan]
            here.model.add(*warming(seed, index))
            parents.append(Reins(command, _environ(here), here.folder / f"parent{index}.log"))
            opened.callback(parents[-1].let_go)
        feed = Feed(here, seed, max(LEAST, min(in_flight, kills // KILLS_EACH)))
        running = Run(here, parents, feed, dict.fromkeys(chosen, per_point), say)
        running.wait_ready()
        here.ledger.control(faults=LEDGER, late_s=0.3, hide_s=2.5)
        say(f"seed {seed}, ready after {time.monotonic() - since:.0f} s, logs in {here.folder}")
        killing = time.monotonic()
        running.kill(kills, zombies, seconds, faults, stop_on_violation=stop_on_violation)
        killing = time.monotonic() - killing
        say(f"{running.kills} kills after {time.monotonic() - since:.0f} s, waiting for rest")
        rested = running.rest()
        for each in parents:
            each.let_go()
        report = _report(seed, running, here.verify()) | {"killing_s": round(killing, 1)}
        problems = [text for database in scratch for text in database.problems(here.servers.database_url)]
        failure = "" if stop_on_violation and report["violations"] else _failure(running, rested, problems)
        if failure:
            report["failure"] = failure
        if keep:
            shutil.copytree(here.folder, keep, dirs_exist_ok=True)
    return report | {"wall_s": round(time.monotonic() - since, 1)}


def _targets(kills: int, points: Sequence[str], per_point: int) -> dict[str, int]:
    """How often each point is to kill, so that with those at random all of it comes to about `kills`."""
    rest = max(0, round(kills * (1 - SHOTS)) - per_point * len(points))
    cheap = [point for point in points if point in CHEAP and per_point] or points
    return {point: per_point + (rest // len(cheap) if point in cheap else 0) for point in points}


def _environ(here: World) -> dict[str, str]:
    return {
        **os.environ, **QUICK, **ENV,
        "CHAOS_LEDGER_URL": here.ledger.url,
        "CHAOS_MODEL_URL": f"{here.model.url}/v1",
        "TURNQUEUE_FAILPOINT_DIR": str(here.folder),
        "TURNQUEUE_ANCHOR_FILE": str(here.folder / "anchors"),
        "TURNQUEUE_DATABASE_URL": here.servers.database_url,
        "TURNQUEUE_BROKER_URL": here.servers.broker_url,
        "TURNQUEUE_MODULES": "tests.chaos.tools",
    }  # fmt: skip


def _report(seed: int, running: Run, found: dict[str, Any]) -> dict[str, Any]:
    broken = Counter(each["invariant"] for each in found["violations"])
    counts, fired = found["counts"], running.here.fired()
    named = ("I1", "I2", "I3", "I6", "I8")
    late = {event: running.feed.late(running.here.ledger.lines(event)) for event in ("arrived", "effect")}
    return {
        "seed": seed,
        "operations": counts["accepted"],
        "kills": running.kills,
        "faults": dict(running.faults) | {"zombie": running.zombies},
        "points": {point: count for (how, point), count in sorted(running.ends.items()) if how == "kill"},
        "random": sum(count for (how, _), count in running.ends.items() if how == "random"),
        "children": sum(running.ends.values()),
        "ends": {f"{how} {kind}": count for (how, kind), count in sorted(running.ends.items()) if how != "kill"},
        "cpu_ms": {f"{how} {kind}": round(ms / running.ends[how, kind]) for (how, kind), ms in running.cpu.items()},
        "last_failpoints": [f"{point}:{hit}:{action}" for point, hit, _, action in fired[-3:]],
        "zombies": running.zombies,
        "zombie_late_requests": late["arrived"],
        "zombie_late_effects": late["effect"],
        "duplicate_effects": broken["I1"],
        "lost_operations": broken["I2"],
        "unresolved_started": broken["I3"],
        "unknown_resolved": counts["unknown_resolved"],
        "unknown_open": counts["unknown_open"],
        "audit_breaks": broken["I8"],
        "slot_overruns": broken["I6"],
        "other_violations": sum(count for name, count in broken.items() if name not in named),
        "counts": counts,
        "violations": found["violations"][:50],
    }


def _failure(running: Run, rested: bool, problems: Sequence[str]) -> str:
    """Why the run proves nothing; "" where it does."""
    if not rested:
        return "it did not come to rest"
    broken = {end: count for end, count in running.ends.items() if end[0] in ("failed", "stuck")}
    if broken:
        return f"children failed or hung: {broken}"
    if running.few():
        return f"too few kills at {', '.join(running.few())}"
    fired = sum(action == "kill" for *_, action in running.here.fired()) - 1  # the world kills one migration
    reaped = sum(count for (how, _), count in running.ends.items() if how == "kill")
    if fired != reaped:
        return f"{fired} children came to their failpoint, {reaped} died of it"
    return "; ".join(problems)
