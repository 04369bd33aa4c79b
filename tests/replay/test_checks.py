"""The comparisons of the replay must notice what is wrong: a check that passes everything proves nothing."""

import json
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from tests.replay import checks
from tests.replay.checks import Answered, Outcome
from tests.replay.jobs import STAFF, authz_job, task_job
from tests.replay.recordings import Expected, Recording, Told
from tests.replay.report import Report
from tests.replay.workload import Action, AuthzCase, Call, ErrorCase, Task, digest

READ = Call("get_thing", {"id": "1"})
WRITE = Call("change_thing", {"id": "1"})
TASK = Task(
    "t-1",
    "please",
    "ann",
    frozenset({"ann"}),
    (
        Action(READ, 1, False, digest({"id": "1"}), None),
        Action(Call("get_thing", {"id": "2"}), 1, False, None, "Thing not found"),
        Action(WRITE, 2, True, digest({"id": "1", "n": 1.5}), None),
    ),
    "final",
)


def succeeded(call: Call, data: object) -> Answered:
    return Answered(call, {"state": "succeeded", "data": data}, is_error=False)


def refused(call: Call, code: str, message: str | None = None) -> Answered:
    return Answered(call, {"state": "rejected", "code": code, "message": message}, is_error=True)


RIGHT = Outcome(
    "COMPLETED",
    None,
    (
        succeeded(READ, {"id": "1"}),
        refused(TASK.actions[1].call, "THING_NOT_FOUND", "Thing not found"),
        succeeded(WRITE, {"n": 1.5, "id": "1"}),
    ),
)


def with_call(number: int, answered: Answered) -> Outcome:
    calls = list(RIGHT.calls)
    calls[number] = answered
    return replace(RIGHT, calls=tuple(calls))


def test_what_is_right_passes() -> None:
    assert checks.task_wrong(TASK, RIGHT) == []


@pytest.mark.parametrize(
    "outcome",
    [
        replace(RIGHT, state="INCOMPLETE", reason="TURN_BUDGET"),
        replace(RIGHT, calls=RIGHT.calls[:2]),
        replace(RIGHT, calls=(*RIGHT.calls, RIGHT.calls[0])),
        replace(RIGHT, calls=RIGHT.calls[::-1]),
        with_call(0, succeeded(READ, {"id": "2"})),
        with_call(0, refused(READ, "GONE", "Gone")),
        with_call(0, Answered(READ, {"state": "unknown"}, is_error=False)),
        with_call(1, refused(TASK.actions[1].call, "THING_NOT_FOUND", "No thing")),
        with_call(1, succeeded(TASK.actions[1].call, "Thing not found")),
        with_call(2, succeeded(WRITE, {"id": "1", "n": 1.5000001})),
    ],
)
def test_what_is_wrong_with_a_task_is_seen(outcome: Outcome) -> None:
    assert checks.task_wrong(TASK, outcome)


def one(answered: Answered, attempts: int = 0) -> Outcome:
    return Outcome("COMPLETED", None, (answered,), attempts)


def test_error_cases() -> None:
    case = ErrorCase("e", (), WRITE, True, "Not now", "digest")
    invalid = replace(case, valid=False)
    assert checks.error_wrong(case, one(refused(WRITE, "NOT_NOW", "Not now"), attempts=1)) == []
    assert checks.error_wrong(case, one(refused(WRITE, "NOT_NOW", "Not now."), attempts=1))
    assert checks.error_wrong(case, one(succeeded(WRITE, {})))
    assert checks.error_wrong(invalid, one(refused(WRITE, "BAD_ARGUMENTS"))) == []
    assert checks.error_wrong(invalid, one(refused(WRITE, "BAD_ARGUMENTS"), attempts=1))
    assert checks.error_wrong(invalid, one(succeeded(WRITE, {})))


def test_authorization_cases() -> None:
    case = AuthzCase("a", "bob", WRITE, "digest")
    assert checks.authz_wrong(case, one(refused(WRITE, "FORBIDDEN_RESOURCE"))) == []
    assert checks.authz_wrong(case, one(refused(WRITE, "FORBIDDEN_RESOURCE"), attempts=1))
    assert checks.authz_wrong(case, one(refused(WRITE, "NOT_FOUND")))
    assert checks.authz_wrong(case, one(succeeded(WRITE, {})))
    assert authz_job(case).scopes == frozenset()


@dataclass(frozen=True)
class Row:
    key: str
    tool: str
    arguments_digest: str
    world: str = "w"


def row(key: str, call: Call) -> Row:
    return Row(key, *call.identity)


@pytest.mark.parametrize(
    ("rows", "duplicates", "wrong"),
    [
        ([row("k", WRITE)], 0, 0),
        ([], 0, 1),
        ([row("k", WRITE), row("k", WRITE)], 1, 1),
        ([row("k", WRITE), row("other", WRITE)], 1, 1),
        ([row("k", WRITE), row("k", WRITE), row("other", WRITE)], 2, 1),
        ([row("k", WRITE), row("x", READ)], 1, 1),
        ([row("x", READ)], 1, 2),
    ],
)
def test_effects_are_counted(rows: list[Row], duplicates: int, wrong: int) -> None:
    wanted = checks.effects_wanted([TASK])
    assert wanted == Counter({WRITE.identity: 1})
    assert checks.count_duplicates(rows, wanted) == duplicates
    assert len(checks.effects_wrong(rows, wanted)) == wrong


