"""A Celery application for the supervisor's tests: real workers, no Turnqueue."""

import os
from pathlib import Path

from celery import Celery

app = Celery("tiny", broker=os.environ.get("TURNQUEUE_BROKER_URL"))
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=True, broker_connection_retry_on_startup=True)


@app.task
def touch(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
