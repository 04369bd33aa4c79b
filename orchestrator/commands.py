"""The public verbs. Each validates its input, works in one transaction, and publishes what became due after it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from orchestrator import engine
from orchestrator.app import App
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain.errors import Conflict, NotFound, UserError
from orchestrator.domain.operation import TERMINAL, OperationState
from orchestrator.failpoints import failpoint
from orchestrator.ids import new_id
from orchestrator.parking import release as release  # noqa: PLC0414
from orchestrator.people import amend as amend  # noqa: PLC0414
from orchestrator.people import answer as answer  # noqa: PLC0414
from orchestrator.people import approvals_missing as approvals_missing  # noqa: PLC0414
from orchestrator.people import approve as approve  # noqa: PLC0414
from orchestrator.people import deny as deny  # noqa: PLC0414
from orchestrator.submission import Envelope as Envelope  # noqa: PLC0414 - part of this module's interface
from orchestrator.submission import Submission as Submission  # noqa: PLC0414 - part of this module's interface
from orchestrator.submission import submission as submission  # noqa: PLC0414 - part of this module's interface
from orchestrator.views import OperationView, view, without_personal
from policy.profile import Profile
from store import envelopes, operations
from store.records import OperationRecord


@dataclass(frozen=True, slots=True)
class Submitted:
    """`created` is False when the same key and request had been submitted before; `replayed`: in this very envelope."""

    operation_id: str
    created: bool
    replayed: bool = False


def submit(app: App, request: Submission, envelope: Envelope | None = None) -> Submitted:
    """Create an operation, due at once. Same key and same request: the same operation.

    Raises NotFound UNKNOWN_PROFILE, Conflict IDEMPOTENCY_CONFLICT (same key, other request) and, with an envelope,
    Conflict ENVELOPE_NONCE_REUSED. The very same envelope again gives the operation that it made before. Unavailable
    means not accepted, but CommitUnknown perhaps accepted, as its `operation_id`: look, or repeat it with the same key.
    """
    profile = app.registry.profile(request.profile)
    if profile is None:
        known = ", ".join(sorted(p.name for p in app.registry.profiles)) or "none are registered"
        raise NotFound("UNKNOWN_PROFILE", f"profile {request.profile!r} is not registered; known: {known}")
    stored = profile.digest in app.stored_profiles
    operation_id = new_id("op")  # the same in every try, so that one whose COMMIT was not answered is known again
    created = app.database.transact(
        lambda connection: _insert(connection, operation_id, profile, request, envelope, stored)
    )
    app.stored_profiles.add(profile.digest)
    if created.created:
        failpoint("submit.committed")
        app.publish([engine.Wake(engine.ORCHESTRATOR_QUEUE, created.operation_id)])
    return created


def _insert(
    connection: Connection,
    operation_id: str,
    profile: Profile,
    request: Submission,
    envelope: Envelope | None,
    known_profile: bool,
) -> Submitted:
    asked = {
        "profile": request.profile, "input": request.input, "tenant": request.tenant, "subject": request.subject,
        "scopes": sorted(request.scopes),
    }  # fmt: skip
    request_sha256 = digests.sha256("submission-v1", asked)
    if envelope and (used := envelopes.lock(connection, envelope.sender, envelope.nonce)):
        return Submitted(operation_id, created=True) if used[0] == operation_id else _repeated(used, request_sha256)
    if not known_profile:
        body = digests.canonical(profile.model_dump(mode="json")).decode()
        operations.insert_profile(
            connection, digest=profile.digest, name=profile.name, version=profile.version, body=body
        )
    inserted = operations.insert(
        connection,
        operation_id=operation_id,
        tenant=request.tenant,
        subject=request.subject,
        scopes=sorted(request.scopes),
        profile=profile.name,
        profile_digest=profile.digest,
        caller_key=request.idempotency_key,
        request_sha256=request_sha256,
        wall_seconds=profile.budgets.wall_seconds,
    )
    if not inserted:
        return _existing(connection, operation_id, request, request_sha256)
    row = {"operation_id": operation_id, "seq": 0, "turn": 0, "kind": "user", "body": {"text": request.input}}
    operations.insert_items(connection, [row])
    sender = envelope.sender if envelope else None
    with engine.Unit(connection, f"caller:{request.subject}") as unit:
        unit.audit(operation_id, "operation.submitted", request_sha256=request_sha256, sender=sender)
    if envelope:
        envelopes.consume(connection, envelope.sender, envelope.nonce, envelope.expires_at, operation_id)
    return Submitted(operation_id, created=True)


def _repeated(used: tuple[str, str], request_sha256: str) -> Submitted:
    """A broker delivers a message twice now and then, which looks the same as a copy that somebody kept."""
    if used[1] != request_sha256:
        raise Conflict("ENVELOPE_NONCE_REUSED", f"the nonce made operation {used[0]} of another request")
    return Submitted(used[0], created=False, replayed=True)


def _existing(connection: Connection, operation_id: str, request: Submission, request_sha256: str) -> Submitted:
    if operations.load(connection, operation_id) is not None:  # an earlier try of this very submission
        return Submitted(operation_id, created=True)
    found = operations.find_by_caller_key(connection, request.tenant, request.idempotency_key or "")
    if found is None:
        raise AssertionError("the key conflicted, so its row exists")
    if found[1] != request_sha256:
        raise Conflict(
            "IDEMPOTENCY_CONFLICT",
            f"idempotency_key was used for another request ({found[0]}); use a new key or repeat that request exactly",
        )
    return Submitted(found[0], created=False)


def cancel(app: App, operation_id: str, *, by: str = "caller", tenant: str | None = None) -> OperationState:
    """Stop an operation: nothing new is dispatched, started writes are still reconciled.

    Raises NotFound UNKNOWN_OPERATION, Conflict ALREADY_ENDED.
    """

    def work(connection: Connection) -> list[engine.Wake]:
        with engine.Unit(connection, f"caller:{by}") as unit:
            _find(connection, operation_id, tenant)
            operation = operations.lock(connection, operation_id)
            if operation.state in TERMINAL:
                raise Conflict("ALREADY_ENDED", f"{operation_id} is {operation.state} already")
            unit.audit(operation_id, "operation.cancel_requested", by=by)
            engine.apply(unit, operation, e.CancelRequested())
        return unit.wakes

    app.publish(app.database.transact(work))
    return OperationState.CANCELLED


def _find(connection: Connection, operation_id: str, tenant: str | None) -> OperationRecord:
    found = operations.load(connection, operation_id)
    if found is None or (tenant is not None and found.tenant != tenant):
        raise NotFound("UNKNOWN_OPERATION", f"there is no operation {operation_id!r}")
    return found


# --- reading -------------------------------------------------------------------------------------------------------


def inspect(app: App, operation_id: str, *, tenant: str | None = None, personal: bool = False) -> OperationView:
    """Everything that happened to one operation. Raises NotFound UNKNOWN_OPERATION.

    Values of PERSONAL fields are shown only where `personal` asks for them, as whoever decides on an approval must.
    """
    with app.database.snapshot() as connection:
        whole = view(connection, _find(connection, operation_id, tenant))
    return whole if personal else without_personal(whole, app.registry)


def list_operations(
    app: App, *, tenant: str | None = None, state: str | None = None, parked: bool = False, limit: int = 50
) -> list[dict[str, Any]]:
    """Newest first; `parked`: only those that wait for `release`. Raises UserError BAD_FIELD for an unknown state."""
    if state is not None and state not in OperationState.__members__:
        raise UserError("BAD_FIELD", f"state: {state!r} is not one of {', '.join(OperationState)}")
    with app.database.autocommit() as connection:
        return operations.list_newest(connection, tenant=tenant, state=state, parked=parked, limit=limit)
