"""The retail domain's side of a workload replay: see `tests/replay`. Everything that names this shop is here."""

from dataclasses import dataclass

from examples.retail.storage import Store
from examples.retail.tools import ANY


@dataclass(frozen=True, slots=True)
class Retail:
    """`any_scope` lets a principal use everybody's records."""

    profile: str = "retail"
    modules: tuple[str, ...] = ("examples.retail",)
    any_scope: str = ANY

    def environment(self, *, database_url: str, model_url: str, provider: str) -> dict[str, str]:
        """What workers and the submitting process need to reach the shop and the model."""
        return {
            "RETAIL_DATABASE_URL": database_url,
            "RETAIL_MODEL_URL": model_url,
            "RETAIL_API": provider,
            "RETAIL_APPROVALS": "0",  # nobody is there to approve
        }

    def open(self, database_url: str) -> Store:
        """Closed by the caller."""
        return Store(database_url)


RETAIL = Retail()
