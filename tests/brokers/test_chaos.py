"""The chaos harness on RabbitMQ: workers die, queues are deleted, the broker is killed, hangs and delivers twice."""

import json
import os
import subprocess
import sys

import pytest

from tests.brokers.rabbitmq import need_rabbitmq

COMMAND = "-m tests.chaos --harness real --kills 24 --each 1 --seed 5 --faults kill,flush,broker,stop,dup,zombie"


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_nothing_is_lost_doubled_or_left_open() -> None:
    need_rabbitmq()
    done = subprocess.run(
        [sys.executable, *COMMAND.split(), "--seconds", "240", "--json"],
        env={**os.environ, "TQ_TEST_BROKER": "amqp"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert (report["violations"], done.returncode) == ([], 0), done.stderr
    assert report["kills"] > 0
    assert report["operations"] > 0
    assert {kind for kind in ("flush", "broker", "stop", "dup") if not report["faults"].get(kind)} == set(), done.stderr
