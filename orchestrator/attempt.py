"""One attempt's surroundings: what a tool handler is given, for reads, writes and reconciliations alike."""

import time
from typing import Any

from executors.context import Context
from executors.http import ScopedClient
from executors.registry import ToolSpec
from orchestrator import completion
from orchestrator.app import App
from orchestrator.leases import Lease
from policy.base import Principal


def context(
    app: App, spec: ToolSpec, principal: Principal, row: dict[str, Any], seconds: float, lease: Lease
) -> Context:
    """`row` has operation_id, attempt_id, and call_key or action_id with idempotency_key."""
    deadline = time.monotonic() + seconds
    key = row.get("idempotency_key")
    headers = {spec.idempotency.name: key} if key and spec.idempotency and spec.idempotency.carrier == "header" else {}
    return Context(
        principal=principal,
        operation_id=row["operation_id"],
        call_id=row.get("call_key", ""),
        attempt_id=row["attempt_id"],
        deadline=deadline,
        http=ScopedClient(app.tool_http, deadline, headers, lease.held),
        action_id=row.get("action_id"),
        idempotency_key=key,
        completion_token=completion.token(app.settings, row["action_id"], key) if key else None,
    )
