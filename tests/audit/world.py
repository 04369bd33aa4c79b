"""A dozen realistic operations of three tenants, their anchors, and direct SQL as whoever owns the database."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import text

from orchestrator import commands
from orchestrator.auditing import Anchoring, verify
from tests.audit.bench import Bench
from tests.shared import ROOT

TENANTS = ("acme", "globex", "initech")
KEY = b"an anchor key for tests only, 32"
SCRIPT = ROOT / "scripts" / "verify_audit.py"


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def DUPLICATE(order: str) -> list[dict[str, Any]]:
    draft = _call("draft_refund", order_id=order, amount_cents=2450, reason="damaged")
    return [{"calls": [draft, draft]}, {"text": "Drafted."}]


def WRONG(order: str) -> list[dict[str, Any]]:
    """Unknown tool, broken arguments, somebody else's order."""
    foreign = f"ORD-{int(order[4:]) + 2:06}"
    bad = [_call("delete_everything"), _call("get_order", order_id="x"), _call("get_order", order_id=foreign)]
    return [{"calls": bad}, {"text": "I could not."}]


def sql_as_owner(bench: Bench, *statements: str, **values: Any) -> None:
    """With triggers and foreign keys switched off, as a superuser can."""
    with bench.app.database.transaction() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in statements:
            connection.execute(text(statement), values)


def script() -> ModuleType:
    """The stand-alone verifier as a module."""
    if "verify_audit" not in sys.modules:
        spec = importlib.util.spec_from_file_location("verify_audit", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["verify_audit"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["verify_audit"])
    return sys.modules["verify_audit"]


def play_all(bench: Bench, anchors: Path) -> None:
    """Refunds, one denied, one cancelled, one of a lost answer, duplicates, refusals; heads anchored on the way."""
    anchoring = Anchoring(bench.app.database, anchors, KEY, 60)
    for number, tenant in enumerate((*TENANTS, *TENANTS)):
        operation_id = bench.submit(tenant)
        for step in range(100):
            if step % 3 == number % 3:
                anchoring.round()
            if not bench.step():
                if not bench.view(operation_id).open_approvals:
                    break
                bench.decide(operation_id, approve=number != 1)
    for tenant, turns in zip(TENANTS, (DUPLICATE, WRONG, DUPLICATE), strict=True):
        bench.submit(tenant, turns)
        bench.settle()
        anchoring.round()
    cancelled = bench.submit(TENANTS[0])
    bench.settle()
    commands.cancel(bench.app, cancelled, by="ops")
    waiting = bench.submit(TENANTS[1])
    bench.settle()
    bench.submit(TENANTS[2])
    assert bench.view(waiting).state == "WAITING_APPROVAL"
    anchoring.round()


def exported(bench: Bench, path: Path) -> list[dict[str, Any]]:
    verify(bench.app.database, export=path)
    return [json.loads(line) for line in path.read_text().splitlines()]
