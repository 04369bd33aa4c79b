"""The harness of tests/orchestrator, and the parcel scenario of tests/acceptance for what needs an owner of data."""

from tests.acceptance.conftest import carrier_server, parcels  # noqa: F401 - fixtures
from tests.orchestrator.conftest import desk, lab_server, migrated, model, settings  # noqa: F401 - fixtures
