"""The broker forgets everything, several times, in mid-run: PostgreSQL is the only truth and nothing is lost."""

from tests.conftest import redis_client
from tests.system.scene import Scene, wait_until


def test_flushall_in_mid_run_loses_nothing(played: Scene, broker_url: str) -> None:
    with redis_client(broker_url) as broker:
        orders = [f"ORD-5{number:05}" for number in range(0, 120, 10)]
        operations = [played.submit(order_id, delay=0.3) for order_id in orders]
        for wanted in (1, 2, 3):
            wait_until(lambda wanted=wanted: any(played.view(each).turns >= wanted for each in operations))
            broker.flushall()
        views = played.finish(*operations)
        assert {view.state for view in views} == {"COMPLETED"}
        for order_id in orders:
            assert sorted(row.kind for row in played.ledger(order_id)) == ["refund", "refund_draft"]
