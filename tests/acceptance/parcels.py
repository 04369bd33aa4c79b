"""The tools of the parcel scenario: a lookup, a reading of dates, and the address change that a person approves."""

import os
from datetime import date
from typing import Annotated, Any, Literal

import httpx
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from executors.context import Context
from executors.outcomes import Absent, Applied, NotApplied, Reconciled, ToolRejected, ToolUnavailable
from executors.registry import IdempotencyContract, tool
from policy.base import Allow, Decision, Deny, Principal

SCOPES = frozenset({"parcels:read", "parcels:change"})
ParcelId = Annotated[str, Field(pattern=r"^PCL-[0-9]{6}$", description="parcel number, for example PCL-123456")]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class GetParcel(_Arguments):
    parcel_id: ParcelId


class Parcel(BaseModel):
    parcel_id: str
    status: Literal["packed", "shipped", "delivered"]
    address: str
    note: str = ""


class ChangeAddress(_Arguments):
    parcel_id: ParcelId
    address: str = Field(min_length=5, max_length=200)


class Change(BaseModel):
    change_id: str
    parcel_id: str
    address: str


class PickupSlots(_Arguments):
    parcel_id: ParcelId
    day: date = Field(description="ISO 8601 date at the parcel's place, for example 2026-04-03")
    not_before: AwareDatetime | None = Field(default=None, description="ISO 8601 with a UTC offset")


class Slots(BaseModel):
    day: date
    slots: list[str]


def _headers(principal: Principal) -> dict[str, str]:
    """On whose behalf: from the host's authentication, never from the model."""
    return {"X-Tenant": principal.tenant, "X-Customer": principal.subject}


def _url(path: str) -> str:
    return f"{os.environ['CARRIER_URL']}{path}"


def _read(response: httpx.Response) -> Any:
    if response.status_code in (404, 409):
        raise ToolRejected(response.json()["code"])
    if response.status_code >= 500:
        raise ToolUnavailable(f"status {response.status_code}")
    return response.raise_for_status().json()


def _own(parcel_id: str, principal: Principal) -> dict[str, Any] | None:
    with httpx.Client(trust_env=False, headers=_headers(principal)) as client:
        response = client.get(_url(f"/parcels/{parcel_id}"))
    return None if response.status_code == 404 else dict(response.raise_for_status().json())


def own_parcel(args: Any, principal: Principal) -> Decision:
    """Unknown parcels and those of others are refused alike."""
    return Deny("PARCEL_UNAVAILABLE") if _own(args.parcel_id, principal) is None else Allow()


def parcel_version(args: Any, principal: Principal) -> str:
    found = _own(args.parcel_id, principal)
    return "gone" if found is None else str(found["version"])


@tool(effect="read", scopes=frozenset({"parcels:read"}), authorize=own_parcel, timeout=10.0)
def get_parcel(args: GetParcel, ctx: Context) -> Parcel:
    """Return one parcel of the authenticated customer: status and delivery address. Changes nothing."""
    answer = _read(ctx.http.get(_url(f"/parcels/{args.parcel_id}"), headers=_headers(ctx.principal)))
    return Parcel.model_validate(answer)


@tool(effect="read", scopes=frozenset({"parcels:read"}), authorize=own_parcel, timeout=10.0)
def pickup_slots(args: PickupSlots, ctx: Context) -> Slots:
    """Return when a parcel could be fetched on one day. Changes nothing."""
    answer = _read(ctx.http.get(_url("/pickup-slots"), params={"day": args.day.isoformat()}))
    return Slots.model_validate(answer)


def what_became_of_it(args: ChangeAddress, key: str, reference: str | None, ctx: Context) -> Reconciled:
    response = ctx.http.get(_url(f"/address-changes/by-key/{key}"), headers=_headers(ctx.principal))
    if response.status_code == 404:
        return Absent()
    if response.status_code == 409:
        return NotApplied(response.json()["code"], "the carrier recorded a refusal under this key")
    return Applied(_read(response))


@tool(
    effect="create",
    scopes=frozenset({"parcels:change"}),
    authorize=own_parcel,
    approval=True,
    resource_version=parcel_version,
    idempotency=IdempotencyContract("Idempotency-Key"),
    reconcile=what_became_of_it,
    reference_field="change_id",
    timeout=10.0,
)
def change_address(args: ChangeAddress, ctx: Context) -> Change:
    """Change where an unshipped parcel of the authenticated customer is delivered. A person approves it first."""
    body = args.model_dump(mode="json")
    response = ctx.http.post(_url("/address-changes"), json=body, headers=_headers(ctx.principal))
    return Change.model_validate(_read(response))


TOOLS = (get_parcel, pickup_slots, change_address)
