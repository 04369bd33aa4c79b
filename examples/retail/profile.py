"""The profile `retail`: which model, and budgets wide enough for the benchmark's longest conversation."""

import os

from examples.retail.tools import TOOLS
from policy.profile import Budgets, Model, Profile

INSTRUCTIONS = """\
You are a customer service agent of a shop. Find out who the customer is before anything else. Help only with the
customer's own orders and account. Before each change, say what will happen and get the customer's clear yes.
Where your tools cannot help, hand over to a person."""


def profile() -> Profile:
    """Read when a process registers its tools: RETAIL_API names the adapter, RETAIL_MODEL the model.

    The endpoint is the worker's RETAIL_MODEL_URL; RETAIL_API_KEY_ENV names the variable that holds the key, if any.
    """
    return Profile(
        name="retail",
        model=Model(
            api=os.environ.get("RETAIL_API", "openai-responses"),
            name=os.environ.get("RETAIL_MODEL", "scripted"),
            base_url="$RETAIL_MODEL_URL",
            api_key_env=os.environ.get("RETAIL_API_KEY_ENV"),
        ),
        instructions=INSTRUCTIONS,
        tools=tuple(tool.function.__name__ for tool in TOOLS),
        budgets=Budgets(
            turns=40, calls=200, writes=40, parallel=16, result_bytes=8_000_000, no_progress_turns=8, wall_seconds=1800
        ),
    )
