"""Which budget, if any, ends the operation before its next turn. Pure: counts in, reason out."""

from dataclasses import dataclass
from decimal import Decimal

from orchestrator.domain.model import Reason
from policy.profile import Budgets, Prices


@dataclass(frozen=True, slots=True)
class Spent:
    """What an operation has used. `turn` counts the turn about to be asked."""

    turn: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    result_bytes: int
    stale_turns: int


def exhausted(budgets: Budgets, spent: Spent) -> Reason | None:
    """The first budget that leaves no room for another turn."""
    if spent.turn > budgets.turns:
        return Reason.TURN_BUDGET
    if spent.stale_turns >= budgets.no_progress_turns:
        return Reason.NO_PROGRESS
    if budgets.input_tokens is not None and spent.input_tokens >= budgets.input_tokens:
        return Reason.TOKEN_BUDGET
    if budgets.output_tokens is not None and spent.output_tokens >= budgets.output_tokens:
        return Reason.TOKEN_BUDGET
    if budgets.cost_usd is not None and spent.cost_usd >= Decimal(str(budgets.cost_usd)):
        return Reason.COST_BUDGET
    if spent.result_bytes > budgets.result_bytes:
        return Reason.RESULT_BUDGET
    return None


def output_limit(budgets: Budgets, spent: Spent, asked: int | None) -> int | None:
    """What this turn may generate: the profile's limit, cut to what is left of the output budget."""
    if budgets.output_tokens is None:
        return asked
    left = max(1, budgets.output_tokens - spent.output_tokens)
    return left if asked is None else min(asked, left)


def cost(prices: Prices, input_tokens: int, cached_tokens: int, output_tokens: int) -> Decimal:
    """US dollars of one request. Without a price for cached tokens they cost what others do."""
    cached_price = prices.input if prices.cached is None else prices.cached
    fresh = max(0, input_tokens - cached_tokens)
    total = (
        fresh * Decimal(str(prices.input))
        + cached_tokens * Decimal(str(cached_price))
        + output_tokens * Decimal(str(prices.output))
    )
    return total / 1_000_000
