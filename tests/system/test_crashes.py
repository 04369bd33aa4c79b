"""A worker dies by SIGKILL at the worst moments; the ledger of the downstream ends the same."""

import pytest

from embedded.servers import Servers
from tests.system.scene import Scene, scene, wait_until

ORDER = "ORD-200001"


def assert_one_refund(played: Scene, operation_id: str, order_id: str = ORDER) -> None:
    [view] = played.finish(operation_id)
    assert view.state == "COMPLETED", (view.state, view.reason)
    kinds = [row.kind for row in played.ledger(order_id)]
    assert sorted(kinds) == ["refund", "refund_draft"]
    assert [action.state for action in view.actions] == ["SUCCEEDED", "SUCCEEDED"]


def test_killed_during_the_model_request(servers: Servers, database_url: str, broker_url: str) -> None:
    with scene(servers, database_url, broker_url) as played:
        operation_id = played.submit(ORDER, delay=1.5)
        wait_until(lambda: len(played.model.requests(ORDER)) == 1)
        assert played.view(operation_id).state == "MODEL_REQUESTED"
        played.stack.kill("orchestrator")
        assert_one_refund(played, operation_id)
        first_turn = [each for each in played.model.requests(ORDER) if each["turn"] == 0]
        assert len(first_turn) == 2, "the turn was asked again, nothing of the first reply was used"


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        ("turn.claimed", 2),
        ("turn.replied", 2),
        ("turn.recorded", 2),
        ("write.before_started", 2),
        ("write.after_started", 2),  # between `started` and the downstream call
        ("write.after_effect", 2),  # after the effect and before its record
    ],
)
def test_killed_at(point: str, hit: int, servers: Servers, database_url: str, broker_url: str) -> None:
    order_id = f"ORD-3{abs(hash(point)) % 100000:05}"
    with scene(servers, database_url, broker_url, {"TURNQUEUE_FAILPOINTS": f"{point}:{hit}"}) as played:
        assert_one_refund(played, played.submit(order_id), order_id)


def test_killed_after_the_effect_leaves_the_evidence(servers: Servers, database_url: str, broker_url: str) -> None:
    """The outcome was unknown, was reconciled by asking the downstream, and was not sent again."""
    order_id = "ORD-400001"
    with scene(servers, database_url, broker_url, {"TURNQUEUE_FAILPOINTS": "write.after_effect:2"}) as played:
        operation_id = played.submit(order_id)
        assert_one_refund(played, operation_id, order_id)
        refund = next(each for each in played.view(operation_id).actions if each.tool == "submit_refund")
        tries = [each for each in played.view(operation_id).attempts if each.action_id == refund.action_id]
        assert [each.state for each in tries] == ["LOST"]
        assert refund.external_ref is not None
