"""An airline with records, fourteen tools and rules: the airline domain of the tau2 benchmark on PostgreSQL.

Name `examples.airline` in TURNQUEUE_MODULES. AIRLINE_APPROVALS=1 makes each write that a customer must confirm wait
for a person's approval as well.
"""

from examples.airline.profile import profile
from examples.airline.tools import AIRLINE
from executors.registry import Registry


def register(registry: Registry) -> None:
    """Add the tools and the profile `airline`."""
    registry.add(*AIRLINE.specs(approvals=AIRLINE.variable("APPROVALS") == "1"))
    registry.add_profile(profile())
