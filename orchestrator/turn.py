"""One turn: claim the operation, ask the model, judge its reply, record everything in one transaction.

No transaction is open while the model is asked. The request is repeated only when no tool call came back; the retry
owner is here (short waits) and the operation's `wake_at` (long ones).
"""

import random
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import structlog
import tenacity

from adapters.base import Adapter, Completion, HttpRequest, ModelRequest, Reply
from adapters.registry import adapter_for
from orchestrator import engine, parking, provider, recording, transcripts
from orchestrator.app import App
from orchestrator.domain import digests
from orchestrator.domain import events as e
from orchestrator.domain.action import UNRESOLVED, ActionState
from orchestrator.domain.errors import ConfigError, TurnqueueError
from orchestrator.domain.model import CallState, Reason
from orchestrator.failpoints import failpoint
from orchestrator.judge import Bench, judge
from orchestrator.leases import Lease
from policy import budgets, catalog
from policy.base import Principal
from policy.profile import Profile
from policy.progress import Answered, stale_turns, worn_out
from policy.retry import retry_at
from store import actions, calls, operations
from store.records import ActionRecord, CallRecord, OperationRecord

log = structlog.get_logger()

IN_PLACE_TRIES = 3  # requests within one claim; further ones are parked
IN_PLACE_WAIT = 1.0  # seconds; a longer wait is parked, so that no thread sleeps on it
_RATE_LIMITED = "RATE_LIMITED"  # the adapters' code for it
_UNUSABLE_OUTPUT_TRIES = 2  # a model that wrote an unusable call is asked once more


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything one turn needs to know, read outside any transaction."""

    operation: OperationRecord
    profile: Profile
    principal: Principal
    items: list[dict[str, Any]]
    calls: list[CallRecord]
    actions: list[ActionRecord]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and its reply, with what the record of the turn needs."""

    adapter: Adapter
    request: ModelRequest
    request_sha256: str
    reply: Reply
    tries: int
    seconds: float
    provider: str  # host that was asked


def advance(app: App, operation_id: str | None) -> bool:
    """Advance the named operation (or the one longest due) by one model turn. False: nothing to claim."""
    since = time.monotonic()
    with app.database.autocommit() as connection:
        operation = operations.claim_turn(connection, operation_id, app.settings.lease_seconds)
    if operation is None:
        return False
    failpoint("turn.claimed")
    with (
        structlog.contextvars.bound_contextvars(operation_id=operation.operation_id, turn=operation.turn),
        app.leases.hold("operation", operation.operation_id, operation.fence, since) as lease,
    ):
        try:
            _take_turn(app, operation, lease)
        except TurnqueueError:
            raise
        except Exception as error:
            parking.broken_turn(app, operation, error)
            raise
    return True


def _take_turn(app: App, operation: OperationRecord, lease: Lease) -> None:
    loaded = _load(app, operation)
    mismatch = transcripts.binding_problem(loaded.operation, loaded.items, loaded.calls, loaded.actions)
    if mismatch is not None:
        log.error("binding.mismatch", problem=mismatch)
        _finish(app, operation, e.TurnFailed(Reason.INTERNAL))
        return
    reason = _exhausted(loaded)
    if reason is not None:
        _finish(app, operation, e.Exhausted(reason))
        return
    try:
        adapter = adapter_for(loaded.profile.model.api)
        endpoint = provider.endpoint(loaded.profile.model)
        request = _request(app, loaded)
        wire = adapter.to_request(request, endpoint)
    except ConfigError as error:
        log.error("turn.bad_config", code=error.code, problem=error.message)
        _finish(app, operation, e.TurnFailed(Reason.PROVIDER_CONFIG))
        return
    except ValueError as error:  # the transcript cannot be said in this wire format: asking again will not mend it
        log.error("turn.bad_transcript", problem=str(error))
        _finish(app, operation, e.TurnFailed(Reason.INTERNAL))
        return
    if not lease.held():  # the next one to claim it asks
        log.warning("turn.lease_lost")
        return
    asked = _ask(app, loaded, adapter, request, wire, lease)
    failpoint("turn.replied")
    if asked.reply.completion is Completion.TOOL_PROPOSALS:
        _record_proposals(app, loaded, asked)
    else:
        _record_other(app, loaded, asked)


def _load(app: App, operation: OperationRecord) -> Loaded:
    with app.database.autocommit() as connection:
        items = operations.load_items(connection, operation.operation_id)
        earlier = calls.of_operation(connection, operation.operation_id) if operation.turn > 1 else []
        any_action = any(call.action_id for call in earlier)
        known = actions.of_operation(connection, operation.operation_id) if any_action else []
    profile = app.profile(operation.profile_digest)
    principal = Principal(operation.tenant, operation.subject, frozenset(operation.scopes))
    return Loaded(operation, profile, principal, items, earlier, known)


def _answers(loaded: Loaded) -> list[Answered]:
    return [
        Answered(
            call.turn,
            call.tool,
            call.arguments_sha256,
            (call.binding or {}).get("result_sha256"),
            call.code,
            call.duplicate,
        )
        for call in loaded.calls
    ]


