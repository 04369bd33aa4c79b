"""Budgets at their exact edge: the last unit is allowed, the next is not."""

from decimal import Decimal
from typing import Any

import pytest

from orchestrator.domain.model import Reason
from policy.budgets import Spent, cost, exhausted, output_limit
from policy.profile import Budgets, Prices

NOTHING: dict[str, Any] = {
    "turn": 1, "input_tokens": 0, "output_tokens": 0, "cost_usd": Decimal(0), "result_bytes": 0, "stale_turns": 0,
}  # fmt: skip


def spent(**changed: Any) -> Spent:
    return Spent(**(NOTHING | changed))


LIMITS = Budgets(
    turns=3, input_tokens=100, output_tokens=50, cost_usd=0.3, result_bytes=1000, no_progress_turns=2
)  # fmt: skip


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({"turn": 3}, None),
        ({"turn": 4}, Reason.TURN_BUDGET),
        ({"stale_turns": 1}, None),
        ({"stale_turns": 2}, Reason.NO_PROGRESS),
        ({"input_tokens": 99}, None),
        ({"input_tokens": 100}, Reason.TOKEN_BUDGET),
        ({"output_tokens": 49}, None),
        ({"output_tokens": 50}, Reason.TOKEN_BUDGET),
        ({"cost_usd": Decimal("0.299999999")}, None),
        ({"cost_usd": Decimal("0.3")}, Reason.COST_BUDGET),  # as written, not as the nearest binary fraction
        ({"result_bytes": 1000}, None),
        ({"result_bytes": 1001}, Reason.RESULT_BUDGET),
    ],
)
def test_edges(used: dict[str, Any], reason: Reason | None) -> None:
    assert exhausted(LIMITS, spent(**used)) is reason


def test_no_limit_of_that_kind() -> None:
    assert exhausted(Budgets(), spent(input_tokens=10**12, output_tokens=10**12, cost_usd=Decimal(10**6))) is None


def test_the_first_reason_is_stable() -> None:
    assert exhausted(LIMITS, spent(turn=4, stale_turns=2, input_tokens=100)) is Reason.TURN_BUDGET


@pytest.mark.parametrize(
    ("limit", "used", "asked", "expected"),
    [
        (None, 0, 2000, 2000),
        (None, 0, None, None),
        (50, 20, None, 30),
        (50, 20, 10, 10),
        (50, 20, 40, 30),
        (50, 50, None, 1),
    ],
)
def test_a_turn_may_generate_what_is_left(
    limit: int | None, used: int, asked: int | None, expected: int | None
) -> None:
    assert output_limit(Budgets(output_tokens=limit), spent(output_tokens=used), asked) == expected


def test_cost_is_exact() -> None:
    assert cost(Prices(input=0.4, cached=0.1, output=1.6), 1_000_000, 250_000, 500_000) == Decimal("1.125")
    assert cost(Prices(input=0.4, output=1.6), 1_000_000, 250_000, 0) == Decimal("0.4")
    assert cost(Prices(input=1), 10, 20, 0) == Decimal("0.00002")  # more cached than read: never a negative price
    assert cost(Prices(), 10**9, 0, 10**9) == 0
