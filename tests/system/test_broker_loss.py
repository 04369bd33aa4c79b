"""The broker forgets everything, several times, in mid-run: PostgreSQL is the only truth and nothing is lost."""

from collections.abc import Sequence
from functools import partial

from tests.brokers.access import forget
from tests.system.scene import Scene, wait_until


def _some(played: Scene, operations: Sequence[str], turns: int) -> bool:
    return any(played.view(each).turns >= turns for each in operations)


def test_flushall_in_mid_run_loses_nothing(played: Scene, broker_url: str) -> None:
    orders = [f"ORD-5{number:05}" for number in range(0, 120, 10)]
    operations = [played.submit(order_id, delay=0.3) for order_id in orders]
    for wanted in (1, 2, 3):
        wait_until(partial(_some, played, operations, wanted))
        forget(broker_url)
    views = played.finish(*operations)
    assert {view.state for view in views} == {"COMPLETED"}
    for order_id in orders:
        assert sorted(row.kind for row in played.ledger(order_id)) == ["refund", "refund_draft"]
