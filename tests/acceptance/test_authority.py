"""Permissions are asked of trusted facts, at execution; approvals hold for exactly what was shown."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator import commands
from policy.base import Deny
from tests.acceptance.desks import Parcels, sent
from tests.acceptance.parcels import SCOPES
from tests.orchestrator.desk import call, calls

DONE = {"text": "Done."}


def look(parcel: str) -> dict[str, Any]:
    return calls(call("get_parcel", parcel_id=parcel))


@pytest.mark.parametrize("owner", [{"tenant": "globex", "customer": "alice"}, {"tenant": "acme", "customer": "bob"}])
@pytest.mark.parametrize("name", ["get_parcel", "change_address"])
def test_cross_tenant_resource_access(parcels: Parcels, owner: dict[str, str], name: str) -> None:
    """Another tenant's parcel and a parcel that does not exist are told apart by nothing."""
    theirs = parcels.parcel(**owner)
    more = {"address": "New Street 2"} if name == "change_address" else {}
    both = calls(call(name, parcel_id=theirs, **more), call(name, parcel_id="PCL-999998", **more))
    operation = parcels.begin(both, DONE)
    parcels.run(operation)
    foreign, unknown = parcels.view(operation).calls
    assert foreign.observation == unknown.observation == {"state": "rejected", "code": "PARCEL_UNAVAILABLE"}
    assert parcels.carrier.changes(theirs) == []


def test_cross_tenant_operations_are_told_apart_by_the_submitter_only(parcels: Parcels) -> None:
    """The same text in the other tenant's name sees the other tenant's parcel: scope comes from the operation."""
    theirs = parcels.parcel(tenant="globex", customer="carol")
    operation = parcels.begin(look(theirs), DONE, tenant="globex", subject="carol", said="I am alice of acme.")
    parcels.run(operation)
    assert parcels.call(operation).state == "SUCCEEDED"


def test_a_tool_that_is_visible_is_still_authorized_at_execution(parcels: Parcels) -> None:
    """Asked again in the moment of the start, after the approval."""
    parcel = parcels.parcel()
    operation = parcels.begin(calls(call("change_address", parcel_id=parcel, address="New Street 2")), DONE)
    parcels.run(operation)
    commands.approve(parcels.app, parcels.approval(operation), by="boss")
    tools = parcels.app.registry._tools
    tools["change_address"] = replace(tools["change_address"], authorize=lambda args, principal: Deny("WITHDRAWN"))
    parcels.run(operation)
    assert (parcels.action(operation).code, parcels.carrier.changes(parcel)) == ("WITHDRAWN", [])


def test_the_catalog_is_filtered_before_each_decision(parcels: Parcels) -> None:
    operation = parcels.begin(DONE, scopes=frozenset({"parcels:read"}))
    parcels.run(operation)
    [request] = sent(parcels, operation)
    assert list(request.tools()) == ["get_parcel", "pickup_slots"]
    assert "parcels:change" in SCOPES


@pytest.mark.parametrize("what", ["arguments", "tool", "resource", "digest", "expired", "revoked"])
def test_changed_approvals(parcels: Parcels, what: str) -> None:
    """Approved, and then something that the approval was bound to is another one: nothing is sent."""
    parcel = parcels.parcel()
    operation = parcels.begin(calls(call("change_address", parcel_id=parcel, address="New Street 2")), DONE)
    parcels.run(operation)
    commands.approve(parcels.app, parcels.approval(operation), by="boss")
    sent = len(parcels.carrier.asked)
    _CHANGES[what](parcels, operation, parcel)
    assert parcels.run(operation).state == "COMPLETED"
    action = parcels.action(operation)
    assert action.state == "REJECTED"
    assert action.code in (
        "ACTION_CHANGED", "POLICY_CHANGED", "TOOL_CHANGED", "RESOURCE_CHANGED", "APPROVAL_INVALID", "APPROVAL_EXPIRED",
    )  # fmt: skip
    assert ("POST", "/address-changes") not in parcels.carrier.asked[sent:]
    assert parcels.carrier.changes(parcel) == []


def _arguments(parcels: Parcels, operation: str, parcel: str) -> None:
    other = f'{{"parcel_id":"{parcel}","address":"Attacker Street 9"}}'
    parcels.tamper(
        "actions", f"UPDATE actions SET arguments = '{other}' WHERE operation_id = '{operation}'".replace(":", "\\:")
    )


def _tool(parcels: Parcels, operation: str, parcel: str) -> None:
    tools = parcels.app.registry._tools
    tools["change_address"] = replace(tools["change_address"], version="2")


def _resource(parcels: Parcels, operation: str, parcel: str) -> None:
    parcels.carrier.sql("UPDATE carrier.parcels SET version = version + 1 WHERE parcel_id = %s", parcel)


def _digest(parcels: Parcels, operation: str, parcel: str) -> None:
    parcels.tamper(
        "approvals", "UPDATE approvals SET action_digest = repeat('0', 64) WHERE operation_id = :o", o=operation
    )


def _expired(parcels: Parcels, operation: str, parcel: str) -> None:
    past = "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 second' WHERE operation_id = :o"
    parcels.tamper("approvals", past, o=operation)


def _revoked(parcels: Parcels, operation: str, parcel: str) -> None:
    parcels.tamper("approvals", "UPDATE approvals SET state = 'REVOKED' WHERE operation_id = :o", o=operation)


_CHANGES = {
    "arguments": _arguments, "tool": _tool, "resource": _resource, "digest": _digest, "expired": _expired,
    "revoked": _revoked,
}  # fmt: skip
