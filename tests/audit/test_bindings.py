"""Every call's binding has all fields of DESIGN section 8, and a result that is not its own never reaches the model."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict
from structlog.testing import capture_logs

from examples.support.tools import DraftRefund
from executors.contract import AUDITED, contract, redacted
from executors.registry import ToolSpec, tool
from orchestrator import binding, turn
from orchestrator.domain import digests
from tests.audit.bench import Bench
from tests.audit.world import DUPLICATE, sql_as_owner

SHA = 64


@pytest.fixture(scope="module")
def played(bench: Bench) -> str:
    return bench.play("acme")


def calls_of(bench: Bench, operation_id: str) -> list[dict[str, Any]]:
    return bench.sql("SELECT * FROM calls WHERE operation_id = :o ORDER BY turn, position", o=operation_id)


def entries_of(bench: Bench, operation_id: str, kind: str) -> list[dict[str, Any]]:
    found = bench.sql("SELECT * FROM audit WHERE operation_id = :o AND kind = :k ORDER BY seq", o=operation_id, k=kind)
    return [row["body"] | {"subject_id": row["subject_id"]} for row in found]


def test_every_field_is_bound(bench: Bench, played: str) -> None:
    keys = {row["action_id"]: row["idempotency_key"] for row in bench.sql("SELECT * FROM actions")}
    rows = calls_of(bench, played)
    assert [row["tool"] for row in rows] == ["get_order", "get_refund_policy", "draft_refund", "submit_refund"]
    for row in rows:
        bound, spec = row["binding"], bench.app.registry.tool(row["tool"])
        assert spec is not None
        assert set(bound) == binding.FIELDS
        assert bound["idempotency_key"] == keys.get(row["action_id"])
        assert (bound["idempotency_key"] is None) == (not spec.effect.writes)
        assert bound["provider"].startswith("127.0.0.1:")
        revisions = contract(spec)
        assert (bound["input_revision"], bound["output_revision"]) == (revisions.input, revisions.output)
        assert (bound["effect_revision"], bound["handler_revision"]) == (revisions.effect, revisions.handler)
        assert bound["handler_revision"].startswith(f"{spec.version}@")
        assert bound["producer_revision"].startswith(binding.version())
        assert bound["producer_revision"].endswith(revisions.handler) == (not spec.effect.writes)
        assert {len(bound[name]) for name in ("request_sha256", "result_sha256", "arguments_sha256")} == {SHA}
        assert row["binding_sha256"] == digests.sha256("binding-v1", bound)


def test_proposals_executions_and_outcomes_are_in_the_audit(bench: Bench, played: str) -> None:
    proposed = [call for turn_ in entries_of(bench, played, "turn.proposed") for call in turn_["calls"]]
    assert [call["tool"] for call in proposed] == ["get_order", "get_refund_policy", "draft_refund", "submit_refund"]
    assert {call["contacted"] for call in proposed} == {False}
    assert proposed[0]["arguments"] == {"fields": ["order_id"], "values": {}}
    keys = {call["action_id"]: call["key"] for call in proposed if call["action_id"]}
    assert all(keys.values())
    for kind, contacted in (("action.started", False), ("action.succeeded", True)):
        bodies = entries_of(bench, played, kind)
        assert {body["subject_id"]: body["key"] for body in bodies} == keys
        assert {body["contacted"] for body in bodies} == {contacted}
        assert {len(body["arguments_sha256"]) for body in bodies} == {SHA}
    settled = {body["subject_id"]: body["binding_sha256"] for body in entries_of(bench, played, "call.settled")}
    assert settled == {row["call_key"]: row["binding_sha256"] for row in calls_of(bench, played)}


def test_suppressed_duplicates_are_in_the_audit(bench: Bench) -> None:
    operation_id = bench.submit("acme", DUPLICATE)
    bench.settle()
    [drafts] = entries_of(bench, operation_id, "turn.proposed")
    assert [call["duplicate"] for call in drafts["calls"]] == [False, True]
    assert len({call["key"] for call in drafts["calls"]}) == 1
    assert {call["contacted"] for call in drafts["calls"]} == {False}
    assert len(entries_of(bench, operation_id, "action.started")) == 1
    assert [body["duplicate"] for body in entries_of(bench, operation_id, "call.settled")] == [False, True]


def test_no_argument_value_is_in_the_audit(bench: Bench, played: str) -> None:
    """Except where the downstream made it: its reference is evidence."""
    [found] = bench.sql("SELECT string_agg(body::text, ' ') AS text FROM audit WHERE operation_id = :o", o=played)
    references = {row["external_ref"] for row in bench.sql("SELECT external_ref FROM actions")}
    values = {value for row in calls_of(bench, played) for value in row["arguments"].values() if isinstance(value, str)}
    assert len(values - references) >= 3
    assert not [value for value in values - references if f'"{value}"' in found["text"]]


class Marked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    order: Annotated[str, AUDITED]
    secret: str = "s3cret"
    count: Annotated[int, AUDITED] = 1
    ratio: Annotated[float, AUDITED] = 0.5


@tool(effect="read", description="Looks.")
def look(args: Marked, ctx: Any) -> DraftRefund:
    raise NotImplementedError


def test_only_marked_arguments_show_and_no_schema_tells() -> None:
    given = Marked(order="A1").model_dump()
    assert redacted(look, given) == {
        "fields": ["count", "order", "ratio", "secret"],
        "values": {"order": "A1", "count": 1},
    }
    assert redacted(None, given) == redacted(look, None) == {"fields": [], "values": {}}
    assert "AUDITED" not in str(look.schema)


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"version": "2"}, {"handler"}),
        ({"description": "Looks twice."}, {"handler"}),
        ({"effect": "overwrite"}, {"effect", "handler"}),
        ({"max_result_bytes": 512}, {"output", "handler"}),
        ({"expose": frozenset({"reason"})}, {"output", "handler"}),
        ({"scopes": frozenset({"x"})}, {"handler"}),
        ({"queue": "other", "timeout": 5.0, "concurrency": 3}, set()),
    ],
)
def test_revisions_change_with_the_contract(changed: dict[str, Any], differs: set[str]) -> None:
    spec: ToolSpec = tool(**({"effect": "read", "description": "Looks.", "name": "look"} | changed))(look.handler)
    old, new = contract(look), contract(spec)
    assert {
        name for name in ("input", "output", "effect", "handler") if getattr(old, name) != getattr(new, name)
    } == differs


# --- refused at correlation ----------------------------------------------------------------------------------------

A, B = (f"(SELECT call_key FROM calls WHERE operation_id = :o AND turn = 1 AND position = {n})" for n in (0, 1))
SWAP = (
    "UPDATE calls c SET {} FROM calls d WHERE c.operation_id = :o AND d.operation_id = :o "
    "AND c.turn = 1 AND d.turn = 1 AND c.position <> d.position"
)
COPIED = (
    "operation_id, tenant, turn, revision, response_id, tool, tool_version, effect, arguments, arguments_sha256, "
    "state, observation, binding, binding_sha256, settled_at"
)
COPY = (
    f"INSERT INTO calls (call_key, position, call_id, {COPIED}) "
    f"SELECT 'call_' || md5(operation_id), 2, {{}}, {COPIED} FROM calls WHERE call_key = "
)
TAMPERS = {
    "swapped results": SWAP.format("observation = d.observation"),
    "swapped results with their bindings": SWAP.format(
        "observation = d.observation, binding = d.binding, binding_sha256 = d.binding_sha256"
    ),
    "missing result": (
        "UPDATE calls SET state = 'READY', observation = NULL, binding_sha256 = NULL, settled_at = NULL "
        f"WHERE call_key = {A}"
    ),
    "missing call": f"DELETE FROM calls WHERE call_key = {A}",
    "duplicated result": COPY.format("call_id || 'x'") + A,
    "unknown result": COPY.format("'call_of_nobody'") + B,
    "altered result": f"UPDATE calls SET observation = replace(observation, 'EUR', 'USD') WHERE call_key = {A}",
    "altered state": f"UPDATE calls SET state = 'FAILED' WHERE call_key = {A}",
    "altered arguments": f"UPDATE calls SET arguments = '{{\"order_id\": \"ORD-999999\"}}' WHERE call_key = {A}",
    "altered binding": f"UPDATE calls SET binding = binding || '{{\"tenant\": \"other\"}}' WHERE call_key = {A}",
    "binding with fewer fields": f"UPDATE calls SET binding = binding - 'provider' WHERE call_key = {A}",
    "other response": f"UPDATE calls SET response_id = 'resp_other' WHERE call_key = {A}",
    "other tool version": f"UPDATE calls SET tool_version = '9' WHERE call_key = {A}",
    "other subject": "UPDATE operations SET subject = 'somebody-else' WHERE operation_id = :o",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TAMPERS))
def test_refused_at_correlation(bench: Bench, name: str) -> None:
    operation_id = bench.submit("acme")
    stop_at(bench, lambda: bench.view(operation_id).state == "RESULTS_READY")
    _refused(bench, operation_id, TAMPERS[name])


def test_a_result_of_another_action_is_refused(bench: Bench) -> None:
    """The call of a write, after its action got another key."""
    operation_id = bench.submit("acme")
    stop_at(bench, lambda: bench.view(operation_id).turns == 2 and bench.view(operation_id).state == "RESULTS_READY")
    _refused(bench, operation_id, "UPDATE actions SET idempotency_key = idempotency_key || 'x' WHERE operation_id = :o")


def stop_at(bench: Bench, condition: Callable[[], bool]) -> None:
    while not condition():
        assert bench.step()


def _refused(bench: Bench, operation_id: str, tamper: str) -> None:
    order = f"ORD-{100_000 + 10 * bench.made.index(operation_id):06}"
    asked = len(bench.model.requests(order))
    sql_as_owner(bench, tamper, o=operation_id)
    with capture_logs() as logs:
        assert turn.advance(bench.app, operation_id)
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["binding.mismatch"]
    assert (bench.view(operation_id).state, bench.view(operation_id).reason) == ("FAILED", "INTERNAL")
    assert len(bench.model.requests(order)) == asked, "nothing of it reached the model"
