"""The judge: every verdict, and the order of its questions. Real registry, real models, no database."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from executors.registry import IdempotencyContract, Registry, ToolSpec
from orchestrator.domain import digests
from orchestrator.domain.action import ActionState
from orchestrator.domain.model import Effect, ProposedCall
from orchestrator.judge import (
    Act,
    Bench,
    Judged,
    KnownAction,
    Read,
    Refuse,
    Repeat,
    coming_id,
    intent_sha256,
    judge,
    policy_version,
    still_authorized,
)
from policy.base import Allow, Ask, Decision, Deny, Principal
from policy.profile import Budgets, Model, Profile


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Pay(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    order: str = Field(pattern=r"^[AB]\d$")
    cents: Annotated[int, AfterValidator(even)] = 0
    day: date | None = None


class Look(BaseModel):
    model_config = ConfigDict(extra="forbid")
    order: str
    number: float = 0


class Result(BaseModel):
    id: str


def handler(args: Any, ctx: Any) -> Result:
    raise AssertionError("the judge runs nothing")


def authorize(args: Pay | Look, principal: Principal) -> Decision:
    match args.order:
        case "A9":
            raise RuntimeError("the shop does not answer")
        case "A8":
            return Deny("NOT_YOURS", "it is customer-8's")
        case "A7":
            return None  # type: ignore[return-value]
        case "A6":
            return Ask("is that so?")
    return Allow()


LOOK = ToolSpec(
    name="look", description="Look.", arguments=Look, result=Result, handler=handler, effect=Effect.READ,
    scopes=frozenset({"r"}), authorize=authorize,
)  # fmt: skip
PAY = ToolSpec(
    name="pay", description="Pay.", arguments=Pay, result=Result, handler=handler, effect=Effect.CREATE,
    scopes=frozenset({"r", "w"}), authorize=authorize, intent=("order",), idempotency=IdempotencyContract(),
    approval=lambda args, principal: args.cents > 100,
    resource_version=lambda args, principal: f"v-{args.order}",
)  # fmt: skip
SEND = ToolSpec(
    name="send", description="Send.", arguments=Look, result=Result, handler=handler, effect=Effect.READ, egress=True,
    approval=True,
)  # fmt: skip


def crash(args: Any) -> bool:
    if args.order == "A9":
        sys.exit("as a program would")
    return 1 / 0 > 0


BROKEN = ToolSpec(
    name="broken", description="Ask a rule that crashes.", arguments=Look, result=Result, handler=handler,
    effect=Effect.OVERWRITE, approval=lambda args, principal: crash(args),
)  # fmt: skip
UNLISTED = ToolSpec(
    name="unlisted", description="Registered only.", arguments=Look, result=Result, handler=handler, effect=Effect.READ
)
ALICE = Principal("acme", "alice", frozenset({"r", "w"}))


@pytest.fixture
def registry() -> Registry:
    known = Registry()
    known.add(LOOK, PAY, SEND, BROKEN, UNLISTED)
    return known


BenchOf = Callable[..., Bench]


@pytest.fixture
def bench(registry: Registry) -> BenchOf:
    def build(budgets: Budgets | None = None, **changed: Any) -> Bench:
        profile = Profile(
            name="desk", model=Model(api="openai-chat", name="m", base_url="http://h/v1"), instructions="x",
            tools=("look", "pay", "send", "broken"), budgets=budgets or Budgets(),
        )  # fmt: skip
        fields: dict[str, Any] = {
            "registry": registry, "profile": profile, "principal": ALICE, "operation_id": "op_1",
            "offered": frozenset(profile.tools), "calls_used": 0, "writes_used": 0, "per_tool": Counter(),
        }  # fmt: skip
        return Bench(**(fields | changed))

    return build


def call(name: str, call_id: str = "c1", /, text: str | None = None, **arguments: Any) -> ProposedCall:
    return ProposedCall(call_id, name, json.dumps(arguments) if text is None else text)


def one(bench: Bench, proposed: ProposedCall) -> Any:
    [judged] = judge(bench, [proposed])
    return judged.verdict


def codes(judged: list[Judged]) -> list[str]:
    return [j.verdict.code if isinstance(j.verdict, Refuse) else type(j.verdict).__name__ for j in judged]


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_a_read(bench: BenchOf) -> None:
    assert one(bench(), call("look", order="A1")) == Read(LOOK, {"order": "A1", "number": 0.0})


def test_a_write_without_approval(bench: BenchOf) -> None:
    the_bench = bench()
    act = one(the_bench, call("pay", order="A1", cents=100))
    assert isinstance(act, Act)
    assert (act.arguments, act.generation) == ({"order": "A1", "cents": 100, "day": None}, 0)
    assert (act.ask, act.resource_version) == (None, "v-A1")
    assert act.policy_version == policy_version(PAY, the_bench.profile)


def test_a_write_that_a_rule_wants_approved(bench: BenchOf) -> None:
    assert isinstance(one(bench(), call("pay", order="A1", cents=102)).ask, Ask)


def test_an_egress_read_is_an_action_and_no_write(bench: BenchOf) -> None:
    the_bench = bench(Budgets(writes=0))
    act = one(the_bench, call("send", order="A1"))
    assert isinstance(act, Act)
    assert isinstance(act.ask, Ask)
    assert (the_bench.writes_used, the_bench.calls_used) == (0, 1)


@pytest.mark.parametrize("name", ["ghost", "", "Look", "unlisted"])
def test_unknown_tool(bench: BenchOf, name: str) -> None:
    assert one(bench(), call(name, order="A1")).code == "UNKNOWN_TOOL"


def test_not_offered_in_this_turn(bench: BenchOf) -> None:
    assert one(bench(offered=frozenset({"pay"})), call("look", order="A1")).code == "TOOL_NOT_OFFERED"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", "MALFORMED_JSON", ""),
        ('{"order":"A1","order":"B1"}', "DUPLICATE_KEY", ""),
        ('{"order":"A1","cents":NaN}', "MALFORMED_JSON", ""),
        ('["A1"]', "NOT_AN_OBJECT", ""),
        ("[" * 1000, "TOO_DEEP", ""),
        ('{"order":"' + "A" * 300_000 + '"}', "TOO_LARGE", ""),
        ("{}", "INVALID_ARGUMENTS", "order: Field required"),
        ('{"order":"C1"}', "INVALID_ARGUMENTS", "order: "),
        ('{"order":"A1","cents":"2"}', "INVALID_ARGUMENTS", "cents: "),
        ('{"order":"A1","cents":3}', "INVALID_ARGUMENTS", "must be even"),  # business validation
        ('{"order":"A1","colour":"SECRET"}', "INVALID_ARGUMENTS", "colour: "),
        ('{"order":"A1","cents":9007199254740992}', "NUMBER_OUT_OF_RANGE", ""),
    ],
)
def test_bad_arguments(bench: BenchOf, text: str, code: str, said: str) -> None:
    refused = one(bench(), call("pay", text=text))
    assert refused.code == code
    assert said in refused.message
    assert "SECRET" not in refused.message
    assert "C1" not in refused.message
    assert refused.arguments is None


def test_a_strict_model_takes_a_date_from_json(bench: BenchOf) -> None:
    act = one(bench(), call("pay", order="A1", day="2026-03-01"))
    assert act.arguments["day"] == "2026-03-01"


def test_missing_scope(bench: BenchOf) -> None:
    reader = Principal("acme", "bob", frozenset({"r"}))
    assert one(bench(principal=reader), call("pay", order="A1")).code == "FORBIDDEN"


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ("A9", "AUTHORIZATION_UNAVAILABLE"),  # a crash is a no
        ("A8", "NOT_YOURS"),
        ("A7", "AUTHORIZATION_UNAVAILABLE"),  # so is no answer
        ("A6", "AUTHORIZATION_UNAVAILABLE"),  # and an answer of another kind
    ],
)
@pytest.mark.parametrize("tool", ["look", "pay"])
def test_the_resource_decides(bench: BenchOf, tool: str, order: str, code: str) -> None:
    refused = one(bench(), call(tool, order=order))
    assert (refused.code, refused.message) == (code, ""), "the reason is for people, not for the model"
    assert refused.arguments is not None


@pytest.mark.parametrize("order", ["A1", "A9"])
def test_a_rule_that_crashes_has_not_allowed_it(bench: BenchOf, order: str) -> None:
    assert one(bench(), call("broken", order=order)).code == "POLICY_UNAVAILABLE"


# --- order of the questions ----------------------------------------------------------------------------------------


def test_each_question_comes_before_the_next(bench: BenchOf) -> None:
    """One call that is wrong in every way, mended step by step."""
    nobody = Principal("acme", "mallory")
    spent = Budgets(calls=0)
    strict = bench(spent, principal=nobody, offered=frozenset())
    assert codes(judge(strict, [call("look", order="A1"), call("ghost", text="{")]))[1] == "DUPLICATE_CALL_ID"
    assert one(strict, call("ghost", text="{")).code == "UNKNOWN_TOOL"
    assert one(strict, call("pay", text="{")).code == "TOOL_NOT_OFFERED"
    offered = bench(spent, principal=nobody)
    assert one(offered, call("pay", text="{")).code == "MALFORMED_JSON"
    assert one(offered, call("pay", order="C1")).code == "INVALID_ARGUMENTS"
    assert one(offered, call("pay", order="A8")).code == "FORBIDDEN"
    assert one(bench(spent), call("pay", order="A8")).code == "NOT_YOURS"
    paid = known("A1", {"order": "A1", "cents": 0, "day": None})
    assert isinstance(one(bench(spent, actions=[paid]), call("pay", order="A1")), Repeat)  # costs no budget
    assert one(bench(spent, actions=[paid]), call("pay", order="A1", cents=2)).code == "CONFLICTING_INTENT"
    assert one(bench(spent), call("pay", order="A1")).code == "CALL_BUDGET"
    assert one(bench(spent), call("broken", order="A1")).code == "CALL_BUDGET"  # before the approval rule


def test_a_call_that_fails_does_not_stop_the_others(bench: BenchOf) -> None:
    calls = [
        call("ghost", "1"),
        call("look", "2", order="A1"),
        call("look", "2", order="A1"),
        call("pay", "3", order="A2"),
    ]
    assert codes(judge(bench(), calls)) == ["UNKNOWN_TOOL", "Read", "DUPLICATE_CALL_ID", "Act"]


def test_digests_of_arguments_even_where_they_do_not_parse(bench: BenchOf) -> None:
    good, bad, odd = judge(
        bench(), [call("look", "1", order="A1"), call("look", "2", text="{"), call("x", "3", text="\ud800")]
    )
    assert good.arguments_sha256 == digests.sha256("arguments-v1", {"order": "A1", "number": 0})
    assert bad.arguments_sha256 == digests.sha256_bytes(b"{")
    assert len(odd.arguments_sha256) == 64


# --- duplicate intent ----------------------------------------------------------------------------------------------


def known(
    order: str, arguments: dict[str, Any], state: ActionState = ActionState.SUCCEEDED, code: str | None = None
) -> KnownAction:
    intent = intent_sha256(PAY, {"order": order})
    return KnownAction("act_1", "pay", intent, digests.sha256("arguments-v1", arguments), state, code)


FULL = {"order": "A1", "cents": 0, "day": None}


@pytest.mark.parametrize("state", sorted(set(ActionState) - {ActionState.FAILED}))
def test_the_same_intent_again_is_a_repeat(bench: BenchOf, state: ActionState) -> None:
    known_action = known("A1", FULL, state, "APPROVAL_DENIED")
    assert one(bench(actions=[known_action]), call("pay", order="A1")) == Repeat(PAY, FULL, "act_1")


def test_the_same_intent_with_other_arguments_is_a_conflict(bench: BenchOf) -> None:
    refused = one(bench(actions=[known("A1", FULL)]), call("pay", order="A1", cents=2))
    assert refused.code == "CONFLICTING_INTENT"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ActionState.FAILED, "OUT_OF_STOCK"),
        (ActionState.REJECTED, "EARLIER_WRITE_NOT_DONE"),
        (ActionState.REJECTED, "APPROVAL_EXPIRED"),
        (ActionState.REJECTED, "RESOURCE_CHANGED"),
        (ActionState.REJECTED, "POLICY_CHANGED"),
        (ActionState.REJECTED, "APPROVAL_INVALID"),  # approved, and expired before it could start
        (ActionState.REJECTED, "POLICY_UNAVAILABLE"),
        (ActionState.REJECTED, "AUTHORIZATION_UNAVAILABLE"),
    ],
)
@pytest.mark.parametrize("cents", [0, 2])
def test_what_was_not_applied_gives_way_to_a_new_generation(
    bench: BenchOf, state: ActionState, code: str, cents: int
) -> None:
    act = one(bench(actions=[known("A1", FULL, state, code)]), call("pay", order="A1", cents=cents))
    assert isinstance(act, Act)
    assert act.generation == 1


def test_only_the_newest_action_of_an_intent_counts(bench: BenchOf) -> None:
    actions = [known("A1", FULL, ActionState.FAILED), known("A1", FULL, ActionState.FAILED)]
    assert one(bench(actions=actions), call("pay", order="A1")).generation == 2
    assert isinstance(one(bench(actions=[*actions, known("A1", FULL)]), call("pay", order="A1")), Repeat)


def test_another_intent_or_tool_is_independent(bench: BenchOf) -> None:
    assert one(bench(actions=[known("A1", FULL)]), call("pay", order="A2")).generation == 0


def test_a_repeat_within_one_reply_waits_for_the_first(bench: BenchOf) -> None:
    calls = [call("look", "1", order="A1"), call("pay", "2", order="A1"), call("pay", "3", order="A1")]
    calls.append(call("pay", "4", order="A1", cents=2))
    the_bench = bench()
    judged = judge(the_bench, calls)
    assert codes(judged) == ["Read", "Act", "Repeat", "CONFLICTING_INTENT"]
    assert isinstance(judged[2].verdict, Repeat)
    assert judged[2].verdict.action_id == coming_id(1)
    assert the_bench.writes_used == 1


# --- budgets within one reply --------------------------------------------------------------------------------------


def test_calls_are_reserved_in_order(bench: BenchOf) -> None:
    the_bench = bench(Budgets(calls=3), calls_used=1)
    calls = [call("look", str(i), order=f"B{i}") for i in range(3)]
    assert codes(judge(the_bench, calls)) == ["Read", "Read", "CALL_BUDGET"]
    assert the_bench.calls_used == 3


def test_calls_per_tool(bench: BenchOf) -> None:
    the_bench = bench(Budgets(calls_per_tool={"look": 2}), per_tool=Counter({"look": 1}))
    calls = [call("look", "1", order="B1"), call("look", "2", order="B2"), call("pay", "3", order="A1")]
    assert codes(judge(the_bench, calls)) == ["Read", "TOOL_CALL_BUDGET", "Act"]


def test_writes(bench: BenchOf) -> None:
    the_bench = bench(Budgets(writes=2), writes_used=1)
    calls = [call("pay", "1", order="A1"), call("pay", "2", order="A2"), call("look", "3", order="A1")]
    assert codes(judge(the_bench, calls)) == ["Act", "WRITE_BUDGET", "Read"]
    assert (the_bench.writes_used, the_bench.calls_used) == (2, 2)


def test_refusals_and_repeats_cost_nothing(bench: BenchOf) -> None:
    the_bench = bench(Budgets(calls=1), actions=[known("A1", FULL)])
    calls = [
        call("ghost", "1"),
        call("look", "2", text="{"),
        call("look", "3", order="A8"),
        call("pay", "4", order="A1"),
    ]
    calls.append(call("look", "5", order="A1"))
    assert codes(judge(the_bench, calls))[-1] == "Read"


# --- just before the start -----------------------------------------------------------------------------------------


def test_policy_version_changes_with_what_decided(bench: BenchOf) -> None:
    profile = bench().profile
    version = policy_version(PAY, profile)
    changes: list[dict[str, Any]] = [
        {"version": "2"},
        {"scopes": frozenset({"r"})},
        {"approval": True},
        {"arguments": Look},
        {"effect": Effect.OVERWRITE},
    ]
    versions = {policy_version(replace(PAY, **(c | {"intent": None})), profile) for c in changes}
    assert len(versions | {version}) == len(changes) + 1
    assert policy_version(PAY, profile.model_copy(update={"instructions": "y"})) != version


def test_still_authorized_asks_again() -> None:
    assert still_authorized(PAY, FULL | {"day": "2026-03-01"}, ALICE) is None
    denied = still_authorized(PAY, FULL | {"order": "A8"}, ALICE)
    assert denied is not None
    assert denied.code == "NOT_YOURS"
    gone = still_authorized(PAY, {"order": "A1", "field_of_an_older_release": 1}, ALICE)
    assert gone is not None
    assert gone.code == "POLICY_CHANGED"