def _spent(loaded: Loaded) -> budgets.Spent:
    operation = loaded.operation
    return budgets.Spent(
        turn=operation.turn,
        input_tokens=operation.input_tokens,
        output_tokens=operation.output_tokens,
        cost_usd=operation.cost_usd,
        result_bytes=operation.result_bytes,
        stale_turns=stale_turns(_answers(loaded)),
    )


def _exhausted(loaded: Loaded) -> Reason | None:
    if loaded.operation.now >= loaded.operation.deadline:
        return Reason.DEADLINE
    return budgets.exhausted(loaded.profile.budgets, _spent(loaded))


def _finish(app: App, operation: OperationRecord, event: e.OperationEvent) -> None:
    """End the operation without a reply, if its turn is still ours."""

    def work(connection: Any) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock_leased(connection, operation.operation_id, operation.fence)
            if held is not None:
                engine.apply(unit, held, event, turn=held.turn - 1)  # this turn was claimed and not asked
        return unit.wakes

    app.publish(app.database.transact(work, again=app.settings.lease_seconds))


# --- asking --------------------------------------------------------------------------------------------------------


def _offered(app: App, loaded: Loaded) -> tuple[str, ...]:
    specs = [spec for name in loaded.profile.tools if (spec := app.registry.tool(name)) is not None]
    return catalog.eligible([(spec.name, spec.scopes) for spec in specs], loaded.principal)


def _tools_off(loaded: Loaded) -> bool:
    """On the last permitted turn, or without a call left, the model must answer from what it has."""
    limits = loaded.profile.budgets
    return loaded.operation.turn >= limits.turns or loaded.operation.calls_used >= limits.calls


def _request(app: App, loaded: Loaded) -> ModelRequest:
    model = loaded.profile.model
    return ModelRequest(
        model=model.name,
        instructions=loaded.profile.instructions,
        items=transcripts.build(loaded.items, loaded.calls),
        tools=tuple(transcripts.declaration(app.registry, name) for name in _offered(app, loaded)),
        tool_choice=transcripts.NO_TOOLS if _tools_off(loaded) else transcripts.AUTO,
        parallel=model.parallel_calls,
        max_output_tokens=budgets.output_limit(loaded.profile.budgets, _spent(loaded), model.max_output_tokens),
        parameters=model.parameters,
        output_schema=loaded.profile.output_schema,
        server_state=model.server_state,
        previous_response_id=loaded.operation.last_response_id if model.server_state else None,
        stream=model.stream,
    )


def _ask(app: App, loaded: Loaded, adapter: Adapter, request: ModelRequest, wire: HttpRequest, lease: Lease) -> Asked:
    """Ask, and ask again in place while the failure is short, the lease is ours and we are not told to stop."""
    started = time.monotonic()
    left = (loaded.operation.deadline - loaded.operation.now).total_seconds()

    observe = partial(app.observe, loaded.operation.operation_id) if app.observe else None

    def short_failure(reply: Reply) -> bool:
        failure = reply.failure
        return (
            failure is not None
            and failure.retryable
            and (failure.retry_after or 0) <= IN_PLACE_WAIT
            and lease.held()
            and not app.stopping.is_set()
        )

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_result(short_failure),
        stop=tenacity.stop_after_attempt(IN_PLACE_TRIES),
        wait=lambda state: _in_place_wait(_outcome(state)),
        retry_error_callback=_outcome,
    )
    reply: Reply = retrying(
        lambda: provider.ask(
            app.model_http,
            adapter,
            request,
            wire,
            max(0.1, min(loaded.profile.model.timeout, left - (time.monotonic() - started))),
            idle_seconds=loaded.profile.model.idle_seconds,
            observe=observe,
        )
    )
    tries = int(retrying.statistics.get("attempt_number", 1))
    seconds = time.monotonic() - started
    return Asked(
        adapter, request, digests.sha256_bytes(wire.body), reply, tries, seconds, httpx.URL(wire.url).netloc.decode()
    )


def _outcome(state: tenacity.RetryCallState) -> Reply:
    if state.outcome is None:
        raise AssertionError("asked after a reply only")
    reply: Reply = state.outcome.result()
    return reply


def _in_place_wait(reply: Reply) -> float:
    asked = reply.failure.retry_after if reply.failure else None
    return (asked or 0.1) * (1 + random.random())  # noqa: S311 - jitter, not a secret


# --- recording -----------------------------------------------------------------------------------------------------


def _record_proposals(app: App, loaded: Loaded, asked: Asked) -> None:
    bench = Bench(
        registry=app.registry,
        profile=loaded.profile,
        principal=loaded.principal,
        operation_id=loaded.operation.operation_id,
        offered=frozenset() if _tools_off(loaded) else frozenset(_offered(app, loaded)),
        calls_used=loaded.operation.calls_used,
        writes_used=loaded.operation.writes_used,
        per_tool=Counter(call.tool for call in loaded.calls if call.code not in recording.NOT_COUNTED),
        actions=recording.known_actions(app.registry, loaded.actions),
        worn_out=worn_out(_answers(loaded)),
        tainted=loaded.operation.tainted,
    )
    verdicts = judge(bench, asked.reply.calls)

    def work(connection: Any) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock_leased(connection, loaded.operation.operation_id, loaded.operation.fence)
            if held is not None and held.revision != loaded.operation.revision:
                recording.superseded(unit, loaded, held, asked)
            elif held is not None:
                recording.proposals(unit, loaded, held, asked, verdicts, bench)
        return unit.wakes

    wakes = app.database.transact(work, again=app.settings.lease_seconds)
    failpoint("turn.recorded")
    app.publish(wakes)


