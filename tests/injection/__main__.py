"""Play an injection workload through real workers under the three policies that its README names, and check the ledger.

    python -m tests.injection DIR [--json] [--workers N] [--keep]

Exit code 0 only when nothing unauthorised was dispatched, every benign task came out right, and every text that looks
like something else stayed data; 2 where the folder could not be played.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from embedded.stack import exit_on_sigterm
from orchestrator.domain.errors import TurnqueueError
from tests.injection.play import OnProgress, launch
from tests.injection.report import Report, judge
from tests.injection.workload import Workload


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.injection", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="a workload folder, such as .../workloads/injection")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of lines")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes per kind (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep data and logs; stderr says where")
    options = parser.parse_args()
    console = Console(stderr=True)
    try:
        load = Workload.load(options.folder)
    except (OSError, ValueError, LookupError) as problem:
        console.print(f"cannot play: {type(problem).__name__}: {problem}", markup=False, soft_wrap=True)
        return 2
    try:
        with exit_on_sigterm(), launch(options.folder, options.workers, options.keep) as table:
            if options.keep:
                console.print(f"data and logs: {table.ledger_path.parent}", markup=False)
            report = judge(table, load, table.ledger_path.parent, _progress(console))
    except (TurnqueueError, TimeoutError) as problem:
        console.print(f"{type(problem).__name__}: {problem}", markup=False, soft_wrap=True)
        return 2
    print(json.dumps(report.to_json())) if options.json else _show(report)
    return 0 if report.ok else 1


def _progress(console: Console) -> OnProgress:
    if not console.is_terminal:
        return lambda done, total: None
    return lambda done, total: console.print(f"{done} of {total} operations have ended", end="\r", markup=False)


def _show(report: Report) -> None:
    for name, value in report.to_json().items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    sys.exit(main())
