"""A run that kills, and what the verifier makes of it.

    python -m tests.chaos --kills 300 --seed 1 [--faults kill,flush,broker,stop,dup,pg,zombie] [--each N] [--json]
    python -m tests.chaos --kills 10000 --per-point 300 --zombies 200 --harness fork --json
    python -m tests.chaos --short --seed 7 --json

`--harness real` kills real Celery workers, about one in a second; `fork` forks of a process that has imported
everything, dozens in a second (see `forks`); `both` is REAL real ones and the rest forks, and the default where there
are more than that. `--each`, `proxy` and `--workers` are of the real one.
`--short` and `--long` are all of it together, as `campaign` says.
`--faults ...,proxy` puts proxies before every server; with nothing to be killed the run lasts for `--seconds`.
Exit status 1 when something was lost, doubled or left behind; then seed, last failpoint and the command are printed.
"""

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos import campaign, forks
from tests.chaos.faults import EVERY, LEDGER, Faults
from tests.chaos.world import PROXIED, World, world

KINDS = ("kill", *EVERY)
REAL = 30  # kills of real workers in a run of both harnesses
FORKS_PER_ZOMBIE = 50


def _say(text: str) -> None:
    print(f"chaos: {text}", file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    since = time.monotonic()
    kinds = set(options.faults.split(","))
    client = ("--in-flight", str(options.in_flight))
    proxied = PROXIED if "proxy" in kinds else ()
    with world(options.seed, workers=options.workers, client=client, proxied=proxied) as here:
        _say(f"seed {options.seed}, logs in {here.folder}")
        here.ledger.control(faults=LEDGER, late_s=0.4, hide_s=4.0)
        _say(f"ready after {time.monotonic() - since:.0f} s")
        every = {kind: max(1, options.kills // options.each) if options.each else EVERY[kind] for kind in EVERY}
        faults = Faults(here, options.seed, kinds, _say, every)
        _disturb(here, faults, options, since)
        (here.folder / "enough").touch()
        faults.finish()
        _say(f"{faults.killed()} kills after {time.monotonic() - since:.0f} s, waiting for rest")
        rested = here.rest()
        found = here.verify()
        report = _report(options.seed, found, faults, here)
        if few := _too_few(options, faults):
            report["failure"] = few
        if not rested:
            report["failure"] = "it did not come to rest"
        if options.keep:
            shutil.copytree(here.folder, options.keep, dirs_exist_ok=True)
    return report | {"wall_s": round(time.monotonic() - since, 1)}


def _disturb(here: World, faults: Faults, options: argparse.Namespace, since: float) -> None:
    said = 0
    wanted = set(options.faults.split(",")) & EVERY.keys()

    def enough() -> bool:
        return (
            "kill" in options.faults
            and faults.killed() >= options.kills
            and all(faults.done[kind] >= options.each for kind in wanted)
        )

    while not enough() and time.monotonic() - since < options.seconds:
        faults.step()
        here.stack.check()
        if faults.killed() >= said + 25:
            said = faults.killed()
            _say(f"{said} kills after {time.monotonic() - since:.0f} s")
        time.sleep(0.03)


def _too_few(options: argparse.Namespace, faults: Faults) -> str:
    """Where a number of each was asked for, what there was too little of when the seconds were over; else ""."""
    if not options.each:
        return ""
    few = {kind: faults.done[kind] for kind in set(options.faults.split(",")) & EVERY.keys()}
    few = {kind: number for kind, number in few.items() if number < options.each}
    if faults.killed() < options.kills:
        few["kill"] = faults.killed()
    return f"too few: {few}" if few else ""


def _report(seed: int, found: dict[str, Any], faults: Faults, here: World) -> dict[str, Any]:
    broken = Counter(each["invariant"] for each in found["violations"])
    counts = found["counts"]
    return {
        "seed": seed,
        "operations": counts["accepted"],
        "kills": faults.killed(),
        "faults": dict(faults.done)
        | {"zombie": sum(action == "stop" for *_, action in here.fired()), "proxy": faults.network.done()},
        "points": dict(sorted(Counter(point for point, _, _, action in here.fired() if action == "kill").items())),
        "last_failpoints": [f"{point}:{hit}:{action}" for point, hit, _, action in here.fired()[-3:]],
        "duplicate_effects": broken["I1"],
        "lost_operations": broken["I2"],
        "unresolved_started": broken["I3"],
        "unknown_resolved": counts["unknown_resolved"],
        "unknown_open": counts["unknown_open"],
        "audit_breaks": broken["I8"],
        "slot_overruns": broken["I6"],
        "other_violations": sum(broken[name] for name in ("I4", "I5", "I7", "I10", "I11")),
        "counts": counts,
        "violations": found["violations"][:50],
    }


def _forks(options: argparse.Namespace, kills: int) -> dict[str, Any]:
    kinds = options.faults.split(",")
    zombies = options.zombies if options.zombies is not None else kills // FORKS_PER_ZOMBIE * ("zombie" in kinds)
    return forks.run(
        seed=options.seed, kills=kills, per_point=options.per_point, zombies=zombies, seconds=options.seconds,
        faults=[kind for kind in kinds if kind in forks.FAULTS], keep=options.keep, say=_say,
    )  # fmt: skip


def _sum(one: Any, other: Any) -> Any:
    """Of two reports: numbers and lists add up, name by name."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict):
        return {name: _sum(one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])}
    return one if isinstance(one, str) else one + other


def _both(options: argparse.Namespace) -> dict[str, Any]:
    forked = _forks(options, options.kills - REAL)
    options.kills = REAL
    real = run(options)
    shares = {"forked": forked["kills"], "real": real["kills"]}
    return dict(_sum(forked, real)) | {"seed": options.seed, "harness": shares}


def _harness(options: argparse.Namespace) -> str:
    if options.harness:
        return str(options.harness)
    real = options.each or options.kills <= REAL or not {"kill"} <= {*options.faults.split(",")} - {"proxy"}
    return "real" if real or "proxy" in options.faults else "both"


def _complain(report: dict[str, Any], command: str) -> None:
    last = ",".join(report["last_failpoints"])
    _say(f"FAILED: SEED={report['seed']} FAILPOINT={last} violations={len(report['violations'])}")
    if "failure" in report:
        _say(report["failure"])
    _say(f"again: {command}")


def _command(options: argparse.Namespace, harness: str) -> str:
    """What repeats the run, with what differs from what is left out."""
    command = f"python -m tests.chaos --kills {options.kills} --seed {options.seed} --harness {harness}"
    given = {"faults": ",".join(KINDS), "per_point": 0, "zombies": None, "each": 0, "workers": 2, "in_flight": 24}
    for name, default in given.items():
        if (value := getattr(options, name)) != default:
            command += f" --{name.replace('_', '-')} {value}"
    return f"{command} --json"


def _campaign(options: argparse.Namespace) -> int:
    name, lanes = ("--short", campaign.SHORT) if options.short else ("--long", campaign.LONG)
    report = campaign.run(lanes, options.seed, _say)
    return _end(report, f"python -m tests.chaos {name} --seed {options.seed} --json", as_json=options.json)


def _end(report: dict[str, Any], command: str, *, as_json: bool) -> int:
    """Print it; the exit status."""
    print(json.dumps(report) if as_json else json.dumps(report, indent=2))
    failed = bool(report["violations"]) or "failure" in report
    if failed:
        _complain(report, command)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--short", action="store_true", help="all harnesses, as in CI; takes --seed and --json")
    whole.add_argument("--long", action="store_true", help="the same three times over, and more")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default=",".join(KINDS))
    parser.add_argument("--harness", choices=("fork", "real", "both"), help=f"above {REAL} kills both, else real")
    parser.add_argument("--per-point", type=int, default=0, help="at least so many kills at each failpoint, of forks")
    parser.add_argument("--zombies", type=int, help=f"of forks; else one in {FORKS_PER_ZOMBIE} kills")
    parser.add_argument("--each", type=int, default=0, help="at least so many faults of each kind, evenly spread")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop disturbing after so long")
    parser.add_argument("--workers", type=int, default=2, help="of each kind")
    parser.add_argument("--in-flight", type=int, default=24)
    parser.add_argument("--keep", type=Path, help="copy logs, ledger and failpoints there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.short or options.long:
        return _campaign(options)
    harness = _harness(options)
    command = _command(options, harness)
    match harness:
        case "fork":
            report = _forks(options, options.kills)
        case "both":
            report = _both(options)
        case _:
            report = run(options)
    return _end(report, command, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
