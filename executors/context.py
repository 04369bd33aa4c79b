"""What a handler is given besides its arguments: trusted facts and a scoped HTTP client, nothing from the model."""

import time
from dataclasses import dataclass

from executors.http import ScopedClient
from policy.base import Principal


@dataclass(frozen=True, slots=True)
class Context:
    """One attempt's surroundings.

    `deadline` is on `time.monotonic`'s clock.  `idempotency_key` is None for a plain read.  `http` stays inside the
    deadline, follows no redirect and sends the key where the tool's idempotency contract says.
    """

    principal: Principal
    operation_id: str
    call_id: str
    attempt_id: str
    deadline: float
    http: ScopedClient
    action_id: str | None = None
    idempotency_key: str | None = None
    completion_token: str | None = None  # for a downstream that will report later; None where no key is configured

    @property
    def tenant(self) -> str:
        return self.principal.tenant

    @property
    def subject(self) -> str:
        return self.principal.subject

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.deadline - time.monotonic())
