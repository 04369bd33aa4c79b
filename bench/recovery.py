"""`python -m bench.recovery [--queued N] [--read] [--json]`: FLUSHALL while N operations are queued, see
tests/recovery/flush.py; default lease and sweep, two workers with 16 threads, servers of its own."""

import argparse
import json
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from embedded.servers import EmbeddedServers
from embedded.stack import Worker
from tests.recovery.flush import measure
from tests.recovery.stage import stage

QUEUES = ("orchestrator", "submit", "reads", "writes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--queued", type=int, default=1000, help="operations (default %(default)s)")
    parser.add_argument("--read", action="store_true", help="each reads once before it answers")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="tq-bench-"))
    with (
        ExitStack() as opened,
        EmbeddedServers(home, {}) as servers,
        stage(servers, servers.database_url, servers.broker_url) as acted,
    ):
        opened.callback(shutil.rmtree, home, ignore_errors=True)
        workers = [acted.worker(Worker(f"all-{number}", QUEUES, 16)) for number in (1, 2)]
        acted.sweeper()
        found = asdict(measure(acted, servers.broker_url, workers, options.queued, read=options.read))
    print(json.dumps(found) if options.json else "  ".join(f"{name}={value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
