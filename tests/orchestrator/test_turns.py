"""One turn: what the model is asked, what its replies become, and which failures are asked again."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from orchestrator import turn
from orchestrator.app import App
from orchestrator.domain.errors import Unavailable
from policy.profile import Budgets, Model
from store import operations
from tests.orchestrator.desk import DONE, Desk, call, calls

LOOK = calls(call("look", text="a"))


def test_a_final_text(desk: Desk) -> None:
    view = desk.advance(desk.submit(DONE))
    assert (view.state, view.reason, view.final_text, view.turns) == ("COMPLETED", None, "Done.", 1)
    assert view.pending == {"happened": [], "unresolved": [], "not_started": [], "failed": []}


def test_results_go_back_and_the_loop_goes_on(desk: Desk) -> None:
    operation = desk.submit(calls(call("look", "c1", text="a"), call("ghost", "c2")), DONE)
    desk.lab.will(json={"id": "7", "text": "blue"})
    view = desk.run(operation)
    assert (view.state, view.turns) == ("COMPLETED", 2)
    outputs = [i for i in desk.requests(operation)[1]["input"] if i.get("type") == "function_call_output"]
    assert [o["call_id"] for o in outputs] == ["c1", "c2"]
    assert outputs[0]["output"] == '{"state":"succeeded","data":{"id":"7","text":"blue"}}'
    assert '"UNKNOWN_TOOL"' in outputs[1]["output"]


def test_only_what_the_scopes_allow_is_offered(desk: Desk) -> None:
    operation = desk.submit(DONE, tools=("look", "write"))
    desk.advance(operation)
    assert [tool["name"] for tool in desk.requests(operation)[0]["tools"]] == ["look", "write"]


def test_the_last_turn_asks_for_an_answer(desk: Desk) -> None:
    operation = desk.submit(LOOK, LOOK, budgets=Budgets(turns=2))
    view = desk.run(operation)
    first, last = desk.requests(operation)
    assert first.get("tool_choice") in (None, "auto")
    assert last["tool_choice"] == "none"
    assert (view.state, view.final_text) == ("COMPLETED", "(tools are off)")


def test_without_a_call_left_the_model_must_answer(desk: Desk) -> None:
    operation = desk.submit(LOOK, LOOK, budgets=Budgets(calls=1))
    assert desk.run(operation).state == "COMPLETED"
    assert desk.requests(operation)[1]["tool_choice"] == "none"


def test_refusal(desk: Desk) -> None:
    view = desk.advance(desk.submit({"refusal": "I cannot do that."}))
    assert (view.state, view.reason, view.final_text) == ("REFUSED", None, "I cannot do that.")


def test_truncated(desk: Desk) -> None:
    view = desk.advance(desk.submit({"truncated": "It is in"}))
    assert (view.state, view.reason, view.final_text) == ("INCOMPLETE", "TRUNCATED", "It is in")


# --- failures of the provider --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 529}, {"cut": "before"}, {"cut": "half"}])
def test_a_short_failure_is_asked_again_in_place(desk: Desk, fault: dict[str, Any]) -> None:
    operation = desk.submit(DONE | {"fault": fault | {"times": 1}})
    view = desk.advance(operation)
    assert (view.state, view.turns, len(desk.requests(operation))) == ("COMPLETED", 1, 2)


def test_a_long_wait_is_parked_and_holds_no_worker(desk: Desk) -> None:
    operation = desk.submit(DONE | {"fault": {"status": 429, "headers": {"retry-after": "120"}, "times": 1}})
    view = desk.advance(operation)
    assert (view.state, view.turns, len(desk.requests(operation))) == ("READY", 0, 1)
    [parked] = desk.sql(
        "SELECT wake_at - clock_timestamp() > '100 s' AS late, fence FROM operations WHERE operation_id = :o",
        o=operation,
    )
    assert parked["late"]
    assert not turn.advance(desk.app, operation), "its time has not come"
    desk.hurry(operation)
    view = desk.advance(operation)
    assert (view.state, view.turns) == ("COMPLETED", 1)
    assert [r.failure_code is None for r in view.requests] == [False, True]


def test_a_provider_that_never_answers_fails_the_operation(desk: Desk) -> None:
    operation = desk.submit(DONE | {"fault": {"status": 500}})
    view = desk.run(operation)
    assert (view.state, view.reason) == ("FAILED", "PROVIDER_UNAVAILABLE")
    assert len(desk.requests(operation)) == desk.app.settings.ask_limit
    assert view.turns == 0


def test_nobody_listens(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_MODEL_URL", "http://127.0.0.1:1/v1")
    view = desk.run(desk.submit(DONE))
    assert (view.state, view.reason) == ("FAILED", "PROVIDER_UNAVAILABLE")
    assert {r.failure_code for r in view.requests} == {"UNREACHABLE"}


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "PROVIDER_AUTH"), (403, "PROVIDER_AUTH"), (400, "PROVIDER_CONFIG")]
)
def test_what_repeating_does_not_mend_is_asked_once(desk: Desk, status: int, reason: str) -> None:
    operation = desk.submit(DONE | {"fault": {"status": status}})
    view = desk.advance(operation)
    assert (view.state, view.reason, len(desk.requests(operation))) == ("FAILED", reason, 1)


@pytest.mark.parametrize(
    "recipe",
    [
        Model(api="openai-responses", name="m", base_url="$LAB_ABSENT"),
        Model(api="openai-responses", name="m", base_url="$LAB_MODEL_URL", api_key_env="LAB_ABSENT"),
        Model(api="telepathy", name="m", base_url="$LAB_MODEL_URL"),
    ],
)
def test_a_profile_that_cannot_be_asked(desk: Desk, recipe: Model) -> None:
    view = desk.advance(desk.submit(DONE, model=recipe))
    assert (view.state, view.reason, view.turns) == ("FAILED", "PROVIDER_CONFIG", 0)


# --- evidence for an answer ----------------------------------------------------------------------------------------


def test_a_missing_required_tool_is_told_once_then_it_is_no_success(desk: Desk) -> None:
    operation = desk.submit(DONE, DONE, required_tools=("write",))
    told = desk.advance(operation)
    assert told.state == "READY"
    view = desk.advance(operation)
    assert (view.state, view.reason, view.final_text) == ("INCOMPLETE", "UNCONFIRMED", "Done.")
    assert "write has not succeeded" in str(desk.requests(operation)[1]["input"][-1])


def test_told_what_is_missing_the_model_can_still_do_it(desk: Desk) -> None:
    operation = desk.submit(DONE, calls(call("write")), DONE, required_tools=("write",))
    assert desk.run(operation).state == "COMPLETED"
    assert len(desk.lab.effects) == 1


def test_a_failed_required_tool_is_no_evidence(desk: Desk) -> None:
    operation = desk.submit(calls(call("write")), DONE, DONE, required_tools=("write",))
    desk.lab.will(status=422, json={"code": "FULL"}, effect=False)
    assert desk.run(operation).reason == "UNCONFIRMED"


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def test_output_schema(desk: Desk) -> None:
    good = desk.submit(DONE, {"text": '{"ok":true}'}, output_schema=SCHEMA)
    assert desk.run(good).state == "COMPLETED"
    bad = desk.submit(DONE, {"text": '{"ok":1}'}, output_schema=SCHEMA)
    assert desk.run(bad).reason == "OUTPUT_INVALID"


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ok: bool
    note: str = ""
    seen: list[str] = []


@pytest.mark.parametrize("api", ["openai-responses", "openai-chat"])
def test_nulls_of_the_strict_form_are_what_the_model_left_out(desk: Desk, api: str) -> None:
    """OpenAI's strict schemas require every property: a model says null for an optional one that it leaves out."""
    model = Model(api=api, name=f"nulls-{api}", base_url="$LAB_MODEL_URL")
    desk.model.add({"id": model.name, "turns": [{"text": '{"ok":true,"note":null,"seen":null}'}]})
    view = desk.run(desk.submit(model=model, output_schema=Verdict.model_json_schema()))
    assert (view.state, view.final_text) == ("COMPLETED", '{"ok": true}')
    [sent] = [request["body"] for request in desk.model.requests(model.name)]
    assert '"strict": true' in json.dumps(sent)


