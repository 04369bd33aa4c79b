"""The support example: look up an order, draft a refund, wait for a person, submit it, explain.

Put `examples.support` into `TURNQUEUE_MODULES`; the workers need `SUPPORT_SHOP_URL`, `SUPPORT_SHOP_TOKEN` and
`SUPPORT_MODEL_URL`.
"""

from examples.support.profile import support
from examples.support.tools import TOOLS
from executors.registry import Registry


def register(registry: Registry) -> None:
    """Add the tools and the profile `support`."""
    registry.add(*TOOLS)
    registry.add_profile(support())
