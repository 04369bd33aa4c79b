"""The profile `airline`: which model, and budgets wide enough for the longest recorded conversation."""

from examples.airline.tools import AIRLINE
from policy.profile import Budgets, Profile

INSTRUCTIONS = """\
You are a customer service agent of an airline. The current time is 2024-05-15 15:00:00 EST. Find out who the customer
is before anything else. Help only with the customer's own reservations and account. Before each booking or change, say
what will happen and what it costs, and get the customer's clear yes. Where your tools cannot help, hand over to a
person."""


def profile() -> Profile:
    """Read when a process registers its tools: AIRLINE_API names the adapter, AIRLINE_MODEL the model.

    The endpoint is the worker's AIRLINE_MODEL_URL; AIRLINE_API_KEY_ENV names the variable that holds the key, if any.
    """
    return Profile(
        name=AIRLINE.profile,
        model=AIRLINE.model(),
        instructions=INSTRUCTIONS,
        tools=tuple(tool.name for tool in AIRLINE.tools),
        budgets=Budgets(
            turns=40, calls=200, writes=40, parallel=16, result_bytes=8_000_000, no_progress_turns=8, wall_seconds=1800
        ),
    )