def test_a_null_that_the_schema_does_not_know_is_still_wrong(desk: Desk) -> None:
    operation = desk.submit(DONE, {"text": '{"ok":null}'}, output_schema=Verdict.model_json_schema())
    assert desk.run(operation).reason == "OUTPUT_INVALID"


# --- bindings ------------------------------------------------------------------------------------------------------

# Each is done to the operation of the test; the first call of each turn is a read that succeeded.
TAMPERING = {
    "observation": """UPDATE calls SET observation = '{"state":"succeeded","data":{}}' WHERE position = 0""",
    "swapped": "UPDATE calls c SET observation = d.observation FROM calls d WHERE c.operation_id = d.operation_id "
    "AND c.turn = d.turn AND c.position <> d.position",
    "state": "UPDATE calls SET state = 'FAILED' WHERE position = 0",
    "binding": "UPDATE calls SET binding = jsonb_set(binding, '{tenant}', '\"initech\"') WHERE position = 0",
    "binding digest": "UPDATE calls SET binding_sha256 = repeat('0', 64) WHERE position = 0",
    "call id": "UPDATE calls SET call_id = 'other' WHERE position = 0",
    "tool": "UPDATE calls SET tool = 'narrow' WHERE position = 0",
    "missing": "DELETE FROM calls WHERE position = 1",
    "subject": "UPDATE operations SET subject = 'mallory' WHERE true",
}