def test_a_task_becomes_an_operation() -> None:
    own, shared = task_job(TASK, "any"), task_job(TASK, "any", "batch")
    assert (own.world, shared.world) == ("t-1", "batch")
    assert own.id != shared.id
    assert own.scopes == frozenset()
    assert own.input.startswith("[script:t-1] ")
    assert [len(turn.get("calls", [])) for turn in own.script()["turns"]] == [2, 1, 0]
    staff = task_job(replace(TASK, subject=None), "any")
    assert (staff.subject, staff.scopes) == (STAFF, frozenset({"any"}))
    assert task_job(replace(TASK, owners=frozenset({"ann", "bob"})), "any").scopes == {"any"}


CONVERSATION = Expected(
    "ann",
    (
        Told(replace(READ, call_id="c1"), data={"id": "1"}),
        Told(replace(WRITE, call_id="c1"), error="Not now"),
        Told(Call("think", {}, call_id="c2"), code="UNKNOWN_TOOL"),
    ),
    "digest",
    Counter(),
)
ANSWERED = (
    Answered(CONVERSATION.told[0].call, {"state": "succeeded", "data": {"id": "1"}}, is_error=False),
    Answered(CONVERSATION.told[1].call, {"state": "failed", "code": "NOT_NOW", "message": "Not now"}, is_error=True),
    Answered(CONVERSATION.told[2].call, {"state": "rejected", "code": "UNKNOWN_TOOL"}, is_error=True),
)
SHOWN = [json.dumps(each.observation) for each in ANSWERED]


def test_a_conversation_that_is_right_passes() -> None:
    played = Outcome("COMPLETED", None, ANSWERED)
    wrapped = [SHOWN[0], *(f'{{"is_error":true,"output":{text}}}' for text in SHOWN[1:])]
    assert checks.recording_wrong(CONVERSATION, played, SHOWN) == []
    assert checks.recording_wrong(CONVERSATION, played, wrapped) == []


@pytest.mark.parametrize(
    ("answered", "shown"),
    [
        (ANSWERED[::-1], SHOWN[::-1]),
        (ANSWERED, [SHOWN[1], SHOWN[0], SHOWN[2]]),
        (ANSWERED, SHOWN[:2]),
        ((replace(ANSWERED[0], call=replace(READ, call_id="other")), *ANSWERED[1:]), SHOWN),
        ((*ANSWERED[:2], replace(ANSWERED[2], is_error=False)), SHOWN),
        ((ANSWERED[0], replace(ANSWERED[1], observation={"message": "Later"}), ANSWERED[2]), SHOWN),
        ((replace(ANSWERED[0], observation={"state": "succeeded", "data": {}}), *ANSWERED[1:]), SHOWN),
    ],
)
def test_what_is_wrong_with_a_conversation_is_seen(answered: tuple[Answered, ...], shown: list[str]) -> None:
    assert checks.recording_wrong(CONVERSATION, Outcome("COMPLETED", None, answered), shown)


def test_a_recording_becomes_a_script_as_it_was_written() -> None:
    function = {"name": "get_thing", "arguments": '{"id": '}
    data = {
        "id": "r-1",
        "replays_identically_on_benchmark_code": False,
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]},
            {"role": "tool", "content": "Error: what?"},
            {"role": "assistant", "content": "Which one?"},
            {"role": "user", "content": "The second"},
        ],
    }
    recording = Recording.of(data)
    written = {"name": "get_thing", "arguments_text": '{"id": ', "call_id": "c1"}
    assert recording.job("ann").script() == {"id": "r-1", "turns": [{"calls": [written]}, {"text": "Which one?"}]}
    assert recording.job("ann").input == "[script:r-1] Hello"
    assert recording.results == ("Error: what?",)
    own_ids = recording.with_ids_of_the_service().job("ann").script()["turns"][0]["calls"]
    assert own_ids == [{**written, "call_id": None}]


def test_a_report_is_right_only_when_everything_is() -> None:
    report = Report("w", tasks=1, passed=1)
    assert report.ok
    assert report.fail("x", []) is True
    assert report.fail("x", ["a", "b"]) is False
    assert not report.ok
    assert report.to_json()["failed"] == [{"id": "x", "why": "a; b"}]
    assert not Report("w", duplicate_effects=1).ok
    assert not Report("w", batch_ok=False).ok


def test_arguments_that_were_refused_as_invalid_need_not_be_kept() -> None:
    case = ErrorCase("e", (), WRITE, False, "Not now", "digest")
    unkept = Answered(Call(WRITE.tool, None), {"state": "rejected", "code": "INVALID_ARGUMENTS"}, is_error=True)  # type: ignore[arg-type]
    assert checks.error_wrong(case, one(unkept)) == []
    assert checks.error_wrong(case, one(replace(unkept, call=Call("other_tool", WRITE.arguments))))
