"""One worker process of `turnqueue up`, `run` and the demo: `python -m orchestrator.worker -Q orchestrator,submit`.

Runs what `celery -A orchestrator.tasks worker` runs, with the options of the same letters, and gossip and mingle off.
That command also imports a terminal interface and Flower, which is half of the time that a worker takes to start; on a
machine of its own a worker starts rarely, and there Celery's command is the one to use.
"""

import argparse
import gc
import socket
import sys
from importlib import import_module


def main() -> int:
    """The worker's own exit status, once it has ended."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.worker")
    parser.add_argument("-A", dest="app", default="orchestrator.tasks", help="module with the Celery application `app`")
    parser.add_argument("-Q", dest="queues", required=True, help="with commas between them")
    parser.add_argument("-n", dest="name", default="worker@%h", help="%%h is the host's name")
    parser.add_argument("-P", dest="pool", default="threads")
    parser.add_argument("-c", dest="concurrency", type=int, default=8)
    parser.add_argument("-l", dest="log_level", default="INFO")
    options = parser.parse_args()
    gc.disable()  # the imports leave no garbage, and looking for it would be a sixth of their time
    app = import_module(options.app).app
    gc.freeze()
    gc.enable()
    name = options.name.replace("%h", socket.gethostname())
    worker = app.Worker(
        hostname=name, queues=options.queues.split(","), pool_cls=options.pool,
        concurrency=options.concurrency, loglevel=options.log_level, without_gossip=True, without_mingle=True,
    )  # fmt: skip
    worker.start()
    return worker.exitcode or 0


if __name__ == "__main__":
    sys.exit(main())
