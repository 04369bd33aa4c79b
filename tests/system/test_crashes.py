"""A worker dies by SIGKILL at the worst moments; the ledger of the downstream ends the same."""

import pytest

from orchestrator.failpoints import POINTS
from tests.system.scene import Scene, wait_until

# What a worker passes in every operation; the others are killed in tests/chaos.
PASSED = sorted(point for point in POINTS if point.startswith(("turn.", "read.", "write.")))


def assert_one_refund(played: Scene, operation_id: str, order_id: str) -> None:
    [view] = played.finish(operation_id)
    assert view.state == "COMPLETED", (view.state, view.reason)
    assert sorted(row.kind for row in played.ledger(order_id)) == ["refund", "refund_draft"]
    assert [action.state for action in view.actions] == ["SUCCEEDED", "SUCCEEDED"]


def test_killed_during_the_model_request(played: Scene) -> None:
    order_id = "ORD-200001"
    operation_id = played.submit(order_id, delay=1.5)
    wait_until(lambda: len(played.model.requests(order_id)) == 1)
    assert played.view(operation_id).state == "MODEL_REQUESTED"
    played.stack.kill("orchestrator")
    assert_one_refund(played, operation_id, order_id)
    first_turn = [each for each in played.model.requests(order_id) if each["turn"] == 0]
    assert len(first_turn) == 2, "the turn was asked again, nothing of the first reply was used"


@pytest.mark.parametrize("point", PASSED)
def test_killed_at(point: str, played: Scene) -> None:
    """The second hit: the refund for writes (the first is its draft), a turn with results for turns."""
    order_id = f"ORD-3{PASSED.index(point) * 10:05}"
    played.arm(point, 2)
    assert_one_refund(played, played.submit(order_id), order_id)
    assert played.fired()


def test_killed_after_the_effect_leaves_the_evidence(played: Scene) -> None:
    """The outcome was unknown, was found by asking the downstream, and the refund was not sent again."""
    order_id = "ORD-400001"
    played.arm("write.after_effect", 2)
    operation_id = played.submit(order_id)
    assert_one_refund(played, operation_id, order_id)
    view = played.view(operation_id)
    refund = next(each for each in view.actions if each.tool == "submit_refund")
    assert [each.state for each in view.attempts if each.action_id == refund.action_id] == ["LOST"]
    assert refund.external_ref is not None
