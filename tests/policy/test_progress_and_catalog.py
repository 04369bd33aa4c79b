"""The loop guard and the catalog filter."""

from policy.base import Principal
from policy.catalog import eligible
from policy.progress import Answered, stale_turns, worn_out


def got(turn: int, arguments: str, result: str = "same", code: str | None = None, **more: object) -> Answered:
    return Answered(turn, "look", arguments, result, code, **more)  # type: ignore[arg-type]


def test_a_first_and_a_second_look_are_progress_a_third_is_not() -> None:
    looks = [got(turn, "a") for turn in (1, 2, 3, 4)]
    assert [stale_turns(looks[:n]) for n in range(5)] == [0, 0, 0, 1, 2]


def test_one_new_answer_in_a_turn_is_enough() -> None:
    looks = [got(turn, "a") for turn in (1, 2, 3)]
    assert stale_turns([*looks, got(3, "b")]) == 0
    assert stale_turns([*looks, got(4, "a"), got(4, "c")]) == 0


def test_a_changing_answer_is_progress() -> None:
    assert stale_turns([got(turn, "a", f"result {turn}") for turn in range(1, 9)]) == 0


def test_the_same_error_again_and_again_is_none_whatever_was_asked() -> None:
    errors = [got(turn, f"guess {turn}", f"text {turn}", "INVALID_ARGUMENTS") for turn in (1, 2, 3, 4, 5)]
    assert stale_turns(errors) == 3


def test_two_questions_in_turns_are_none() -> None:
    pairs = [got(turn, "a" if turn % 2 else "b") for turn in range(1, 8)]
    assert stale_turns(pairs) == 3


def test_a_suppressed_duplicate_tells_nothing() -> None:
    assert stale_turns([got(1, "a"), got(2, "a", duplicate=True), got(3, "a", duplicate=True)]) == 2


def test_the_guards_own_refusal_tells_nothing() -> None:
    looks = [got(turn, "a") for turn in (1, 2, 3)]
    refused = [got(turn, "a", "refusal", "NO_PROGRESS") for turn in (4, 5)]
    assert stale_turns([*looks, *refused]) == 3


def test_a_read_is_worn_out_after_three_equal_answers() -> None:
    looks = [got(turn, "a") for turn in (1, 2, 3)]
    assert worn_out(looks[:2]) == frozenset()
    assert worn_out(looks) == {("look", "a")}
    assert worn_out([*looks, got(4, "a", "other")]) == frozenset()


def test_catalog_offers_what_the_scopes_allow_in_order() -> None:
    tools = [("c", frozenset({"w"})), ("a", frozenset()), ("b", frozenset({"r", "w"}))]
    assert eligible(tools, Principal("t", "s")) == ("a",)
    assert eligible(tools, Principal("t", "s", frozenset({"w"}))) == ("c", "a")
    assert eligible(tools, Principal("t", "s", frozenset({"r", "w", "x"}))) == ("c", "a", "b")
