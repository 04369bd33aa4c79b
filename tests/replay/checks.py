"""What came of an operation, against the ground truth: pure comparisons that return what is wrong, in words."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.replay.domains import EffectRow
from tests.replay.recordings import Expected, Told
from tests.replay.workload import Action, AuthzCase, Call, ErrorCase, Task, digest

Identity = tuple[str, str]  # tool, digest of the arguments


@dataclass(frozen=True, slots=True)
class Answered:
    """One call as the model proposed it and what the model was told about it."""

    call: Call
    observation: dict[str, Any]
    is_error: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One operation at its end; `calls` in the order in which they were proposed. `attempts`: tries of all calls."""

    state: str
    reason: str | None
    calls: tuple[Answered, ...]
    attempts: int = 0


def task_wrong(task: Task, outcome: Outcome) -> list[str]:
    """Every call answered as the ground truth says, in order, and a completed operation."""
    return [
        *_not_completed(outcome),
        *_other_calls([action.call for action in task.actions], outcome),
        *(w for action, seen in zip(task.actions, outcome.calls, strict=False) if (w := action_wrong(action, seen))),
    ]


def action_wrong(action: Action, seen: Answered) -> str | None:
    observation, name = seen.observation, action.call.tool
    if action.error is not None:
        right = seen.is_error and observation.get("message") == action.error
        return None if right else f"{name}: {_short(observation)} instead of error {action.error!r}"
    if seen.is_error or observation.get("state") != "succeeded":
        return f"{name}: {_short(observation)} instead of a result"
    if digest(observation.get("data")) != action.result_digest:
        return f"{name}: another result"
    return None


def error_wrong(case: ErrorCase, outcome: Outcome) -> list[str]:
    """The exact text; arguments outside the schema only have to be refused, and before anything was tried."""
    wrong = [*_not_completed(outcome), *_other_calls([case.call], outcome)]
    for seen in outcome.calls[:1]:
        if not seen.is_error:
            wrong.append(f"{case.call.tool}: {_short(seen.observation)} instead of an error")
        elif case.valid and seen.observation.get("message") != case.error:
            wrong.append(f"{case.call.tool}: {_short(seen.observation)} instead of {case.error!r}")
        elif not case.valid and outcome.attempts:
            wrong.append(f"{case.call.tool}: tried with arguments outside its schema")
    return wrong


def authz_wrong(case: AuthzCase, outcome: Outcome) -> list[str]:
    """Refused for want of right, and nothing was tried."""
    wrong = [*_not_completed(outcome), *_other_calls([case.call], outcome)]
    for seen in outcome.calls[:1]:
        if not seen.is_error or not str(seen.observation.get("code")).startswith("FORBIDDEN"):
            wrong.append(f"{case.call.tool}: {_short(seen.observation)} instead of a refusal")
        if outcome.attempts:
            wrong.append(f"{case.call.tool}: {outcome.attempts} attempts at what is not allowed")
    return wrong


def recording_wrong(expected: Expected, outcome: Outcome, shown: Sequence[str]) -> list[str]:
    """Every call answered as worked out, under the recorded ids; `shown` is what the model saw, in call order."""
    wrong = [*_not_completed(outcome), *_other_calls([told.call for told in expected.told], outcome)]
    for told, seen in zip(expected.told, outcome.calls, strict=False):
        wrong += filter(None, [told_wrong(told, seen)])
        if told.call.call_id not in (None, seen.call.call_id):
            wrong.append(f"{told.call.tool}: call id {seen.call.call_id} instead of {told.call.call_id}")
    if list(map(_observed, shown)) != [seen.observation for seen in outcome.calls]:
        wrong.append("the model was shown other results, or in another order")
    return wrong


def _observed(text: str) -> Any:
    """An observation as stored; a wire format with no mark for errors wraps them."""
    value = json.loads(text)
    return value["output"] if isinstance(value, dict) and value.keys() == {"is_error", "output"} else value


def told_wrong(told: Told, seen: Answered) -> str | None:
    observation, name = seen.observation, told.call.tool
    if told.code is not None:
        right = seen.is_error and observation.get("code") == told.code
        return None if right else f"{name}: {_short(observation)} instead of {told.code}"
    if told.error is not None:
        right = seen.is_error and observation.get("message") == told.error
        return None if right else f"{name}: {_short(observation)} instead of error {told.error!r}"
    if seen.is_error or digest(observation.get("data")) != digest(told.data):
        return f"{name}: {_short(observation)} instead of another result"
    return None


def effects_wanted(tasks: Iterable[Task]) -> Counter[Identity]:
    """What the ledger must hold: each write that succeeds, as often as the ground truth does it."""
    return Counter(a.call.identity for task in tasks for a in task.actions if a.writes and a.error is None)


def effects_wrong(rows: Sequence[EffectRow], wanted: Counter[Identity]) -> list[str]:
    missing = wanted - Counter((row.tool, row.arguments_digest) for row in rows)
    extra = count_duplicates(rows, wanted)
    return [
        *(f"effect of {tool} is missing" for tool, _ in missing.elements()),
        *([f"{extra} effects too many"] if extra else []),
    ]


def count_duplicates(rows: Sequence[EffectRow], wanted: Counter[Identity]) -> int:
    """Effects of one world beyond the first of their key, and beyond what the ground truth does."""
    by_key = {row.key: row for row in reversed(rows)}
    beyond = Counter((row.tool, row.arguments_digest) for row in by_key.values()) - wanted
    return len(rows) - len(by_key) + beyond.total()


def _not_completed(outcome: Outcome) -> list[str]:
    if outcome.state == "COMPLETED":
        return []
    return [f"ended {outcome.state}" + (f" ({outcome.reason})" if outcome.reason else "")]


def _other_calls(wanted: Sequence[Call], outcome: Outcome) -> list[str]:
    seen = [answered.call for answered in outcome.calls]
    if len(seen) == len(wanted) and all(map(_same, wanted, seen)):
        return []
    return [f"{len(seen)} calls were proposed, other than the {len(wanted)} scripted"]


def _same(wanted: Call, seen: Call) -> bool:
    """Arguments that were refused as invalid are not kept."""
    return wanted.tool == seen.tool and seen.arguments in (wanted.arguments, None)


def _short(observation: dict[str, Any]) -> str:
    text = str(observation)
    return text if len(text) <= 200 else text[:200] + "..."
