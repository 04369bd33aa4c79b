"""`python -m bench [--n N] [--inflight K] [--json]`: the workload of ../shared/bench through Turnqueue."""

import argparse
import json
import sys

from bench.turnqueue_run import run
from embedded.stack import Worker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--n", type=int, default=400, help="operations (default %(default)s)")
    parser.add_argument("--inflight", type=int, nargs="*", default=[16, 64], help="operations in flight")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds the model takes")
    parser.add_argument("--threads", type=int, default=16, help="threads per worker process")
    parser.add_argument("--split", action="store_true", help="one process per queue kind instead of two for all")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    for inflight in options.inflight:
        result = run(options.n, inflight, workers(options.threads, split=options.split), options.delay).as_json()
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            print("  ".join(f"{name}={value}" for name, value in result.items()), flush=True)
    return 0


def workers(threads: int, *, split: bool) -> tuple[Worker, ...]:
    if split:
        return (
            Worker("orchestrator", ("orchestrator", "submit"), threads),
            Worker("executors", ("reads", "writes"), threads),
        )
    queues = ("orchestrator", "submit", "reads", "writes")
    return (Worker("all-1", queues, threads), Worker("all-2", queues, threads))


if __name__ == "__main__":
    sys.exit(main())
