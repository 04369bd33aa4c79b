"""Replay a workload folder through real servers and workers, and check everything that it says.

    python -m tests.replay DIR [--volume] [--provider NAME] [--stream] [--kill-every S [--seed N]] [--json]

Exit code 0 only when every task, batch, error case, authorization case and recorded conversation came out right and no
effect happened twice; 2 where it could not be replayed.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from embedded.stack import exit_on_sigterm
from orchestrator.domain.errors import TurnqueueError
from tests.replay.domains import Domain, domain
from tests.replay.kills import QUICK, Killer
from tests.replay.launch import Running, launch
from tests.replay.report import Report
from tests.replay.runner import OnProgress, Runner
from tests.replay.workload import Workload, digest


@dataclass(frozen=True, slots=True)
class Options:
    folder: Path
    volume: bool
    provider: str
    stream: bool
    workers: int
    in_flight: int
    kill_every: float | None
    seed: int
    json: bool
    keep: bool


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="a workload folder, such as .../workloads/tau_retail")
    parser.add_argument("--volume", action="store_true", help="also the large set of writes, and its batch")
    parser.add_argument("--provider", default="openai-responses", metavar="NAME", help="adapter (default %(default)s)")
    parser.add_argument("--stream", action="store_true", help="ask the model for streams")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes per kind (default %(default)s)")
    parser.add_argument(
        "--in-flight", type=int, default=32, metavar="N", help="operations at once, default %(default)s"
    )
    parser.add_argument("--kill-every", type=float, metavar="S", help="SIGKILL a random worker every S seconds or so")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of --kill-every (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.add_argument("--keep", action="store_true", help="keep data and logs; stderr says where")
    return Options(**vars(parser.parse_args(arguments)))


def load(folder: Path) -> tuple[Workload, Domain]:
    """Raises OSError, LookupError or ValueError where the folder cannot be replayed."""
    workload = Workload.load(folder)
    about = domain(workload.domain)
    if digest(workload.state()) != workload.base_digest:
        raise ValueError("db.json is not the state that the tasks start from")
    return workload, about


def replay(options: Options, workload: Workload, about: Domain, console: Console) -> Report:
    """Start everything, run it, stop everything. Raises TurnqueueError where something does not start."""
    with launch(
        about,
        provider=options.provider,
        stream=options.stream,
        workers=options.workers,
        keep=options.keep,
        env=QUICK if options.kill_every else {},
    ) as running:
        if options.keep:
            console.print(f"logs: {running.home / 'logs'}", markup=False)
        running.records.seed(workload.state())
        with progress(console) as on_progress, _killing(options, running) as killer:
            report = Runner(
                workload=workload,
                client=running.client,
                records=running.records,
                domain=about,
                model=running.model,
                on_progress=on_progress,
                recorded_ids=options.provider.startswith("openai"),
                in_flight=options.in_flight,
            ).run(volume=options.volume)
        report.kills = killer.kills if killer else None
        return report


@contextmanager
def _killing(options: Options, running: Running) -> Iterator[Killer | None]:
    if not options.kill_every:
        yield None
        return
    with Killer(running.stack, running.names, seed=options.seed, every=options.kill_every) as killer:
        yield killer


@contextmanager
def progress(console: Console) -> Iterator[OnProgress]:
    """One bar per phase on the console."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        shown: dict[str, TaskID] = {}

        def on_progress(phase: str, done: int, total: int) -> None:
            if phase not in shown:
                shown[phase] = bars.add_task(phase, total=total)
            bars.update(shown[phase], completed=done)

        yield on_progress


def main() -> int:
    options, console = parse(), Console(stderr=True)
    try:
        workload, about = load(options.folder)
    except (OSError, LookupError, ValueError) as problem:
        console.print(f"cannot replay: {type(problem).__name__}: {problem}", markup=False, soft_wrap=True)
        return 2
    try:
        with exit_on_sigterm():
            report = replay(options, workload, about, console)
    except TurnqueueError as problem:
        console.print(f"{problem.code}: {problem.message}", markup=False, soft_wrap=True)
        return 2
    if options.json:
        print(json.dumps(report.to_json()))
    else:
        report.show(Console())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
