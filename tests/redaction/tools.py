"""Tools that would give away what they know: in results, refusals, exceptions and hooks."""

import json
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, SecretStr

from executors.context import Context
from executors.outcomes import Absent, Reconciled, ToolRejected
from executors.redaction import PERSONAL
from executors.registry import IdempotencyContract, Registry, tool
from policy.base import Allow, Decision, Principal
from policy.profile import Model, Profile
from tests.redaction.canaries import Personal

PERSON = Personal()


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Who(_Arguments):
    email: Annotated[str, PERSONAL]


class Address(_Arguments):
    street: Annotated[str, PERSONAL]
    city: str


class Transfer(_Arguments):
    iban: Annotated[str, PERSONAL]
    address: Address
    cents: int


class Session(BaseModel):
    token: SecretStr
    label: str


class Customer(BaseModel):
    note: str
    name: Annotated[str, PERSONAL]
    birthday: Annotated[str, PERSONAL]
    address: Address
    key: SecretStr
    sessions: list[Session]
    internal: str


class Done(BaseModel):
    reference: str


def _plant(name: str) -> str:
    return os.environ[f"PLANT_{name}_HERE"]


@tool(effect="read", expose=frozenset({"note", "name", "address", "key", "sessions"}), untrusted=True)
def look_up(args: Who, ctx: Context) -> Customer:
    """Look up a customer. Changes nothing."""
    echoed = os.environ["CANARY_SHOP_TOKEN"]
    note = f"asked with {echoed}, {_plant('SK_IN_RESULT')} and {_plant('JWT_IN_RESULT')}"
    session = Session(token=SecretStr(_plant("NESTED_SECRET")), label="web")
    return Customer(
        note=note, name=PERSON.shown, birthday=PERSON.birthday, address=Address(street=PERSON.street, city="Bonn"),
        key=SecretStr(_plant("SESSION_SECRET")), sessions=[session], internal=_plant("KEY_IN_UNEXPOSED"),
    )  # fmt: skip


@tool(effect="read")
def explode(args: Who, ctx: Context) -> Done:
    """Fail in an unexpected way. Changes nothing."""
    raise RuntimeError(f"no luck with {_plant('KEY_IN_EXCEPTION')} for {args.email}")


@tool(effect="read")
def refuse(args: Who, ctx: Context) -> Done:
    """Be refused. Changes nothing."""
    body = f"Authorization: Bearer {_plant('BEARER_IN_ERROR')} token {os.environ['CANARY_SHOP_TOKEN']} {args.email}"
    raise ToolRejected("DENIED", body)


def _hook(args: BaseModel, principal: Principal) -> Decision:
    raise RuntimeError(f"{_plant('KEY_IN_HOOK')} did not work")


@tool(effect="read", authorize=_hook)
def guarded(args: Who, ctx: Context) -> Done:
    """Be looked at by a hook that crashes. Changes nothing."""
    return Done(reference="never")


def _check(args: Transfer, key: str, reference: str | None, ctx: Context) -> Reconciled:
    return Absent()


@tool(
    effect="create", approval=True, authorize=lambda args, principal: Allow(),
    idempotency=IdempotencyContract(carrier="field"), reconcile=_check, reference_field="reference",
)  # fmt: skip
def transfer(args: Transfer, ctx: Context) -> Done:
    """Move money. A person approves it."""
    seen = {"arguments": args.model_dump(), "token": bool(ctx.completion_token)}
    Path(os.environ["CANARY_SEEN"]).write_text(json.dumps(seen))
    return Done(reference="TRX-1")


TOOLS = (look_up, explode, refuse, guarded, transfer)


def register(registry: Registry) -> None:
    registry.add(*TOOLS)
    registry.add_profile(
        Profile(
            name="canary",
            instructions="Help.",
            tools=tuple(spec.name for spec in TOOLS),
            model=Model(
                api="openai-responses",
                name="canary",
                base_url="$CANARY_MODEL_URL",
                api_key_env="CANARY_PROVIDER_KEY",
                headers={"X-Gateway-Token": "$CANARY_GATEWAY_TOKEN"},
            ),
        )
    )