@pytest.mark.parametrize("what", TAMPERING)
@pytest.mark.parametrize("turns_later", [0, 1])
def test_altered_evidence_never_reaches_the_model(desk: Desk, what: str, turns_later: int) -> None:
    """In the turn that follows, and in every later one that would send it again."""
    two = calls(call("look", "c1", text="a"), call("ghost", "c2"))
    operation = desk.submit(two, calls(call("look", "c3", text="b")), DONE)
    desk.advance(operation)
    desk.step("reads")
    for _ in range(turns_later):
        desk.advance(operation)
        desk.step("reads")
    asked = len(desk.requests(operation))
    own = "c.operation_id" if what == "swapped" else "operation_id"
    desk.tamper("operations" if what == "subject" else "calls", f"{TAMPERING[what]} AND {own} = '{operation}'")
    view = desk.advance(operation)
    assert (view.state, view.reason) == ("FAILED", "INTERNAL")
    assert len(desk.requests(operation)) == asked


# --- lost turns ----------------------------------------------------------------------------------------------------


def lose_turn(desk: Desk, operation: str) -> None:
    """A worker claims the turn and dies."""
    desk.hurry(operation)
    with desk.app.database.autocommit() as connection:
        assert operations.claim_turn(connection, operation, 60) is not None
    assert desk.sweep()["lost_turns"] == 0, "a live lease is left alone"
    desk.expire_leases(operation)
    assert desk.sweep()["lost_turns"] == 1


def test_a_lost_turn_is_asked_again(desk: Desk) -> None:
    operation = desk.submit(DONE)
    lose_turn(desk, operation)
    view = desk.advance(operation)
    assert (view.state, view.turns) == ("COMPLETED", 1)
    assert len(desk.audit(operation, "turn.lost")) == 1


def test_a_turn_that_kills_its_workers_is_parked(desk: Desk) -> None:
    operation = desk.submit(DONE)
    for _ in range(desk.app.settings.lost_limit):
        lose_turn(desk, operation)
    view = desk.view(operation)
    assert (view.state, view.reason, view.parked, view.wake_at) == ("READY", None, "POISON_TURN", None)


def test_a_lost_turn_with_provider_tools_stops_where_the_profile_says_so(desk: Desk) -> None:
    model = Model(api="openai-responses", name="m", base_url="$LAB_MODEL_URL", provider_tools_on_loss="stop")
    operation = desk.submit(DONE, model=model)
    lose_turn(desk, operation)
    assert desk.view(operation).reason == "INTERNAL"


def test_a_zombie_turn_records_nothing(desk: Desk) -> None:
    """Its reply comes back after the sweeper has given the turn away."""
    operation = desk.submit(DONE)
    with desk.app.database.autocommit() as connection:
        mine = operations.claim_turn(connection, operation, 60)
    assert mine is not None
    desk.expire_leases(operation)
    desk.sweep()
    with desk.app.leases.hold("operation", operation, mine.fence, 0) as lease:
        turn._take_turn(desk.app, mine, lease)
    view = desk.view(operation)
    assert (view.state, view.requests, view.final_text) == ("READY", [], None)


def test_an_unreachable_database_is_one_error(desk: Desk) -> None:
    away = desk.app.settings.model_copy(update={"database_url": "postgresql://nobody@127.0.0.1:1/none"})
    app = App(away, desk.app.registry)
    with pytest.raises(Unavailable) as caught:
        turn.advance(app, None)
    assert caught.value.code == "DATABASE_UNREACHABLE"
    app.close()
