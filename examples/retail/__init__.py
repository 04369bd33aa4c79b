"""A shop with records, sixteen tools and rules: the retail domain of the tau2 benchmark on PostgreSQL.

Name `examples.retail` in TURNQUEUE_MODULES. RETAIL_APPROVALS=1 makes each write that a customer must confirm wait for
a person's approval as well.
"""

from examples.retail.profile import profile
from examples.retail.tools import RETAIL
from executors.registry import Registry


def register(registry: Registry) -> None:
    """Add the tools and the profile `retail`."""
    registry.add(*RETAIL.specs(approvals=RETAIL.variable("APPROVALS") == "1"))
    registry.add_profile(profile())
