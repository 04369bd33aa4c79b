"""A run in which the answers to COMMIT are lost and sessions are ended at random moments, and what the verifier says.

    python -m tests.chaos.commits --lost 1000 --terminations 500 --seed 1 [--json]

Two processes with eight threads each do the work of workers, sweeper and client (`commits_worker`) against PostgreSQL
behind the fault proxy, until so many COMMITs were durable and not answered and so many sessions that were at work were
ended by pg_terminate_backend. Besides, some COMMITs do not arrive, and some answers to statements outside of a
transaction (claims, leases) are lost. Then all is well, the work comes to rest, and `verify` and `promises` look.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.evidence import lines
from tests.chaos.world import World, wait_until, world

PROCESSES = 2
FAULTS = {"commit": 0.75, "uncommitted": 0.03, "answer": 0.02}
LEDGER = {"before": 0.02, "after": 0.03, "status": 0.03, "garbage": 0.02, "refuse": 0.02}
# Somebody who is at work, or anybody where nobody is.
_TERMINATE = """
    SELECT pg_terminate_backend(pid), state FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND datname = current_database() AND application_name <> 'chaos'
    ORDER BY (state = 'idle'), random() LIMIT 1
"""


@contextmanager
def _workers(here: World, seed: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    environ = {**os.environ, **here.environ, "PYTHONPATH": ".", "TURNQUEUE_POOL_SIZE": "4"}
    running = []
    direct = psycopg.conninfo.make_conninfo(here.dsn, application_name="chaos")
    for index in range(PROCESSES):
        command = [sys.executable, "-m", "tests.chaos.commits_worker", "--index", str(index), "--of", str(PROCESSES)]
        command += ["--seed", str(seed), "--folder", str(here.folder), "--direct", direct]
        with (here.folder / f"worker{index}.log").open("wb") as log:
            running.append(subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT))
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def run(options: argparse.Namespace) -> dict[str, Any]:
    since = time.monotonic()
    with world(options.seed, workers=0, proxied=("postgres",)) as here, _workers(here, options.seed) as running:
        here.ledger.control(faults=LEDGER)
        logs = [here.folder / f"worker{index}.log" for index in range(PROCESSES)]
        _say(f"seed {options.seed}, logs in {here.folder}")
        assert wait_until(lambda: all("ready" in log.read_text() for log in logs)), [log.read_text() for log in logs]
        _say(f"ready after {time.monotonic() - since:.0f} s")
        terminated = _disturb(here, options, running)
        (here.folder / "enough").touch()
        counts = here.proxies["postgres"].heal(reset=False)
        _say(f"{dict(counts)} {dict(terminated)} after {time.monotonic() - since:.0f} s, waiting for rest")
        rested = here.rest()
        (here.folder / "over").touch()
        alive = [process.wait(30) == 0 for process in running] if rested else []
        report = _report(options.seed, here, counts, terminated)
        if counts["commit"] < options.lost or terminated.total() < options.terminations:
            report["failure"] = f"too few: {counts['commit']} COMMITs lost, {terminated.total()} sessions ended"
        if not rested:
            report["failure"] = "it did not come to rest"
        if not all(alive):
            report["failure"] = "a worker met an error that is none of ours: " + "".join(_tail(log) for log in logs)
    return report | {"wall_s": round(time.monotonic() - since, 1)}


def _disturb(here: World, options: argparse.Namespace, running: list[subprocess.Popen[bytes]]) -> Counter[str]:
    """Until enough was lost and ended; how many sessions were ended, by the state they were in."""
    proxy, chosen = here.proxies["postgres"], random.Random(options.seed)
    terminated: Counter[str] = Counter()
    until = time.monotonic() + options.seconds
    with psycopg.connect(here.dsn, autocommit=True, application_name="chaos") as direct:
        counts = proxy.control(faults=FAULTS)
        while time.monotonic() < until and all(process.poll() is None for process in running):
            if counts["commit"] >= options.lost and terminated.total() >= options.terminations:
                break
            # Evenly over the run, as long as that is known.
            share = min(1.0, counts["commit"] / options.lost) if options.lost else 1.0
            if terminated.total() <= options.terminations * share:
                for done, state in direct.execute(_TERMINATE).fetchall():
                    terminated[state or "none"] += done
            time.sleep(chosen.uniform(0.0, 0.04))
            counts = proxy.counts()
    return terminated


def promises(here: World) -> list[dict[str, Any]]:
    """What callers were told, and is not so. An error that says no leaves nothing behind, unless another try with the
    same key did; one that says perhaps names the operation that there is, if there is one."""
    by_input = Counter(str(text) for [text] in here.sql("SELECT body->>'text' FROM items WHERE seq = 0"))
    known = {str(name) for [name] in here.sql("SELECT operation_id FROM operations")}
    told = {line["operation_id"] for line in lines(here.folder / "accepted")}
    broken = [{"what": "submitted once, made twice", "input": text} for text, n in by_input.items() if n > 1]
    for index in range(PROCESSES):
        unsure = lines(here.folder / f"unsure-{index}")
        for line in lines(here.folder / f"refused-{index}"):
            if line["key"] is None and by_input[line["input"]]:
                broken.append({"what": "refused, and there", **line})
        told |= {line["operation_id"] for line in unsure}
        broken += [{"what": "unsure without a name", **line} for line in unsure if not line["operation_id"]]
    broken += [{"what": "there, and nobody was told", "operation_id": name} for name in known - told]
    return broken


def _report(seed: int, here: World, counts: Counter[str], terminated: Counter[str]) -> dict[str, Any]:
    found = here.verify()
    broken = Counter(each["invariant"] for each in found["violations"])
    codes: Counter[str] = Counter()
    for index in range(PROCESSES):
        for line in lines(here.folder / f"codes-{index}"):
            codes.update(line)
    return {
        "seed": seed,
        "operations": found["counts"]["accepted"],
        "effects": found["counts"]["effects"],
        "lost_commits": counts["commit"],
        "commits_not_arrived": counts["uncommitted"],
        "lost_answers": counts["answer"],
        "commits_answered": counts["commits"],
        "terminated": terminated.total(),
        "terminated_in": dict(terminated),
        "unsure": sum(len(lines(here.folder / f"unsure-{index}")) for index in range(PROCESSES)),
        "refused": sum(len(lines(here.folder / f"refused-{index}")) for index in range(PROCESSES)),
        "codes": dict(codes),
        "duplicate_effects": broken["I1"],
        "lost_operations": broken["I2"],
        "unresolved_started": broken["I3"],
        "unknown_resolved": found["counts"]["unknown_resolved"],
        "unknown_open": found["counts"]["unknown_open"],
        "audit_breaks": broken["I8"],
        "other_violations": broken.total() - sum(broken[name] for name in ("I1", "I2", "I3", "I8")),
        "violations": found["violations"][:50],
        "promises_broken": promises(here),
        "counts": found["counts"],
    }


def _tail(path: Path) -> str:
    return path.read_text()[-2000:]


def _say(text: str) -> None:
    print(f"commits: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.commits")
    parser.add_argument("--lost", type=int, default=1000, help="COMMITs that are durable and not answered")
    parser.add_argument("--terminations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop disturbing after so long")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = run(options)
    print(json.dumps(report) if options.json else json.dumps(report, indent=2))
    failed = report["violations"] or report["promises_broken"] or "failure" in report
    if failed:
        _say(f"FAILED: SEED={options.seed}")
        _say(f"again: python -m tests.chaos.commits --lost {options.lost} --seed {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
