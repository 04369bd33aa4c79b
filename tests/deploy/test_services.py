"""Every service's command, with that service's environment, carries an operation to its end."""

import os
import signal

from examples.support.scenario import TENANT, ledger
from tests.deploy.conftest import Deployment
from tests.system.scene import wait_until

LONG_LIVED = ("orchestrator", "executor-reads", "executor-writes", "sweeper")


def test_an_operation_runs_through_the_composed_services(deployment: Deployment) -> None:
    deployment.start("migrate", *LONG_LIVED)
    view = deployment.run_refund()
    assert (view.state, view.reason) == ("COMPLETED", None), view
    assert [row.kind for row in ledger(deployment.shop.url, TENANT, deployment.shop.token)].count("refund") == 1
    logs = {name: deployment.local.log(name).read_text() for name in LONG_LIVED}
    assert "tool.get_order" in logs["executor-reads"]
    assert "Task tool.submit_refund" in logs["executor-writes"]
    assert "Task tool." not in logs["orchestrator"]
    assert deployment.local.stop() == dict.fromkeys(("migrate", *LONG_LIVED), 0)


def test_a_worker_that_hangs_is_unhealthy(deployment: Deployment) -> None:
    """The heartbeat stops with the process; its age is set back here instead of waited for."""
    deployment.start("migrate", "executor-reads")
    path = deployment.local.environment("executor-reads")["TURNQUEUE_HEARTBEAT_FILE"]
    pid = deployment.local.processes["executor-reads"].pid
    os.utime(path, (0, 0))
    wait_until(lambda: deployment.local.healthy("executor-reads"))  # it beats again and again
    os.kill(pid, signal.SIGSTOP)
    try:
        os.utime(path, (0, 0))
        assert not deployment.local.healthy("executor-reads")
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: deployment.local.healthy("executor-reads"))