def _record_other(app: App, loaded: Loaded, asked: Asked) -> None:
    event = _event(app, loaded, asked)

    def work(connection: Any) -> list[engine.Wake]:
        with engine.Unit(connection, f"worker:{app.worker}") as unit:
            held = operations.lock_leased(connection, loaded.operation.operation_id, loaded.operation.fence)
            if held is not None and held.revision != loaded.operation.revision and asked.reply.failure is None:
                recording.superseded(unit, loaded, held, asked)
            elif held is not None:
                recording.other(unit, loaded, held, asked, event)
        return unit.wakes

    app.publish(app.database.transact(work, again=app.settings.lease_seconds))


def _event(app: App, loaded: Loaded, asked: Asked) -> e.OperationEvent:
    match asked.reply.completion:
        case Completion.FINAL_TEXT:
            return _answered(loaded, asked.reply)
        case Completion.REFUSAL:
            return e.Refused()
        case Completion.TRUNCATED:
            return e.Exhausted(Reason.TOKEN_BUDGET) if _cut_by_budget(loaded, asked) else e.Truncated()
        case Completion.PAUSED:
            return e.Paused()
        case _:
            return _failed(app, loaded, asked)


def _cut_by_budget(loaded: Loaded, asked: Asked) -> bool:
    """Whether the reply's length was limited by what is left of the output budget, and not by the profile's own cap."""
    return asked.request.max_output_tokens != loaded.profile.model.max_output_tokens


def _answered(loaded: Loaded, reply: Reply) -> e.Answered:
    """The evidence for the model's final text, from the records and not from its words."""
    done = {call.tool for call in loaded.calls if call.state is CallState.SUCCEEDED and not call.is_error}
    proven = {action.tool for action in loaded.actions if action.state is ActionState.SUCCEEDED}
    missing = tuple(name for name in loaded.profile.required_tools if name not in done | proven)
    return e.Answered(
        missing=missing,
        expired=any(action.tool in missing and action.code == "APPROVAL_EXPIRED" for action in loaded.actions),
        unresolved=any(action.state in UNRESOLVED for action in loaded.actions),
        output_valid=transcripts.fitted(loaded.profile.output_schema, reply.text) is not None,
        refused_for=_refused_for(loaded),
        may_tell=not loaded.operation.told and loaded.operation.turn < loaded.profile.budgets.turns,
    )


def _refused_for(loaded: Loaded) -> Reason | None:
    """The budget for which a call was refused, if any was: something that the model wanted to do was not done."""
    codes = {call.code for call in loaded.calls}
    if "WRITE_BUDGET" in codes:
        return Reason.WRITE_BUDGET
    return Reason.CALL_BUDGET if codes & {"CALL_BUDGET", "TOOL_CALL_BUDGET"} else None


def _waited(app: App, operation: OperationRecord) -> int:
    """How many of this turn's requests only met a rate limit."""
    with app.database.autocommit() as connection:
        rows = [row for row in operations.turns_of(connection, operation.operation_id) if row["turn"] == operation.turn]
    rows.sort(key=lambda row: row["ask"])
    before = [0, *(row["ask"] for row in rows)]
    return sum(row["ask"] - ask for row, ask in zip(rows, before, strict=False) if row["failure_code"] == _RATE_LIMITED)


def _failed(app: App, loaded: Loaded, asked: Asked) -> e.OperationEvent:
    failure = asked.reply.failure
    if failure is None:
        return e.TurnFailed(Reason.PROTOCOL)
    log.warning("turn.request_failed", boundary=failure.boundary, code=failure.code, retryable=failure.retryable)
    if failure.code == "CONTEXT_LENGTH":
        return e.Truncated()
    operation = loaded.operation
    unusable = failure.code == "MODEL_OUTPUT_INVALID"
    limit = _UNUSABLE_OUTPUT_TRIES if unusable else app.settings.ask_limit
    now = operation.now + timedelta(seconds=asked.seconds)
    asks = operation.asks + asked.tries
    if failure.code == _RATE_LIMITED:  # to be told to wait is no failed attempt; the deadline ends it
        limit = asks + 1
    elif operation.asks:
        asks = max(asked.tries, asks - _waited(app, operation))
    at = retry_at(
        now,
        asks,
        limit,
        operation.deadline,
        failure.retry_after,
        random.random(),  # noqa: S311
    )
    if at is None or not (failure.retryable or unusable):
        return e.TurnFailed(Reason(failure.boundary))
    return e.TurnDeferred(at)
