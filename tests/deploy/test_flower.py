"""Flower shows a task name per tool, and ids; nothing of what a tool was asked or what it answered."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from examples.support.scenario import INPUT, SUBJECT
from examples.support.script import AMOUNT_CENTS, ORDER_ID
from tests.deploy.conftest import PASSWORD, Deployment
from tests.system.scene import wait_until

TOOL_TASKS = {"tool.get_order", "tool.get_refund_policy", "tool.draft_refund", "tool.submit_refund"}
ADVANCE = "turnqueue.advance"


@pytest.fixture
def variables() -> dict[str, str]:
    return {"TURNQUEUE_SEND_EVENTS": "1"}


@pytest.fixture
def flower(deployment: Deployment) -> Iterator[httpx.Client]:
    deployment.start("migrate", "flower", "orchestrator", "executor-reads", "executor-writes", "sweeper")
    port = deployment.local.environment("flower")["FLOWER_PORT"]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", auth=("ops", PASSWORD), trust_env=False) as client:
        # It answers before it listens to events, and what came earlier it never learns.
        wait_until(lambda: client.get("/metrics").text.count("\nflower_worker_online{") == 3)
        yield client


def _tasks(flower: httpx.Client) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = flower.get("/api/tasks").raise_for_status().json()
    return found


def _all_done(flower: httpx.Client) -> bool:
    tasks = _tasks(flower).values()
    return TOOL_TASKS | {ADVANCE} <= {task["name"] for task in tasks if task["state"] == "SUCCESS"}


def test_names_per_tool_and_ids_only(deployment: Deployment, flower: httpx.Client) -> None:
    view = deployment.run_refund()
    assert view.state == "COMPLETED"
    wait_until(lambda: _all_done(flower))
    tasks = _tasks(flower)
    pages = {
        "/api/tasks": flower.get("/api/tasks").text,
        "/tasks": flower.get("/tasks").text,
        "/metrics": flower.get("/metrics").text,
        "/workers": flower.get("/workers").text,
    }
    for task_id in tasks:
        pages[f"/task/{task_id}"] = flower.get(f"/task/{task_id}").raise_for_status().text
        pages[f"/api/task/info/{task_id}"] = flower.get(f"/api/task/info/{task_id}").raise_for_status().text
    assert "tool.get_order" in pages["/metrics"]
    refund = next(action for action in view.actions if action.tool == "submit_refund")
    texts = [ORDER_ID, INPUT, "teapot", SUBJECT, str(AMOUNT_CENTS), "damaged", "DRF-", "Please refund"]
    texts += [view.final_text or "?", refund.external_ref or "?", deployment.shop.token]
    for where, page in pages.items():
        for text in texts:
            assert text not in page, (where, text)
    for task in tasks.values():
        assert task["result"] in (None, "None"), task
        assert task["kwargs"] in (None, "{}"), task
        assert task["args"] is None or len(task["args"]) < 60, task


def test_a_password_is_asked_and_nothing_can_be_changed(deployment: Deployment, flower: httpx.Client) -> None:
    assert flower.get("/api/tasks", auth=("ops", "wrong")).status_code == 401
    worker = "reads@" + _host(flower)
    assert flower.post(f"/api/worker/shutdown/{worker}").status_code == 403
    assert flower.post("/api/task/apply/turnqueue.advance", json={"args": ["op_1"]}).status_code == 403
    assert deployment.local.processes["executor-reads"].poll() is None


def _host(flower: httpx.Client) -> str:
    wait_until(lambda: bool(flower.get("/api/workers", params={"refresh": "1"}).json()))
    name: str = next(iter(flower.get("/api/workers").json()))
    return name.split("@")[1]


@pytest.mark.parametrize("variables", [{"FLOWER_BASIC_AUTH": ""}])
def test_without_a_password_it_does_not_start(deployment: Deployment, variables: dict[str, str]) -> None:
    process = deployment.local.start("flower")
    assert process.wait(30) != 0
    assert "set FLOWER_BASIC_AUTH" in deployment.local.log("flower").read_text()
