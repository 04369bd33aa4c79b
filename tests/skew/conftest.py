"""The orchestrator tests' application, for what happens within one process."""

from tests.orchestrator.conftest import desk, lab_server, migrated, model, settings  # noqa: F401 - fixtures
from tests.people.conftest import hall  # noqa: F401
