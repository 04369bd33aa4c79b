"""The profile `retail`: which model, and budgets wide enough for the benchmark's longest conversation."""

from examples.retail.tools import RETAIL
from policy.profile import Budgets, Profile

INSTRUCTIONS = """\
You are a customer service agent of a shop. Find out who the customer is before anything else. Help only with the
customer's own orders and account. Before each change, say what will happen and get the customer's clear yes.
Where your tools cannot help, hand over to a person."""


def profile() -> Profile:
    """Read when a process registers its tools: RETAIL_API names the adapter, RETAIL_MODEL the model.

    The endpoint is the worker's RETAIL_MODEL_URL; RETAIL_API_KEY_ENV names the variable that holds the key, if any.
    """
    return Profile(
        name=RETAIL.profile,
        model=RETAIL.model(),
        instructions=INSTRUCTIONS,
        tools=tuple(tool.name for tool in RETAIL.tools),
        budgets=Budgets(
            turns=40, calls=200, writes=40, parallel=16, result_bytes=8_000_000, no_progress_turns=8, wall_seconds=1800
        ),
    )
